//! The results of any study, and their outputs: the terminal, JSON, CSV, a page.

use std::borrow::Cow;
use std::io;

use serde::{Deserialize, Serialize};

use super::arguments::OutputArguments;
use super::comparison::compare;
use super::files::{self, make_dir, write, write_report};
use super::page::Page;
use super::report::{CellReport, StudyReport};
use super::section::{self, Section};
use crate::error::Error;
use crate::expect::Verdict;
use crate::report::StreamReport;
use crate::routing::report::RoutingReport;
use crate::websockets::report::WebSocketsReport;
use crate::{routing, stream, websockets};

/// The results of one study.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Results {
    Cells(StudyReport),
    Stream(Box<StreamReport>),
    Routing(RoutingReport),
    WebSockets(WebSocketsReport),
}

impl Results {
    /// The study's name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Cells(report) => &report.study,
            Self::Stream(_) => "stream",
            Self::Routing(_) => "routing",
            Self::WebSockets(_) => "websockets",
        }
    }

    /// The heading of its report.
    pub(crate) fn title(&self) -> &str {
        match self {
            Self::Cells(report) => &report.title,
            Self::Stream(_) => "Produced and consumed",
            Self::Routing(_) => "Routing at scale",
            Self::WebSockets(_) => "Very many WebSocket connections",
        }
    }

    /// The results as they are shown.
    fn section(&self) -> Section {
        let section = match self {
            Self::Cells(report) => section::section(report),
            Self::Stream(report) => stream::page::section(report),
            Self::Routing(report) => routing::page::section(report),
            Self::WebSockets(report) => websockets::page::section(report),
        };
        Section { comparison: compare(&self.cells(), &self.systems()), ..section }
    }

    /// The names of the systems; the first is the one that the others are compared with.
    fn systems(&self) -> Vec<&str> {
        match self {
            Self::Cells(report) => report.systems.iter().map(|system| system.name.as_str()).collect(),
            Self::Stream(report) => report.systems.iter().map(|system| system.name.as_str()).collect(),
            Self::Routing(report) => report.systems.iter().map(|system| system.name.as_str()).collect(),
            Self::WebSockets(report) => {
                let first = report.systems.iter().filter(|system| system.round == 1);
                first.map(|system| system.name.as_str()).collect()
            }
        }
    }

    /// All figures, cell by cell.
    fn cells(&self) -> Cow<'_, [CellReport]> {
        match self {
            Self::Cells(report) => Cow::Borrowed(&report.cells),
            Self::Stream(report) => Cow::Owned(stream::page::cells(report)),
            Self::Routing(report) => Cow::Owned(routing::page::cells(report)),
            Self::WebSockets(report) => Cow::Owned(websockets::page::cells(report)),
        }
    }

    fn verdicts(&self) -> &[Verdict] {
        match self {
            Self::Cells(report) => &report.expectations,
            Self::Stream(report) => &report.expectations,
            Self::Routing(report) => &report.expectations,
            Self::WebSockets(report) => &report.expectations,
        }
    }

    /// Whether every expectation was met.
    pub(crate) fn met(&self) -> bool {
        self.verdicts().iter().all(|verdict| verdict.met)
    }

    /// Writes the results to all requested outputs.
    pub(crate) fn write(&self, outputs: &OutputArguments) -> Result<(), Error> {
        if let (Some(directory), Self::Routing(report)) = (&outputs.output, self) {
            routing::write_figures(report, directory)?;
        }
        let text = format!("{}\n{}", self.title(), self.section());
        write_all(std::slice::from_ref(self), self.title(), self, &text, outputs)
    }
}

/// Several studies as JSON.
#[derive(Serialize)]
struct Whole<'r> {
    study: &'static str,
    studies: &'r [Results],
}

/// Writes one report of several studies.
pub(crate) fn write_several(
    studies: &[Results],
    title: &str,
    outputs: &OutputArguments,
) -> Result<(), Error> {
    let text = |study: &Results| format!("## {}\n\n{}", study.title(), study.section());
    let texts: Vec<String> = studies.iter().map(text).collect();
    write_all(studies, title, &Whole { study: "all", studies }, &texts.join("\n"), outputs)
}

/// Writes the results of several studies as one page, one CSV, and `whole` as JSON.
fn write_all(
    studies: &[Results],
    title: &str,
    whole: &impl Serialize,
    text: &str,
    outputs: &OutputArguments,
) -> Result<(), Error> {
    let alone = studies.len() == 1;
    let csv = || {
        let tables =
            studies.iter().map(|study| (if alone { None } else { Some(study.name()) }, study.cells()));
        files::csv(tables)
    };
    if let Some(directory) = &outputs.output {
        make_dir(directory)?;
        let mut page = Page::new(title);
        if !alone {
            page.contents(studies.iter().map(|study| (study.name(), study.title())));
        }
        let sections: Vec<Section> = studies.iter().map(Results::section).collect();
        if let (false, Some(first)) = (alone, sections.first()) {
            page.overview(studies.iter().map(Results::title).zip(&sections));
            page.machine(&first.machine);
        }
        for (study, section) in studies.iter().zip(sections) {
            let heading = (!alone).then(|| (study.name(), study.title()));
            page.section(heading, section).map_err(io::Error::other).map_err(files::failed(directory))?;
        }
        write(&directory.join("report.html"), &page.finish())?;
        write(&directory.join("results.json"), &files::encode(whole).map_err(files::failed(directory))?)?;
        write(&directory.join("results.csv"), &csv())?;
    }
    if let Some(path) = &outputs.csv {
        write(path, &csv())?;
    }
    write_report(whole, text, outputs.json.as_deref())
}
