//! Where results go: the terminal, JSON, CSV, and a folder with a page.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::arguments::Common;
use super::grid::render;
use super::page::{Page, add_study};
use super::report::StudyReport;
use crate::error::Error;

/// Writes a study's results wherever they are wanted.
pub(crate) fn write_study(report: &StudyReport, common: &Common) -> Result<(), Error> {
    if let Some(folder) = &common.output {
        make_folder(folder)?;
        let mut page = Page::new(&report.title);
        add_study(&mut page, report).map_err(io::Error::other).map_err(failed(folder))?;
        write(&folder.join("report.html"), &page.finish())?;
        write(&folder.join("results.json"), &encode(report).map_err(failed(folder))?)?;
        write(&folder.join("results.csv"), &csv(report))?;
    }
    if let Some(path) = &common.csv {
        write(path, &csv(report))?;
    }
    write_report(report, &render(report), common.json.as_deref())
}

/// The table goes to the standard output, unless the JSON does.
pub(crate) fn write_report(report: &impl Serialize, text: &str, json: Option<&Path>) -> Result<(), Error> {
    let stdout = Path::new("the standard output");
    let to_stdout = |text: &str| io::stdout().lock().write_all(text.as_bytes()).map_err(failed(stdout));
    match json {
        Some(path) if path == Path::new("-") => {
            return to_stdout(&encode(report).map_err(failed(stdout))?);
        }
        Some(path) => write(path, &encode(report).map_err(failed(path))?)?,
        None => {}
    }
    to_stdout(text)
}

/// Makes a folder, and those that it is in.
pub(crate) fn make_folder(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(failed(path))
}

/// Writes one file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(failed(path))
}

/// For `map_err` on I/O: names what was to be written.
pub(crate) fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_string_lossy().into_owned();
    move |cause| Error::Report { path, cause }
}

fn encode(report: &impl Serialize) -> Result<String, io::Error> {
    serde_json::to_string_pretty(report).map(|text| text + "\n").map_err(io::Error::other)
}

/// A line for each figure of each cell, in seconds, bytes, cores, or a number per second.
fn csv(report: &StudyReport) -> String {
    let mut out = String::from("scenario,axis,at,system,metric,rounds,median,min,max,mean,ci95,stddev,mad\n");
    for cell in &report.cells {
        for figure in &cell.figures {
            let s = &figure.summary;
            let words = [&cell.scenario, &cell.system].map(|word| word.replace('"', "\"\""));
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "\"{}\",{},{},\"{}\",{},{},{},{},{},{},{},{},{}",
                words[0],
                cell.axis.label(),
                cell.at,
                words[1],
                figure.metric,
                s.count,
                s.median,
                s.min,
                s.max,
                s.mean,
                s.ci95,
                s.stddev,
                s.mad
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::*;

    #[test]
    fn csv_has_a_line_for_each_figure_and_quotes_names() {
        let mut report = report();
        report.cells[0].scenario = "a \"b\", c".into();
        let text = csv(&report);
        assert_eq!(text.lines().count(), 1 + 8 * 3);
        let line = text.lines().nth(1).unwrap();
        assert!(
            line.starts_with("\"a \"\"b\"\", c\",round trip in ms,0,\"direct\",rate,3,100,90,"),
            "{line}"
        );
    }

    #[test]
    fn what_is_written_as_json_is_read_back_the_same() {
        let report = report();
        let read: StudyReport = serde_json::from_str(&encode(&report).unwrap()).unwrap();
        assert_eq!((render(&read), read.cells.len()), (render(&report), report.cells.len()));
    }
}
