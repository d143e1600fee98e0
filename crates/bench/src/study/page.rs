//! A self-contained HTML page: style, tables, plots. It can be printed.

use std::fmt::Write;

use super::chart::Chart;
use super::comparison::SystemComparison;
use super::draw::{self, DrawError};
use super::grid::Grid;
use super::section::Section;
use crate::expect::Verdict;
use crate::machine::Machine;

/// A page under construction.
#[derive(Debug)]
pub(crate) struct Page {
    body: String,
    title: String,
    /// The machine already shown, which sections do not repeat.
    machine: String,
}

impl Page {
    pub(crate) fn new(title: &str) -> Self {
        Self {
            body: format!("<h1>{}</h1>\n", escaped(title)),
            title: title.to_owned(),
            machine: String::new(),
        }
    }

    /// Adds links to the sections.
    pub(crate) fn contents<'s>(&mut self, sections: impl Iterator<Item = (&'s str, &'s str)>) {
        let links =
            sections.map(|(name, title)| format!("<li><a href=\"#{name}\">{}</a></li>", escaped(title)));
        let links: String = links.collect();
        // Writing to a String cannot fail; nor below.
        let _ = writeln!(self.body, "<nav><ul>{links}</ul></nav>");
    }

    /// Adds the machine that everything was measured on, unless it is the one already shown.
    pub(crate) fn machine(&mut self, machine: &Machine) {
        let text = machine.to_string();
        if text != self.machine {
            let _ = writeln!(self.body, "<p>{}</p>", escaped(&text));
            self.machine = text;
        }
    }

    /// Adds one study; with its name and title if it is one of several.
    pub(crate) fn section(
        &mut self,
        heading: Option<(&str, &str)>,
        section: Section,
    ) -> Result<(), DrawError> {
        if let Some((name, title)) = heading {
            let _ = writeln!(
                self.body,
                "<details open id=\"{name}\"><summary><h2>{}</h2></summary>",
                escaped(title)
            );
        }
        if let Some(SystemComparison { sentences, ratios, .. }) = &section.comparison {
            let _ = writeln!(self.body, "<p class=v>{}</p>", escaped(&sentences.join(" ")));
            self.table(ratios);
        }
        self.machine(&section.machine);
        self.list(section.verdicts.iter().map(Verdict::to_string));
        self.plots(&section.charts)?;
        self.list(section.notes);
        self.fold("Parameters and systems", |page| page.list(section.facts));
        self.fold("All figures", |page| section.tables.iter().for_each(|grid| page.table(grid)));
        if heading.is_some() {
            self.body += "</details>\n";
        }
        Ok(())
    }

    /// Opens a page of several studies: a row for each, with the ratio of each system to the first one of that study.
    pub(crate) fn overview<'s>(&mut self, studies: impl Iterator<Item = (&'s str, &'s Section)>) {
        let compared: Vec<(&str, &SystemComparison)> =
            studies.filter_map(|(title, section)| Some((title, section.comparison.as_ref()?))).collect();
        let mut systems: Vec<&str> = Vec::new();
        for (name, _) in compared.iter().flat_map(|(_, comparison)| &comparison.overall) {
            if !systems.contains(&name.as_str()) {
                systems.push(name);
            }
        }
        if systems.is_empty() {
            return;
        }
        let mut grid = Grid::new(&["study"]);
        grid.caption =
            Some("How many times as good as the system named first in each study, on geometric average");
        grid.header.extend(systems.iter().map(|&name| name.to_owned()));
        for (title, comparison) in &compared {
            let ratio = |system: &&str| {
                let found = comparison.overall.iter().find(|(name, _)| name == system);
                found.map_or("-".to_owned(), |(_, ratios)| ratios.show())
            };
            grid.rows.push(std::iter::once((*title).to_owned()).chain(systems.iter().map(ratio)).collect());
        }
        for (title, comparison) in &compared {
            // The factors are what a reader wants first; the other sentences stand in the sections.
            let factors = escaped(comparison.factors());
            let _ = writeln!(self.body, "<p class=v><b>{}.</b> {factors}</p>", escaped(title));
        }
        self.table(&grid);
    }

    /// Adds a part that is folded until it is opened.
    fn fold(&mut self, title: &str, content: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.body, "<details><summary>{}</summary>", escaped(title));
        content(self);
        self.body += "</details>\n";
    }

    fn list(&mut self, items: impl IntoIterator<Item = String>) {
        let items: String = items.into_iter().map(|item| format!("<li>{}</li>", escaped(&item))).collect();
        if !items.is_empty() {
            let _ = writeln!(self.body, "<ul>{items}</ul>");
        }
    }

    fn table(&mut self, grid: &Grid) {
        // HTML allows end tags of cells and rows to be omitted; there are thousands.
        let row = |tag: &str, cells: &[String]| {
            let cells = cells.iter().map(|text| format!("<{tag}>{}", escaped(text)));
            format!("<tr>{}", cells.collect::<String>())
        };
        let rows: String = grid.rows.iter().map(|cells| row("td", cells) + "\n").collect();
        let head = row("th", &grid.header);
        let caption = grid.caption.map_or(String::new(), |text| format!("<caption>{}", escaped(text)));
        let _ = writeln!(self.body, "<div class=t><table>{caption}<thead>{head}<tbody>{rows}</table></div>");
    }

    /// Adds plots side by side, as many as fit.
    fn plots(&mut self, charts: &[Chart]) -> Result<(), DrawError> {
        self.body += "<div class=p>";
        for chart in charts {
            self.body += &chart.svg()?;
        }
        self.body += "</div>\n";
        Ok(())
    }

    /// Returns the whole document.
    pub(crate) fn finish(self) -> String {
        let Self { body, title, .. } = self;
        let title = escaped(&title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}{}</style></head>\n\
             <body>\n{body}</body></html>\n",
            draw::STYLE
        )
    }
}

/// Escapes text for HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.45 sans-serif;max-width:1480px;margin:2em auto;padding:0 1em;color:#222223;background:#fefefe}\
h1{font-size:1.5em}h2{font-size:1.25em;display:inline-block;margin:1em 0 .4em}a{color:inherit}\
summary{cursor:pointer}.v{font-size:1.1em;max-width:60em}\
.t{overflow-x:auto;margin:1em 0}table{border-collapse:collapse;font-size:13px}\
caption{text-align:left;white-space:nowrap}th,td{padding:.2em .6em;border-bottom:1px solid #ddddde;text-align:left;white-space:nowrap}\
td+td,th+th{text-align:right;font-variant-numeric:tabular-nums}\
.p{display:flex;flex-wrap:wrap;gap:8px}.p svg{break-inside:avoid;max-width:100%;height:auto}\
@media screen and (prefers-color-scheme:dark){body{color:#d8dce2;background:#14171c}th,td{border-color:#3a3f48}}\
@media print{body{max-width:none;margin:0}nav{display:none}h2{break-after:avoid}.t{overflow:visible}table{font-size:8px}th,td{padding:.15em .3em}\
.p svg[width=\"480\"]{width:48%}}";

#[cfg(test)]
mod tests {
    use super::super::comparison::compare;
    use super::super::grid::tests::report;
    use super::super::section::section;
    use super::*;

    #[test]
    fn a_page_is_complete_and_refers_to_no_other_file() {
        let mut page = Page::new("A <study>");
        let report = report();
        let comparison = compare(&report.cells, &["direct", "proxy"]);
        page.section(None, Section { comparison, ..section(&report) }).unwrap();
        let html = page.finish();
        assert_eq!(html.matches("<svg").count(), 4);
        assert_eq!(html.matches("<table").count(), 2);
        let (verdict, figures) =
            (html.find("Best of all in 4 measurements").unwrap(), html.find("All figures").unwrap());
        assert!(
            verdict < html.find("<svg").unwrap() && html.find("<svg").unwrap() < figures,
            "the verdict comes first"
        );
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
