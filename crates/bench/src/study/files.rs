//! Writes results to the standard output, as JSON and as CSV.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::report::CellReport;
use crate::error::Error;

/// Writes the table to the standard output, unless the JSON goes there.
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

/// Creates a directory and its parents.
pub(crate) fn make_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(failed(path))
}

/// Writes one file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(failed(path))
}

/// For `map_err` on I/O: names the file.
pub(crate) fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_string_lossy().into_owned();
    move |cause| Error::Report { path, cause }
}

pub(crate) fn encode(report: &impl Serialize) -> Result<String, io::Error> {
    serde_json::to_string_pretty(report).map(|text| text + "\n").map_err(io::Error::other)
}

/// A line for each figure of each cell, in seconds, bytes, cores, or a number per second. If studies have
/// names, the first column is the name.
pub(crate) fn csv<'s>(studies: impl Iterator<Item = (Option<&'s str>, Cow<'s, [CellReport]>)>) -> String {
    const HEADER: &str = "scenario,axis,at,system,metric,rounds,median,min,max,mean,ci95,stddev,mad\n";
    let mut out = String::new();
    for (name, cells) in studies {
        if out.is_empty() {
            out = format!("{}{HEADER}", if name.is_some() { "study," } else { "" });
        }
        let name = name.map_or(String::new(), |name| format!("{name},"));
        for (cell, figure) in
            cells.iter().flat_map(|cell| cell.figures.iter().map(move |figure| (cell, figure)))
        {
            let s = &figure.summary;
            let words = [&cell.scenario, &cell.system].map(|word| word.replace('"', "\"\""));
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{name}\"{}\",{},{},\"{}\",{},{},{},{},{},{},{},{},{}",
                words[0],
                cell.axis.label(),
                cell.at,
                words[1],
                figure.metric,
                s.count,
                digits(s.median),
                digits(s.min),
                digits(s.max),
                digits(s.mean),
                digits(s.ci95),
                digits(s.stddev),
                digits(s.mad)
            );
        }
    }
    out
}

/// Rounds a number to the digits that any measurement deserves; the JSON has all digits.
fn digits(value: f64) -> f64 {
    // A formatted number can be parsed again.
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::super::report::StudyReport;
    use super::super::section::section;
    use super::*;

    #[test]
    fn csv_has_a_line_for_each_figure_and_quotes_names() {
        let mut report = report();
        report.cells[0].scenario = "a \"b\", c".into();
        let one = |name| csv([(name, Cow::Borrowed(&report.cells[..]))].into_iter());
        let text = one(None);
        assert_eq!(text.lines().count(), 1 + 8 * 3);
        let line = text.lines().nth(1).unwrap();
        assert!(
            line.starts_with("\"a \"\"b\"\", c\",round trip in ms,0,\"direct\",rate,3,100,90,"),
            "{line}"
        );
        let named = one(Some("proxy"));
        assert!(
            named.starts_with("study,scenario,") && named.lines().nth(1).unwrap().starts_with("proxy,\"a")
        );
    }

    #[test]
    fn numbers_have_six_digits() {
        assert_eq!(
            [1234567.8, 0.000_123_456_789, 0.0, -2.5].map(digits),
            [1234570.0, 0.000_123_457, 0.0, -2.5]
        );
    }

    #[test]
    fn a_report_round_trips_through_json() {
        let report = report();
        let read: StudyReport = serde_json::from_str(&encode(&report).unwrap()).unwrap();
        assert_eq!(
            (section(&read).to_string(), read.cells.len()),
            (section(&report).to_string(), report.cells.len())
        );
    }
}
