//! Common parts of studies: systems measured in turn, round by round; the report of medians, spread and
//! ratios; conditions on them; and the files and pages written from it.
//!
//! A study is a list of cells, such as "one connection for each message, with confirms, at 50 ms". Each is
//! measured on every system in turn, and again in the next round, so that changes on the machine meanwhile
//! affect all systems alike.

pub(crate) mod arguments;
pub(crate) mod chart;
pub(crate) mod compare;
pub(crate) mod comparison;
pub(crate) mod draw;
pub(crate) mod expect;
pub(crate) mod files;
pub(crate) mod grid;
pub(crate) mod managed_process;
pub(crate) mod meter;
pub(crate) mod page;
pub(crate) mod published;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod section;
pub(crate) mod systems;
pub(crate) mod workers;

use crate::error::Error;
use crate::machine::Machine;
use crate::mailbox::Mailbox;
use crate::metric::Metric;
use crate::study::systems::System;
use arguments::Common;
use report::{Axis, CellReport, Measured, Parameter, StudyReport, SystemAbout};

/// One measurement of a study, made on each system.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    /// The scenario that is measured.
    pub(crate) scenario: &'static str,
    /// The axis along which the cells of a scenario differ.
    pub(crate) axis: Axis,
    /// The value on the axis.
    pub(crate) at: f64,
}

/// Every scenario with each number of workers.
pub(crate) fn worker_cells(scenarios: impl Iterator<Item = &'static str>, workers: &[usize]) -> Vec<Cell> {
    let of =
        |scenario| workers.iter().map(move |&count| Cell { scenario, axis: Axis::Workers, at: count as f64 });
    scenarios.flat_map(of).collect()
}

/// Asks a system for its product and version, for studies that have no connection to it yet.
pub(crate) fn ask(system: &System) -> Result<String, Error> {
    Mailbox::ask(&system.uri).map_err(Error::of(&system.name))
}

/// The results of one round of a cell on a system.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) figures: Vec<(Metric, f64)>,
    /// Whether a thread of the load generator was saturated.
    pub(crate) saturated: bool,
    /// Whether all cores of the machine were busy.
    pub(crate) full: bool,
}

/// The description of a study, without its results.
pub(crate) struct StudyInfo<'s> {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) cells: &'s [Cell],
    pub(crate) systems: &'s [System],
}

/// Reports to a progress display the share that is done, and a description of the current step.
pub(crate) type Watch<'w> = &'w mut dyn FnMut(f64, &str);

/// Measures every cell of a study on every system, and evaluates the expectations. `about` asks a system for
/// its product and version, `measure` runs one round of a cell on the system with that index.
pub(crate) fn run(
    outline: StudyInfo<'_>,
    common: &Common,
    watch: Watch<'_>,
    about: impl Fn(&System) -> Result<String, Error>,
    mut measure: impl FnMut(&Cell, usize) -> Result<Sample, Error>,
) -> Result<StudyReport, Error> {
    let StudyInfo { name, title, mut parameters, cells, systems } = outline;
    common.check_cells(cells, systems)?;
    parameters.push(Parameter::new("rounds", common.rounds));
    let describe = |system: &System| {
        let (name, uri) = (system.name.clone(), system.uri.to_string());
        Ok(SystemAbout { name, uri, server: about(system)? })
    };
    let mut report = StudyReport {
        study: name.into(),
        title: title.into(),
        parameters,
        ..StudyReport::of_cells(
            Machine::describe(),
            systems.iter().map(describe).collect::<Result<_, Error>>()?,
            Vec::new(),
        )
    };
    let mut pressure = vec![SaturationCounts::default(); systems.len()];
    let all = (cells.len() * common.rounds * systems.len()) as f64;
    let mut done = 0.0;
    for cell in cells {
        let mut samples = vec![Vec::new(); systems.len()];
        for _ in 0..common.rounds {
            for (index, system) in systems.iter().enumerate() {
                let at = cell.axis.show(cell.at);
                watch(done / all, &format!("{}: {}, {at}", system.name, cell.scenario));
                let sample = measure(cell, index)?;
                pressure[index].add(sample.saturated, sample.full);
                samples[index].push(sample);
                done += 1.0;
            }
        }
        let results = systems.iter().zip(&samples);
        report.cells.extend(results.map(|(system, samples)| cell_report(cell, &system.name, samples)));
    }
    for (system, pressure) in systems.iter().zip(&pressure) {
        pressure.add_notes(&system.name, report.machine.cores, &mut report.notes);
    }
    report.expectations = common.expectations.iter().map(|condition| condition.validate(&report)).collect();
    Ok(report)
}

fn cell_report(cell: &Cell, system: &str, samples: &[Sample]) -> CellReport {
    let mut metrics: Vec<Metric> = Vec::new();
    for (metric, _) in samples.iter().flat_map(|sample| &sample.figures) {
        if !metrics.contains(metric) {
            metrics.push(*metric);
        }
    }
    let values = |metric| {
        let of = |sample: &Sample| sample.figures.iter().find(|(m, _)| *m == metric).map(|(_, value)| *value);
        samples.iter().filter_map(of).collect::<Vec<f64>>()
    };
    let figures = metrics.into_iter().filter_map(|metric| Measured::of(metric, values(metric)));
    CellReport {
        scenario: cell.scenario.into(),
        axis: cell.axis,
        at: cell.at,
        system: system.into(),
        figures: figures.collect(),
    }
}

/// The number of rounds in which something other than the system may have been the limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct SaturationCounts {
    rounds: usize,
    saturated: usize,
    full: usize,
}

impl SaturationCounts {
    /// Counts a round; `saturated` and `full` as in [`Sample`].
    pub(crate) fn add(&mut self, saturated: bool, full: bool) {
        self.rounds += 1;
        self.saturated += usize::from(saturated);
        self.full += usize::from(full);
    }

    pub(crate) fn add_notes(&self, system: &str, cores: usize, notes: &mut Vec<String>) {
        let Self { rounds, saturated, full } = self;
        if *saturated > 0 {
            notes.push(format!(
                "{system}: the load generator was saturated in {saturated} of {rounds} rounds (a thread had no time \
                 left); the system may be faster than shown."
            ));
        }
        if *full > 0 {
            notes.push(format!(
                "{system}: all {cores} cores were busy in {full} of {rounds} rounds; the generator and the system \
                 took time from each other."
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::arguments::tests::common;
    use super::*;
    use crate::uri::Uri;
    use crate::watched::Watched;

    fn systems() -> Vec<System> {
        let system = |name: &str| System {
            name: name.into(),
            uri: Uri::parse("amqp://u:secret@h").unwrap(),
            watched: Watched::default(),
        };
        vec![system("old"), system("new")]
    }

    #[test]
    fn systems_take_turns_round_by_round_and_expectations_are_judged() {
        let cells = [
            Cell { scenario: "quiet", axis: Axis::Workers, at: 1.0 },
            Cell { scenario: "loud", axis: Axis::Workers, at: 2.0 },
        ];
        let systems = systems();
        let outline =
            StudyInfo { name: "test", title: "A test", parameters: vec![], cells: &cells, systems: &systems };
        let common =
            common(&["--rounds", "3", "--expect", "loud@2: ratio(new/old)>=10", "--expect", "rate>5"]);
        let (mut order, mut view) = (Vec::new(), Vec::new());
        let report = run(
            outline,
            &common,
            &mut |done, text| view.push((done, text.to_owned())),
            |_| Ok("Fake 1".into()),
            |cell, system| {
                order.push((cell.scenario, system));
                let rate = if system == 0 { 1.0 } else { 10.0 } * order.len() as f64;
                Ok(Sample { figures: vec![(Metric::Rate, rate)], full: system == 1, saturated: false })
            },
        )
        .unwrap();
        assert_eq!(order[..4], [("quiet", 0), ("quiet", 1), ("quiet", 0), ("quiet", 1)]);
        assert_eq!(order.len(), 12);
        assert_eq!(view[3], (0.25, "new: quiet, 1 workers".into()));
        let quiet_old = report.cells[0].summary(Metric::Rate).unwrap();
        assert_eq!((quiet_old.min, quiet_old.median, quiet_old.max), (1.0, 3.0, 5.0));
        assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
        assert!(report.notes[0].contains("new: all") && report.notes[0].contains("6 of 6"));
        assert_eq!(report.expectations.iter().map(|v| v.met).collect::<Vec<_>>(), [true, false]);
        assert!(!serde_json::to_string(&report).unwrap().contains("secret"));
    }

    #[test]
    fn an_expectation_of_a_cell_that_is_not_measured_is_refused_before_the_run() {
        let systems = systems();
        for text in ["silent: rate>1", "quiet@7: rate>1", "ratio(new/none)>1"] {
            let cells = [Cell { scenario: "quiet", axis: Axis::Workers, at: 1.0 }];
            let error = common(&["--expect", text]).check_cells(&cells, &systems).unwrap_err();
            assert!(error.is_usage(), "{text}");
        }
    }
}
