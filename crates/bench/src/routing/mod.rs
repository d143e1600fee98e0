//! `bench routing`: what it costs to create, use and delete queues and bindings, when there are few and when there
//! are very many.
//!
//! For each level of bindings per queue the number of queues grows through the powers of the base, each queue bound
//! with the same random keys; then they are deleted again, the latest first. Systems take turns level by level.

pub mod arguments;
mod bulk;
pub mod fit;
mod keys;
mod level;
mod plot;
pub mod report;
mod session;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::error::{ClientError, Error};
use crate::machine::Machine;
use crate::stream::System;
use crate::study::report::SystemAbout;
use arguments::{Kind, Study};
pub use arguments::{Plan, RoutingArguments};
use level::{Outcome, Task};
use report::{Figure, RoutingReport, Series};
use session::Session;
pub(crate) use table::render;

/// The channel that everything happens on.
const CHANNEL: u16 = 1;

/// Makes all studies of a plan. `watch` is told what is being done, in words.
///
/// # Errors
/// The first failure of a system ends the run; what it had declared by then stays, except for exclusive queues.
pub fn run(plan: &Plan, mut watch: impl FnMut(&str)) -> Result<RoutingReport, Error> {
    let systems = plan.systems.iter().map(describe).collect::<Result<_, _>>()?;
    let mut report = RoutingReport {
        machine: Machine::describe(),
        settings: plan.settings,
        systems,
        series: Vec::new(),
        growth: Vec::new(),
        bulk: Vec::new(),
        notes: Vec::new(),
    };
    for study in &plan.studies {
        match study {
            Study::Scaling => {
                for &kind in &plan.kinds {
                    scale(plan, kind, &mut report, &mut watch)?;
                }
            }
            Study::Deletion => {
                for &kind in &plan.kinds {
                    in_turn(plan, &mut report, |system| {
                        watch(&format!("{}: deleting a queue, {} exchange", system.name, kind.name()));
                        bulk::deletion(system, kind, plan.settings.bulk)
                    })?;
                }
            }
            Study::Exclusive => in_turn(plan, &mut report, |system| {
                watch(&format!("{}: ending a connection with exclusive queues", system.name));
                bulk::exclusive(system, plan.settings.bulk)
            })?,
        }
    }
    report.growth = if report.series.is_empty() {
        Vec::new()
    } else {
        report::growth(&report.series, &plan.kinds, &report.systems)
    };
    Ok(report)
}

/// Connects once, so that a system that is not there is known before anything is measured.
fn describe(system: &System) -> Result<SystemAbout, Error> {
    let session = Session::open(&system.uri, false).map_err(failure_of(system))?;
    let about =
        SystemAbout { name: system.name.clone(), uri: system.uri.to_string(), server: session.server() };
    session.close();
    Ok(about)
}

fn failure_of(system: &System) -> impl FnOnce(ClientError) -> Error {
    |cause| Error::System { system: system.name.clone(), cause }
}

fn scale(
    plan: &Plan,
    kind: Kind,
    report: &mut RoutingReport,
    watch: &mut impl FnMut(&str),
) -> Result<(), Error> {
    let mut expected: HashMap<&str, f64> = HashMap::new();
    let mut left_out: HashMap<&str, Vec<String>> = HashMap::new();
    for level in &plan.levels {
        for system in &plan.systems {
            let expected = expected.entry(&system.name).or_default();
            let task = Task { plan, system, kind, level, expected: *expected };
            let outcome = task.run(|queues| {
                let (name, kind, bindings) = (&system.name, kind.name(), level.bindings);
                watch(&format!("{name}: {kind}, {bindings} bindings per queue, {queues} queues"));
            });
            let Outcome { points, skipped, expected: next } = outcome.map_err(failure_of(system))?;
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
    for system in &plan.systems {
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
    plan: &Plan,
    report: &mut RoutingReport,
    mut study: impl FnMut(&System) -> Result<report::Bulk, ClientError>,
) -> Result<(), Error> {
    for system in &plan.systems {
        let result = study(system);
        report.bulk.push(result.map_err(failure_of(system))?);
    }
    Ok(())
}

/// Writes the data of each figure for each system as text, and its plot as SVG, into a folder, which is made.
///
/// # Errors
/// Of the file system.
pub fn write_figures(report: &RoutingReport, folder: &Path) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_string_lossy().into_owned();
        move |cause: io::Error| Error::Report { path, cause }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let write = |name: String, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(failed(&path))
    };
    let mut kinds: Vec<Kind> = report.series.iter().map(|series| series.exchange).collect();
    kinds.dedup();
    for kind in kinds {
        for figure in Figure::ALL {
            let mut panels = Vec::new();
            for system in &report.systems {
                let of = |series: &&Series| series.exchange == kind && series.system == system.name;
                let series: Vec<&Series> = report.series.iter().filter(of).collect();
                let name = format!("{}-{}-{}.txt", kind.name(), figure.name(), system.name);
                write(name, report::data_text(&series, figure))?;
                panels.push((system.name.as_str(), series));
            }
            let title = format!("{} exchange", kind.name());
            let svg = plot::svg(&title, figure, &panels).map_err(io::Error::other);
            let name = format!("{}-{}.svg", kind.name(), figure.name());
            write(name, svg.map_err(failed(folder))?)?;
        }
    }
    Ok(())
}
