//! The one form in which the results of any study are shown, in a terminal and on a page.

use std::fmt;

use super::chart::{Chart, charts};
use super::comparison::SystemComparison;
use super::grid::{Grid, of_axis};
use super::published;
use super::report::{StudyReport, SystemAbout};
use crate::expect::Verdict;
use crate::machine::Machine;

/// The results of one study.
#[derive(Debug)]
pub(crate) struct Section {
    /// The machine that it ran on.
    pub(crate) machine: Machine,
    /// The parameters and the systems.
    pub(crate) facts: Vec<String>,
    /// The plots; pages alone show them.
    pub(crate) charts: Vec<Chart>,
    pub(crate) tables: Vec<Grid>,
    pub(crate) notes: Vec<String>,
    /// How its systems compare; `None` for a single one.
    pub(crate) comparison: Option<SystemComparison>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// The text for a terminal.
impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        self.facts.iter().try_for_each(|fact| writeln!(f, "{fact}"))?;
        if let Some(comparison) = &self.comparison {
            comparison.sentences.iter().try_for_each(|sentence| writeln!(f, "{sentence}"))?;
        }
        self.tables.iter().try_for_each(|table| writeln!(f, "\n{table}"))?;
        if !self.notes.is_empty() || !self.verdicts.is_empty() {
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "* {note}"))?;
        self.verdicts.iter().try_for_each(|verdict| writeln!(f, "{verdict}"))
    }
}

/// The results of a study of cells.
pub(crate) fn section(report: &StudyReport) -> Section {
    Section {
        machine: report.machine.clone(),
        facts: facts(report.parameters_text(), &report.systems),
        charts: charts(report),
        tables: report.axes().into_iter().map(|axis| of_axis(report, axis)).collect(),
        notes: report.notes.iter().cloned().chain(published::notes(&report.study)).collect(),
        comparison: None,
        verdicts: report.expectations.clone(),
    }
}

/// The parameters, followed by a line for each system.
pub(crate) fn facts(parameters: String, systems: &[SystemAbout]) -> Vec<String> {
    let system = |s: &SystemAbout| format!("{}: {} at {}", s.name, s.server, s.uri);
    std::iter::once(parameters).chain(systems.iter().map(system)).collect()
}
