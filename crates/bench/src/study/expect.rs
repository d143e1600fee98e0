//! Expectations of some cells of a study: `connect: rate>100`, `@50: p99<60ms`, `connect@50: ratio(a/b)>5`.

use std::fmt;
use std::str::FromStr;

use super::report::{CellReport, StudyReport};
use crate::expect::{ExpectError, Expectation, Figures, Verdict};
use crate::metric::Metric;

/// An expectation, and which cells must meet it.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    text: String,
    scenario: Option<String>,
    at: Option<f64>,
    expectation: Expectation,
}

impl Condition {
    /// Whether it speaks of this cell.
    pub(super) fn selects(&self, scenario: &str, at: f64) -> bool {
        self.scenario.as_deref().is_none_or(|wanted| wanted == scenario)
            && self.at.is_none_or(|wanted| wanted == at)
    }

    /// Checks that the systems it names are among `known`.
    pub(super) fn check_systems(&self, known: &[&str]) -> Result<(), ExpectError> {
        self.expectation.check_systems(known)
    }

    /// Judges all cells that it speaks of; all must meet it.
    pub(super) fn judge(&self, report: &StudyReport) -> Verdict {
        let (mut met, mut measured) = (true, Vec::new());
        for (scenario, axis, at) in report.distinct_cells() {
            if self.selects(scenario, at) {
                let verdict = self.expectation.judge(&CellView { report, scenario, at, axis });
                met &= verdict.met;
                measured.push(format!("{scenario}, {}: {}", axis.show(at), verdict.measured));
            }
        }
        Verdict { expectation: self.text.clone(), met, measured: measured.join("; ") }
    }
}

impl FromStr for Condition {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let (selector, expectation) = text.split_once(':').unwrap_or(("", text));
        let (scenario, at) = match selector.rsplit_once('@') {
            // What is no number is part of a name, which then is not known.
            Some((scenario, number)) => match number.trim().parse() {
                Ok(at) => (scenario.trim(), Some(at)),
                Err(_) => (selector.trim(), None),
            },
            None => (selector.trim(), None),
        };
        let scenario = (!scenario.is_empty()).then(|| scenario.to_owned());
        Ok(Self { text: text.to_owned(), scenario, at, expectation: expectation.trim().parse()? })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One cell on all systems.
struct CellView<'r> {
    report: &'r StudyReport,
    scenario: &'r str,
    axis: super::report::Axis,
    at: f64,
}

impl CellView<'_> {
    fn of(&self, system: &str) -> Option<&CellReport> {
        self.report.cell(self.scenario, self.axis, self.at, system)
    }
}

impl Figures for CellView<'_> {
    fn systems(&self) -> Vec<&str> {
        self.report.systems.iter().map(|system| system.name.as_str()).collect()
    }

    fn figure(&self, system: &str, metric: Metric) -> Option<f64> {
        self.of(system)?.figure(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_and_place_are_both_optional() {
        let selects = |text: &str| {
            let condition: Condition = text.parse().unwrap();
            [("a b", 50.0), ("a b", 5.0), ("c", 50.0)].map(|(scenario, at)| condition.selects(scenario, at))
        };
        assert_eq!(selects("rate>1"), [true, true, true]);
        assert_eq!(selects("a b: rate>1"), [true, true, false]);
        assert_eq!(selects("@50: rate>1"), [true, false, true]);
        assert_eq!(selects("a b@50: p99<1ms"), [true, false, false]);
        assert!("a@50".parse::<Condition>().is_err());
    }
}
