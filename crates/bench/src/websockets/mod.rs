//! `bench websockets`: what very many WebSocket connections cost a server that do next to nothing, as browsers' do.
//!
//! Each connection upgrades, logs in, subscribes to a topic or queue of its own, and publishes a message to it about once
//! a minute. Memory is what the processes of the system grew by; CPU is what they use while nothing but these messages and
//! heartbeats goes on. At the end all of them are dropped at once, and ten others tell whether they noticed.

pub mod arguments;
mod fleet;
mod kernel;
mod member;
pub mod report;
mod session;
mod table;
pub mod target;
mod wire;

use crate::error::{ClientError, Error};
use crate::machine::Machine;
use crate::study::Watch;
use crate::study::websockets::as_study;
pub(crate) use arguments::HELD;
pub use arguments::{Plan, WebSocketsArguments};
use report::{SystemReport, WebSocketsReport};
pub(crate) use table::{drops as drops_table, levels as levels_table, render};

/// Measures the systems of a plan, which take turns round by round: with two fleets at once, both would have half of the
/// descriptors. `watch` is told the share that is done, and what is being done.
///
/// # Errors
/// The first system that does not take one connection ends the run.
pub fn run(plan: &Plan, watch: Watch<'_>) -> Result<WebSocketsReport, Error> {
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
            systems.push(SystemReport { round, ..measured.map_err(Error::of(&system.name))? });
        }
    }
    let (machine, settings) = (Machine::describe(), plan.settings.clone());
    let mut report =
        WebSocketsReport { machine, settings, systems, notes: Vec::new(), expectations: Vec::new() };
    let study = as_study(&report);
    report.expectations = plan.expectations.iter().map(|condition| condition.judge(&study)).collect();
    Ok(report)
}
