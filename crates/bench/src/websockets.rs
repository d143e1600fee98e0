//! `bench websockets`: the cost of very many WebSocket connections that are nearly idle, like those of browsers.
//!
//! Each connection upgrades, logs in, subscribes to its own topic or queue, and publishes a message to it about once
//! a minute. Memory is the growth of the system's processes; CPU is their use while there are only these messages and
//! heartbeats. At the end all connections are dropped at once, and ten others measure whether they are affected.

pub(crate) mod arguments;
pub(crate) mod error;
mod fleet;
mod kernel;
mod member;
pub(crate) mod page;
pub(crate) mod report;
mod session;
mod table;
mod tally;
pub(crate) mod target;
mod wire;

use crate::error::{ClientError, Error};
use crate::machine::Machine;
use crate::study::Watch;
pub(crate) use arguments::{WebSocketsArguments, WebSocketsPlan};
use page::as_study;
use report::{WebSocketsReport, WebSocketsSystem};

/// Measures the systems of a plan, which take turns round by round: two fleets at once would have half of the
/// descriptors each. `watch` receives the share that is done, and a description of the current step.
///
/// # Errors
/// The first system that accepts no connection ends the run.
pub(crate) fn run(plan: &WebSocketsPlan, watch: Watch<'_>) -> Result<WebSocketsReport, Error> {
    let mut systems = Vec::new();
    let all = (plan.settings.rounds * plan.systems.len()) as f64;
    for round in 1..=plan.settings.rounds {
        for system in &plan.systems {
            let done = systems.len() as f64;
            let mut watch = |share: f64, doing: &str| watch((done + share) / all, doing);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(ClientError::io("starting the runtime"));
            let runtime = runtime.map_err(Error::of(&system.name))?;
            let measured = runtime.block_on(fleet::measure(system, &plan.settings, &mut watch));
            systems.push(WebSocketsSystem { round, ..measured.map_err(Error::of(&system.name))? });
        }
    }
    let (machine, settings) = (Machine::describe(), plan.settings.clone());
    let mut report =
        WebSocketsReport { machine, settings, systems, notes: Vec::new(), expectations: Vec::new() };
    let study = as_study(&report);
    report.expectations = plan.expectations.iter().map(|condition| condition.validate(&study)).collect();
    Ok(report)
}
