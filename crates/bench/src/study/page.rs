//! A page with everything in it: style, tables, plots. It needs nothing else, and prints.

use std::fmt::Write;

use super::chart::charts;
use super::grid::{Grid, of_axis};
use super::report::StudyReport;
use crate::expect::Verdict;

/// A page in the making.
#[derive(Debug)]
pub(crate) struct Page {
    body: String,
    title: String,
}

impl Page {
    pub(crate) fn new(title: &str) -> Self {
        Self { body: format!("<h1>{}</h1>\n", escaped(title)), title: title.to_owned() }
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        // Writing to a String cannot fail; nor below.
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
    }

    pub(crate) fn list(&mut self, items: impl IntoIterator<Item = String>) {
        let items: String = items.into_iter().map(|item| format!("<li>{}</li>", escaped(&item))).collect();
        if !items.is_empty() {
            let _ = writeln!(self.body, "<ul>{items}</ul>");
        }
    }

    pub(crate) fn table(&mut self, grid: &Grid) {
        let row = |tag: &str, cells: &[String]| {
            let cell = |(at, text): (usize, &String)| {
                let class = if at < grid.words { "" } else { " class=n" };
                format!("<{tag}{class}>{}</{tag}>", escaped(text))
            };
            format!("<tr>{}</tr>", cells.iter().enumerate().map(cell).collect::<String>())
        };
        let rows: String = grid.rows.iter().map(|cells| row("td", cells) + "\n").collect();
        let head = row("th", &grid.header);
        let _ = writeln!(
            self.body,
            "<div class=t><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
        );
    }

    /// Plots side by side, as many as fit.
    pub(crate) fn plots(&mut self, svgs: impl IntoIterator<Item = String>) {
        self.body += "<div class=p>";
        svgs.into_iter().for_each(|svg| self.body += &svg);
        self.body += "</div>\n";
    }

    pub(crate) fn verdicts(&mut self, verdicts: &[Verdict]) {
        self.list(verdicts.iter().map(|verdict| {
            let word = if verdict.met { "met" } else { "NOT MET" };
            format!("expected {}: {word} ({})", verdict.expectation, verdict.measured)
        }));
    }

    /// The whole document.
    pub(crate) fn finish(self) -> String {
        let Self { body, title } = self;
        let title = escaped(&title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style></head>\n\
             <body>\n{body}</body></html>\n"
        )
    }
}

/// Adds a study: what and where, tables, plots, notes, verdicts.
pub(crate) fn add_study(page: &mut Page, report: &StudyReport) -> Result<(), String> {
    page.paragraph(&report.machine.to_string());
    let parameters = report.parameters.iter().map(|p| format!("{}: {}", p.name, p.value));
    page.list(
        parameters.chain(report.systems.iter().map(|s| format!("{}: {} at {}", s.name, s.server, s.uri))),
    );
    page.verdicts(&report.expectations);
    let svgs = charts(report).iter().map(|chart| chart.svg()).collect::<Result<Vec<_>, _>>()?;
    page.plots(svgs);
    for axis in report.axes() {
        page.table(&of_axis(report, axis));
    }
    page.list(report.notes.iter().cloned());
    Ok(())
}

/// Text as HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.45 sans-serif;max-width:1480px;margin:2em auto;padding:0 1em;color:#222223;background:#fefefe}\
h1{font-size:1.5em}\
.t{overflow-x:auto;margin:1em 0}table{border-collapse:collapse;font-size:13px}\
th,td{padding:.2em .6em;border-bottom:1px solid #ddddde;text-align:left;white-space:nowrap}\
.n{text-align:right;font-variant-numeric:tabular-nums}\
.p{display:flex;flex-wrap:wrap;gap:8px}.p svg{break-inside:avoid}\
@media screen and (prefers-color-scheme:dark){body{color:#d8dce2;background:#14171c}th,td{border-color:#3a3f48}}\
@media print{body{max-width:none;margin:0}.t{overflow:visible}table{font-size:9px}\
.p svg{width:48%;height:auto}}";

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::*;

    #[test]
    fn a_page_holds_everything_and_asks_for_nothing() {
        let mut page = Page::new("A <study>");
        add_study(&mut page, &report()).unwrap();
        let html = page.finish();
        assert_eq!(html.matches("<svg").count(), 4);
        assert_eq!(html.matches("<table").count(), 1);
        for text in
            ["A &lt;study&gt;", "Fake &lt;1&gt;", "Mind &lt;this&gt;.", "publish &amp; confirm", "153.00"]
        {
            assert!(html.contains(text), "{text}");
        }
        for reference in ["src=", "href=", "url(", "@import"] {
            assert!(!html.contains(reference), "{reference}");
        }
    }
}
