//! The load generator: measures any AMQP 0-9-1 system by URI, or several in one run, interleaved.
//!
//! - [`stream`]: producers and consumers, the everyday workload. [`routing`]: what many queues and bindings cost.
//! - [`stats`], [`latency`]: what the figures mean;
//!   [`report`]: where they end up; [`expect`] and [`metric`]: conditions on them.
//!
//! What always holds: the report says when the generator itself was the bottleneck; every message of 8 bytes or more
//! is numbered, so losses, duplicates and reordering are counted; latency at a fixed rate counts from when a message
//! was due.
//!
//! What must never be added: knowledge of a particular server's internals.

mod client;
pub mod error;
pub mod expect;
pub mod latency;
mod ledger;
pub mod machine;
pub mod metric;
mod process;
pub mod report;
pub mod routing;
pub mod stats;
pub mod stream;
mod table;
pub mod uri;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub use error::Error;
use metric::grouped;
use routing::RoutingArguments;
use stream::{Plan, Progress, StreamArguments};

/// Measure AMQP systems
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(subcommand)]
    study: Study,
}

#[derive(Debug, Clone, Subcommand)]
enum Study {
    Stream(StreamArguments),
    Routing(RoutingArguments),
}

/// How a run that could be finished ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All expectations were met, or there were none: exit code 0.
    Met,
    /// Some expectation was not met: exit code 1.
    NotMet,
}

/// Runs the study that the command line names, and prints its report on the standard output. Blocks; needs no
/// runtime.
///
/// # Errors
/// [`Error::is_usage`] tells a wrong command line (exit code 2) from a run that failed (exit code 1).
pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    match arguments.study {
        Study::Stream(arguments) => run_stream(&arguments),
        Study::Routing(arguments) => run_routing(&arguments),
    }
}

fn run_stream(arguments: &StreamArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = progress_bar(&plan);
    let report = stream::run(&plan, |round, system, Progress { published, consumed, done }| {
        bar.set_position(((round as f64 + done) * STEPS) as u64);
        let (published, consumed) = (grouped(published as f64), grouped(consumed as f64));
        bar.set_message(format!("{system}: {published} published, {consumed} consumed"));
    });
    bar.finish_and_clear();
    let report = report?;
    write_report(&report, &table::render(&report), arguments.json.as_deref())?;
    let met = report.expectations.iter().all(|verdict| verdict.met);
    Ok(if met { Outcome::Met } else { Outcome::NotMet })
}

fn run_routing(arguments: &RoutingArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let report = routing::run(&plan, |doing| {
        bar.set_message(doing.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(folder) = arguments.output.as_deref() {
        routing::write_figures(&report, folder)?;
    }
    write_report(&report, &routing::render(&report), arguments.json.as_deref())?;
    Ok(Outcome::Met)
}

/// Steps of the progress bar per round.
const STEPS: f64 = 100.0;

fn progress_bar(plan: &Plan) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}");
    ProgressBar::new(plan.rounds as u64 * STEPS as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The table goes to the standard output, unless the JSON does.
fn write_report(report: &impl Serialize, text: &str, json: Option<&Path>) -> Result<(), Error> {
    let failed = |path: &str| {
        let path = path.to_owned();
        move |cause: io::Error| Error::Report { path, cause }
    };
    let encode = || serde_json::to_string_pretty(report).map_err(io::Error::other);
    let to_stdout = |text: &str| io::stdout().lock().write_all(text.as_bytes());
    if json == Some(Path::new("-")) {
        return encode().and_then(|text| to_stdout(&(text + "\n"))).map_err(failed("the standard output"));
    }
    if let Some(path) = json {
        encode().and_then(|text| fs::write(path, text + "\n")).map_err(failed(&path.to_string_lossy()))?;
    }
    to_stdout(text).map_err(failed("the standard output"))
}
