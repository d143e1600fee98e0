//! Expectations that apply to some cells of a study: `connect: rate>100`, `@50: p99<60ms`, `connect@50: ratio(a/b)>5`.

use std::fmt;
use std::str::FromStr;

use super::report::{CellReport, StudyReport};
use crate::error::Error;
use crate::expect::{ExpectError, Expectation, MetricSource, Verdict};
use crate::metric::Metric;
use crate::usage::check;

/// An expectation, and the cells that must meet it.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    text: String,
    scenario: Option<String>,
    at: Option<f64>,
    expectation: Expectation,
}

/// Parses expectations; each must apply to something that is `measured`, and to systems with these names.
pub(crate) fn conditions(
    texts: &[String],
    measured: impl Fn(&Condition) -> bool,
    systems: &[&str],
) -> Result<Vec<Condition>, Error> {
    let conditions = texts.iter().map(|text| text.parse()).collect::<Result<Vec<Condition>, _>>();
    let conditions = conditions.map_err(Error::Expect)?;
    check_all(&conditions, measured, systems)?;
    Ok(conditions)
}

/// Checks expectations in the same way.
pub(super) fn check_all(
    conditions: &[Condition],
    measured: impl Fn(&Condition) -> bool,
    systems: &[&str],
) -> Result<(), Error> {
    conditions.iter().try_for_each(|condition| {
        check(measured(condition), &format!("--expect {condition}: nothing that is measured is called so"))?;
        condition.expectation.check_systems(systems).map_err(Error::Expect)
    })
}

impl Condition {
    /// Whether it applies to this cell.
    pub(crate) fn selects(&self, scenario: &str, at: f64) -> bool {
        self.scenario.as_deref().is_none_or(|wanted| wanted == scenario)
            && self.at.is_none_or(|wanted| wanted == at)
    }

    /// Whether it applies to cells of this scenario, at any value of their axis.
    pub(crate) fn selects_some(&self, scenario: &str) -> bool {
        self.scenario.as_deref().is_none_or(|wanted| wanted == scenario)
    }

    /// Evaluates all cells that it applies to; all must meet it, and there must be at least one. Without a
    /// scenario it applies to the cells where its metric was measured.
    pub(crate) fn validate(&self, report: &StudyReport) -> Verdict {
        let (mut met, mut measured) = (true, Vec::new());
        let metric = self.expectation.metric();
        for (scenario, axis, at) in report.distinct_cells() {
            let cell = CellView { report, scenario, at, axis };
            let known = || cell.systems().iter().any(|system| cell.figure(system, metric).is_some());
            if self.selects(scenario, at) && (self.scenario.is_some() || known()) {
                let verdict = self.expectation.validate(&cell);
                met &= verdict.met;
                measured.push(format!("{scenario}, {}: {}", axis.show(at), verdict.measured));
            }
        }
        if measured.is_empty() {
            (met, measured) = (false, vec!["nothing was measured".to_owned()]);
        }
        Verdict { expectation: self.text.clone(), met, measured: measured.join("; ") }
    }
}

impl FromStr for Condition {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let (selector, expectation) = text.split_once(':').unwrap_or(("", text));
        let (scenario, at) = match selector.rsplit_once('@') {
            // If no number follows, the `@` is part of a name, which is then unknown.
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

impl MetricSource for CellView<'_> {
    fn systems(&self) -> Vec<&str> {
        self.report.systems.iter().map(|system| system.name.as_str()).collect()
    }

    fn figure(&self, system: &str, metric: Metric) -> Option<f64> {
        self.of(system)?.figure(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::*;

    #[test]
    fn unscoped_expectations_skip_unmeasured_cells_but_need_a_measured_one() {
        let mut report = report();
        report.cells[0].figures.retain(|figure| figure.metric != "p99");
        report.cells[1].figures.retain(|figure| figure.metric != "p99");
        let met = |text: &str| text.parse::<Condition>().unwrap().validate(&report).met;
        assert!(met("p99<1s"));
        assert!(!met("publish: p99<1s"), "it was named, and is missing");
        assert!(!met("confirm.p99<1s"), "nowhere at all");
        assert!(!met("@7: p99<1s"));
    }

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
