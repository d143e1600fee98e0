//! `bench routing`: the cost of creating, using and deleting queues and bindings, from few to very many.
//!
//! For each level of bindings per queue, the number of queues grows in powers of the base, each queue bound with
//! the same random keys; then the queues are deleted again, newest first. Systems take turns level by level.

pub(crate) mod arguments;
mod bulk;
pub(crate) mod fit;
mod keys;
mod level;
pub(crate) mod page;
pub(crate) mod report;
mod session;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::Path;

use crate::error::{ClientError, Error};
use crate::machine::Machine;
use crate::study::files::{self, make_dir};
use crate::study::report::SystemAbout;
use crate::study::systems::System;
pub(crate) use arguments::{RoutingArguments, RoutingPlan};
use arguments::{RoutingStudy, StudiedExchange};
use level::{LevelOutcome, LevelTask};
use report::{RoutingReport, Series};
use session::ConfirmedChannel;

/// The channel that all requests use.
const CHANNEL: u16 = 1;

/// Runs all studies of a plan. `watch` receives the share that is done, and a description of the current step.
///
/// # Errors
/// The first failure of a system ends the run; objects declared by then remain, except for exclusive queues.
pub(crate) fn run(plan: &RoutingPlan, watch: &mut dyn FnMut(f64, &str)) -> Result<RoutingReport, Error> {
    let mut watch = Steps { watch, done: 0, all: steps(plan) };
    let systems = plan.systems.iter().map(describe).collect::<Result<_, _>>()?;
    let mut report = RoutingReport {
        machine: Machine::describe(),
        settings: plan.settings,
        systems,
        series: Vec::new(),
        growth: Vec::new(),
        bulk: Vec::new(),
        notes: Vec::new(),
        expectations: Vec::new(),
    };
    for study in &plan.studies {
        match study {
            RoutingStudy::Scaling => {
                for &kind in &plan.kinds {
                    scale(plan, kind, &mut report, &mut watch)?;
                }
            }
            RoutingStudy::Deletion => {
                for &kind in &plan.kinds {
                    in_turn(plan, &mut report, |system| {
                        watch.step(&format!("{}: deleting a queue, {} exchange", system.name, kind.name()));
                        bulk::deletion(system, kind, plan.settings.bulk)
                    })?;
                }
            }
            RoutingStudy::Exclusive => in_turn(plan, &mut report, |system| {
                watch.step(&format!("{}: ending a connection with exclusive queues", system.name));
                bulk::exclusive(system, plan.settings.bulk)
            })?,
        }
    }
    report.growth = if report.series.is_empty() {
        Vec::new()
    } else {
        report::growth(&report.series, &plan.kinds, &report.systems)
    };
    let study = page::as_study(&report);
    report.expectations = plan.expectations.iter().map(|condition| condition.validate(&study)).collect();
    Ok(report)
}

/// The number of levels and deletions, on all systems.
fn steps(plan: &RoutingPlan) -> usize {
    let one = |study: &RoutingStudy| match study {
        RoutingStudy::Scaling => plan.kinds.len() * plan.levels.len(),
        RoutingStudy::Deletion => plan.kinds.len(),
        RoutingStudy::Exclusive => 1,
    };
    plan.studies.iter().map(one).sum::<usize>() * plan.systems.len()
}

/// Reports progress to a display.
struct Steps<'w> {
    watch: &'w mut dyn FnMut(f64, &str),
    /// The number of steps begun.
    done: usize,
    all: usize,
}

impl Steps<'_> {
    fn step(&mut self, doing: &str) {
        self.done += 1;
        self.report_progress(doing);
    }

    fn report_progress(&mut self, doing: &str) {
        (self.watch)(self.done.saturating_sub(1) as f64 / self.all.max(1) as f64, doing);
    }
}

/// Connects once, so that a system that is unreachable is noticed before anything is measured.
fn describe(system: &System) -> Result<SystemAbout, Error> {
    let session = ConfirmedChannel::open(&system.uri, false).map_err(Error::of(&system.name))?;
    let about =
        SystemAbout { name: system.name.clone(), uri: system.uri.to_string(), server: session.server() };
    session.close();
    Ok(about)
}

fn scale(
    plan: &RoutingPlan,
    kind: StudiedExchange,
    report: &mut RoutingReport,
    watch: &mut Steps<'_>,
) -> Result<(), Error> {
    let mut expected: HashMap<&str, f64> = HashMap::new();
    let mut left_out: HashMap<&str, Vec<String>> = HashMap::new();
    for level in &plan.levels {
        for system in plan.systems.iter() {
            let expected = expected.entry(&system.name).or_default();
            let task = LevelTask { plan, system, kind, level, expected: *expected };
            watch.step(&system.name);
            let outcome = task.run(|queues| {
                let (name, kind, bindings) = (&system.name, kind.name(), level.bindings);
                watch.report_progress(&format!(
                    "{name}: {kind}, {bindings} bindings per queue, {queues} queues"
                ));
            });
            let LevelOutcome { points, skipped, expected: next } =
                outcome.map_err(Error::of(&system.name))?;
            *expected = next;
            if let Some(queues) = skipped {
                let what = format!("from {queues} queues with {} bindings each", level.bindings);
                left_out.entry(&system.name).or_default().push(what);
            }
            if !points.is_empty() {
                let (level, bindings, system) = (level.exponent, level.bindings, system.name.clone());
                report.series.push(Series { exchange: kind, level, bindings, system, points });
            }
        }
    }
    for system in plan.systems.iter() {
        if let Some(points) = left_out.get(system.name.as_str()) {
            report.notes.push(format!(
                "{}, {} exchange: left out, because it would probably have taken longer than --limit-seconds: {}.",
                system.name,
                kind.name(),
                points.join("; "),
            ));
        }
    }
    Ok(())
}

fn in_turn(
    plan: &RoutingPlan,
    report: &mut RoutingReport,
    mut study: impl FnMut(&System) -> Result<report::Bulk, ClientError>,
) -> Result<(), Error> {
    for system in plan.systems.iter() {
        let result = study(system);
        report.bulk.push(result.map_err(Error::of(&system.name))?);
    }
    Ok(())
}

/// Writes the data of each figure for each system as text, and its plot as SVG, into a directory, which is created.
///
/// # Errors
/// A failure of the file system.
pub(crate) fn write_figures(report: &RoutingReport, directory: &Path) -> Result<(), Error> {
    make_dir(directory)?;
    let write = |name: String, text: String| files::write(&directory.join(name), &text);
    for plot in page::plots(report) {
        let page::Plot { kind, figure, systems } = &plot;
        for (system, series) in systems {
            let name = format!("{}-{}-{system}.txt", kind.name(), figure.name());
            write(name, report::data_text(series, *figure))?;
        }
        let svg = plot.chart().svg_file().map_err(io::Error::other).map_err(files::failed(directory))?;
        write(format!("{}-{}.svg", kind.name(), figure.name()), svg)?;
    }
    Ok(())
}
