//! `bench strategies`: many workers that publish, each to a queue of its own: over one connection with a
//! channel for each, over a connection each, or over a pool of channels.
//!
//! Every message is one write, as in client libraries; workers that share a connection take turns. A round
//! ends when the system has answered, on every channel, a request sent after all messages.

mod arguments;
mod channels;
#[cfg(test)]
mod tests;

use std::sync::Barrier;
use std::thread;

use crate::error::{ClientError, Error};
use crate::mailbox::Mailbox;
use crate::metric::{Fate, Metric};
use crate::process;
use crate::study::meter::{IdleUsage, Meter};
use crate::study::report::{Parameter, StudyReport};
use crate::study::systems::System;
use crate::study::{Sample, StudyInfo, Watch, ask, run as run_study, worker_cells};
pub(crate) use arguments::{StrategiesArguments, StrategiesPlan, Strategy};
use channels::{SharedChannel, WorkerChannels};

/// Runs the study.
pub(crate) fn run(plan: &StrategiesPlan, watch: Watch<'_>) -> Result<StudyReport, Error> {
    let cells = worker_cells(plan.strategies.iter().map(|strategy| strategy.name()), &plan.workers);
    let outline = StudyInfo {
        name: "strategies",
        title: "One connection, many, or a pool of channels",
        parameters: vec![
            Parameter::new("messages of each worker", plan.messages),
            Parameter::new("body", format!("{} bytes", plan.body.len())),
            Parameter::new("channels of the pool", plan.pool),
        ],
        cells: &cells,
        systems: &plan.systems,
    };
    let mut report = run_study(outline, &plan.common, watch, ask, |cell, index| {
        let system = &plan.systems[index];
        round(plan, system, Strategy::named(cell.scenario), cell.at as usize).map_err(Error::of(&system.name))
    })?;
    report.notes.push(
        "Nobody consumes; the rate counts until the system has answered, on every channel, a request behind all \
         messages. What arrived is then counted in the queues."
            .into(),
    );
    Ok(report)
}

/// One round: each worker sends its messages to its queue.
fn round(
    plan: &StrategiesPlan,
    system: &System,
    strategy: Strategy,
    workers: usize,
) -> Result<Sample, ClientError> {
    let queues = (0..workers).map(|_| Mailbox::open(&system.uri)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<&str> = queues.iter().map(Mailbox::name).collect();
    let channels = WorkerChannels::open(&system.uri, strategy, workers, plan.pool)?;
    let processes = IdleUsage::none(&system.watched);
    let no_broker = IdleUsage::default();
    let meter = Meter::start(&processes, &no_broker);
    let busiest = send(plan, &channels, &names)?;
    channels.wait_until_processed()?;
    let seconds = meter.seconds();
    let sent = workers as u64 * plan.messages;
    let mut sample = meter.finish(sent, busiest / seconds);
    sample.add(Metric::Rate, sent as f64 / seconds);
    channels.close();
    let mut arrived = 0;
    for mut queue in queues {
        arrived += queue.empty(plan.messages)?;
        queue.close()?;
    }
    sample.add(Metric::Count(Fate::Lost), sent.saturating_sub(arrived) as f64);
    Ok(sample)
}

/// Has all workers send all messages; returns the CPU time of the busiest one, in seconds.
fn send(plan: &StrategiesPlan, channels: &WorkerChannels, queues: &[&str]) -> Result<f64, ClientError> {
    let start = Barrier::new(queues.len());
    let work = |number: usize, queue: &str| -> Result<f64, ClientError> {
        let mut message = Vec::new();
        start.wait();
        for _ in 0..plan.messages {
            channels
                .with(number, |channel: &SharedChannel| channel.publish(queue, &plan.body, &mut message))?;
        }
        Ok(process::own_thread_id().map_or(0.0, process::thread_cpu_seconds))
    };
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = queues
            .iter()
            .enumerate()
            .map(|(number, queue)| scope.spawn(move || work(number, queue)))
            .collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().map_err(|_| ClientError::Panicked("worker")).flatten()
        };
        workers.into_iter().map(join).try_fold(0.0, |most: f64, cpu| Ok(most.max(cpu?)))
    })
}
