//! `bench stream`: the everyday load generator. Producers and consumers on queues, as fast as they go or at a fixed
//! rate, on one system or several in turn.

pub(crate) mod arguments;
mod confirms;
mod consumer;
pub(crate) mod content;
mod disk;
mod message;
mod pacer;
pub(crate) mod page;
mod producer;
mod round;
pub(crate) mod schedule;
mod shared;
pub(crate) mod table;
mod topology;
mod window;
pub(crate) mod workload;

#[cfg(test)]
pub(crate) mod fake_broker;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::machine::Machine;
use crate::metric::{Fate, Metric, grouped};
use crate::report::{Round, StreamReport, StreamSystem};
use crate::study::{SaturationCounts, Watch};
use arguments::DISK;
pub(crate) use arguments::{StreamArguments, StreamPlan};
pub(crate) use round::Progress;
pub(crate) use workload::Workload;

/// Runs all rounds of a plan, one system after the other in each and the disk last, and evaluates the
/// expectations. `watch` receives the round (from 0), the system's name, and its progress.
///
/// # Errors
/// The first failure of a system ends the run.
pub(crate) fn run(
    plan: &StreamPlan,
    mut watch: impl FnMut(usize, &str, Progress),
) -> Result<StreamReport, Error> {
    let mut systems: Vec<StreamSystem> = plan
        .systems
        .iter()
        .map(|system| StreamSystem {
            name: system.name.clone(),
            uri: system.uri.to_string(),
            server: String::new(),
            pids: system.watched.pids.clone(),
            rounds: Vec::new(),
            summary: Vec::new(),
        })
        .collect();
    let mut disk = plan.disk.as_deref().map(disk::report);
    for number in 0..plan.rounds {
        for (system, report) in plan.systems.iter().zip(&mut systems) {
            let mut watch = |progress| watch(number, &system.name, progress);
            let (round, server) =
                round::run(system, &plan.workload, &mut watch).map_err(Error::of(&system.name))?;
            report.rounds.push(round);
            report.server = server;
        }
        if let (Some(directory), Some(report)) = (&plan.disk, &mut disk) {
            let round = disk::run(directory, &plan.workload, &mut |progress| watch(number, DISK, progress))
                .map_err(Error::of(DISK))?;
            report.rounds.push(round);
        }
    }
    systems.extend(disk);
    systems.iter_mut().for_each(StreamSystem::summarise);
    let machine = Machine::describe();
    let notes = notes(&plan.workload, &systems, machine.cores);
    let mut report =
        StreamReport { machine, workload: plan.workload.clone(), systems, notes, expectations: Vec::new() };
    report.expectations = plan.expectations.iter().map(|expectation| expectation.validate(&report)).collect();
    Ok(report)
}

/// Reports the progress of a run to a progress display.
pub(crate) fn watch_as_study<'w>(rounds: usize, watch: Watch<'w>) -> impl FnMut(usize, &str, Progress) + 'w {
    move |round, system, Progress { published, consumed, done }| {
        let (published, consumed) = (grouped(published as f64), grouped(consumed as f64));
        let text = format!("{system}: {published} published, {consumed} consumed");
        watch((round as f64 + done.min(1.0)) / rounds as f64, &text);
    }
}

/// Notes that a reader needs to interpret the figures.
fn notes(workload: &Workload, systems: &[StreamSystem], cores: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if workload.consumers > 0 && workload.producers > 0 {
        notes.push("The end-to-end rate is the rate at which messages were consumed.".to_owned());
    }
    if workload.is_coupled() {
        notes.push(format!(
            "Publishers waited while {} messages were under way (--limit-backlog), so that the queue could not grow \
             without bound.",
            workload.limit_backlog
        ));
    }
    if !workload.bodies.is_empty() {
        notes.push(
            "Bodies come from files, so messages are not numbered: repeated ones are not told from others, and the time \
             from publish to delivery is not known."
                .to_owned(),
        );
    }
    if workload.is_copied() {
        notes.push(
            "A message may reach several queues: repeated deliveries are not counted, and a message is lost if it arrived from \
             none of them."
                .to_owned(),
        );
    }
    if workload.rate.is_some() {
        notes.push("Latency counts from when a message was due, not from when it could be sent.".to_owned());
    }
    for system in systems {
        let unsent = system.figure(Metric::Count(Fate::Unsent)).unwrap_or_default();
        if unsent > 0.0 {
            notes.push(format!(
                "{}: {} messages were due before the end and not sent; each counts with the time from then to the end, the \
                 least that it could have taken.",
                system.name,
                grouped(unsent)
            ));
        }
    }
    systems.iter().for_each(|system| load_notes(system, cores, &mut notes));
    notes
}

/// Cores that other programs may use before the reader is warned: measuring error, and the kernel's own threads.
const NEGLIGIBLE_CORES: f64 = 0.2;

/// Notes whether something other than the system limited its rounds.
fn load_notes(system: &StreamSystem, cores: usize, notes: &mut Vec<String>) {
    let mut pressure = SaturationCounts::default();
    for Round { generator, .. } in &system.rounds {
        pressure.add(generator.is_saturated(), generator.machine_is_full(cores));
    }
    pressure.add_notes(&system.name, cores, notes);
    let others = system.rounds.iter().filter_map(|round| round.cores_used_by_others(cores));
    let others = others.fold(0.0, f64::max);
    if others > NEGLIGIBLE_CORES {
        notes.push(format!(
            "{}: other programs used up to {others:.1} of {cores} cores; measure again on a quiet machine.",
            system.name
        ));
    }
}
