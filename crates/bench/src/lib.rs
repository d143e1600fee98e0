//! The load generator: measures any AMQP 0-9-1 system by URI, or several in one run, interleaved.
//!
//! - `stream`: producers and consumers, the everyday workload. `routing`: the cost of many queues and
//!   bindings. `websockets`: the cost of very many idle WebSocket connections. `publish`: ways of
//!   publishing. `proxy`: a connection for each message, to a broker far away. `strategies`: connections and
//!   channels of many workers. `churn`: opening and closing objects.
//! - `study`: the common parts of studies: turns, tables, plots, pages. `link`: simulates a broker far
//!   away. `sink`: a broker that stores nothing.
//! - `stats`, `latency`: the statistics behind the figures; `report`: the reports; `expect` and
//!   `metric`: conditions on them.
//!
//! Invariants: the report says when the generator itself was the bottleneck; every message of 8 bytes or more
//! is numbered, so losses, duplicates and reordering are counted; latency at a fixed rate counts from when a
//! message was due.
//!
//! Must never be added: knowledge of a particular server's internals.

mod all;
mod churn;
mod client;
mod error;
mod expect;
mod latency;
mod ledger;
mod link;
mod machine;
mod mailbox;
mod metric;
mod one_shot;
mod process;
mod proxy;
mod publish;
mod random;
mod report;
mod routing;
mod sink;
mod stats;
mod strategies;
mod stream;
mod study;
mod uri;
mod usage;
mod watched;
mod websockets;

use std::io::{self, IsTerminal};

use all::AllArguments;
use churn::ChurnArguments;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

pub use error::Error;
use link::LinkArguments;
use proxy::ProxyArguments;
use publish::PublishArguments;
use routing::RoutingArguments;
use sink::SinkArguments;
use strategies::StrategiesArguments;
use stream::{StreamArguments, watch_as_study};
use study::Watch;
use study::arguments::{Common, OutputArguments};
use study::compare::CompareArguments;
use study::report::StudyReport;
use study::results::Results;
use websockets::WebSocketsArguments;

/// Measure AMQP systems
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(subcommand)]
    study: StudyCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum StudyCommand {
    Stream(StreamArguments),
    Routing(RoutingArguments),
    Websockets(WebSocketsArguments),
    Publish(PublishArguments),
    Proxy(ProxyArguments),
    Strategies(StrategiesArguments),
    Churn(ChurnArguments),
    Link(LinkArguments),
    Sink(SinkArguments),
    All(AllArguments),
    Compare(CompareArguments),
}

/// The outcome of a completed run.
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
/// [`Error::is_usage`] distinguishes a wrong command line (exit code 2) from a run that failed (exit code 1).
pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    match arguments.study {
        StudyCommand::Stream(arguments) => run_stream(&arguments),
        StudyCommand::Routing(arguments) => run_routing(&arguments),
        StudyCommand::Websockets(arguments) => run_websockets(&arguments),
        StudyCommand::Proxy(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| proxy::run(&plan, watch))
        }
        StudyCommand::Publish(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| publish::run(&plan, watch))
        }
        StudyCommand::Strategies(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| strategies::run(&plan, watch))
        }
        StudyCommand::Churn(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| churn::run(&plan, watch))
        }
        StudyCommand::All(arguments) => {
            let bar = progress_bar();
            let results = arguments.run(&mut watch(&bar));
            bar.finish_and_clear();
            arguments.write(results?)
        }
        StudyCommand::Compare(arguments) => arguments.run().map(|()| Outcome::Met),
        StudyCommand::Link(arguments) => arguments.run(),
        StudyCommand::Sink(arguments) => arguments.run().map(|()| Outcome::Met),
    }
}

fn run_stream(arguments: &StreamArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = progress_bar();
    let report = stream::run(&plan, watch_as_study(plan.rounds, &mut watch(&bar)));
    bar.finish_and_clear();
    written(Results::Stream(Box::new(report?)), &arguments.outputs)
}

fn run_routing(arguments: &RoutingArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = progress_bar();
    let report = routing::run(&plan, &mut watch(&bar));
    bar.finish_and_clear();
    written(Results::Routing(report?), &arguments.outputs)
}

fn run_websockets(arguments: &WebSocketsArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = progress_bar();
    let report = websockets::run(&plan, &mut watch(&bar));
    bar.finish_and_clear();
    written(Results::WebSockets(report?), &arguments.outputs)
}

/// Runs a study of cells with a progress bar, and writes its results.
fn run_study(
    common: &Common,
    study: impl FnOnce(Watch<'_>) -> Result<StudyReport, Error>,
) -> Result<Outcome, Error> {
    let bar = progress_bar();
    let report = study(&mut watch(&bar));
    bar.finish_and_clear();
    written(Results::Cells(report?), &common.outputs)
}

fn written(results: Results, outputs: &OutputArguments) -> Result<Outcome, Error> {
    results.write(outputs)?;
    Ok(if results.met() { Outcome::Met } else { Outcome::NotMet })
}

/// Shows a study's progress on a progress bar.
fn watch(bar: &ProgressBar) -> impl FnMut(f64, &str) {
    |done, doing| {
        bar.set_position((done * STEPS as f64) as u64);
        bar.set_message(doing.to_owned());
    }
}

/// Steps of a progress bar.
const STEPS: u64 = 1000;

fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}");
    ProgressBar::new(STEPS).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
