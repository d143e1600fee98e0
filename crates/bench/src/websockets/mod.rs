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
pub use arguments::{Plan, WebSocketsArguments};
use report::WebSocketsReport;
pub(crate) use table::{drops as drops_table, levels as levels_table, render};

/// Measures the systems of a plan, one after the other. `watch` is told what is being done, in words.
///
/// # Errors
/// The first system that does not take one connection ends the run.
pub fn run(plan: &Plan, mut watch: impl FnMut(&str)) -> Result<WebSocketsReport, Error> {
    let mut systems = Vec::new();
    for system in &plan.systems {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ClientError::io("starting the runtime"));
        let runtime = runtime.map_err(Error::of(&system.name))?;
        let measured = runtime.block_on(fleet::measure(system, &plan.settings, &mut watch));
        systems.push(measured.map_err(Error::of(&system.name))?);
    }
    Ok(WebSocketsReport { machine: Machine::describe(), settings: plan.settings.clone(), systems })
}
