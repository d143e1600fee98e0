//! The load generator: measures any AMQP 0-9-1 system by URI, or several in one run, interleaved.
//!
//! - [`stream`]: producers and consumers, the everyday workload. [`routing`]: what many queues and bindings cost.
//!   [`websockets`]: what very many idle WebSocket connections cost.
//!   `publish`: ways of publishing. `proxy`: a connection for each message, to a broker far away. `churn`: what is
//!   opened and closed.
//! - [`study`]: what studies share: turns, tables, plots, pages. [`link`]: makes a broker far away.
//! - [`stats`], [`latency`]: what the figures mean;
//!   [`report`]: where they end up; [`expect`] and [`metric`]: conditions on them.
//!
//! What always holds: the report says when the generator itself was the bottleneck; every message of 8 bytes or more
//! is numbered, so losses, duplicates and reordering are counted; latency at a fixed rate counts from when a message
//! was due.
//!
//! What must never be added: knowledge of a particular server's internals.

mod churn;
mod client;
pub mod error;
pub mod expect;
pub mod latency;
mod ledger;
pub mod link;
pub mod machine;
mod mailbox;
pub mod metric;
mod one_shot;
mod process;
mod proxy;
mod publish;
mod random;
pub mod report;
pub mod routing;
pub mod stats;
pub mod stream;
pub mod study;
mod table;
pub mod uri;
pub mod websockets;

use std::io::{self, IsTerminal};

use churn::ChurnArguments;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

pub use error::Error;
use link::LinkArguments;
use metric::grouped;
use proxy::ProxyArguments;
use publish::PublishArguments;
use routing::RoutingArguments;
use stream::{Progress, StreamArguments};
use study::Watch;
use study::arguments::Common;
use study::compare::CompareArguments;
use study::files::{write_report, write_study};
use study::report::StudyReport;
use websockets::WebSocketsArguments;

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
    Websockets(WebSocketsArguments),
    Publish(PublishArguments),
    Proxy(ProxyArguments),
    Churn(ChurnArguments),
    Link(LinkArguments),
    Compare(CompareArguments),
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
        Study::Websockets(arguments) => run_websockets(&arguments),
        Study::Proxy(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| proxy::run(&plan, watch))
        }
        Study::Publish(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| publish::run(&plan, watch))
        }
        Study::Churn(arguments) => {
            let plan = arguments.plan()?;
            run_study(&plan.common, |watch| churn::run(&plan, watch))
        }
        Study::Compare(arguments) => arguments.run().map(|()| Outcome::Met),
        Study::Link(arguments) => arguments.run().map(|()| Outcome::Met),
    }
}

fn run_stream(arguments: &StreamArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = progress_bar(plan.rounds as u64 * STEPS as u64);
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

fn run_websockets(arguments: &WebSocketsArguments) -> Result<Outcome, Error> {
    let plan = arguments.plan()?;
    let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let report = websockets::run(&plan, |doing| {
        bar.set_message(doing.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    let report = report?;
    write_report(&report, &websockets::render(&report), arguments.json.as_deref())?;
    Ok(Outcome::Met)
}

/// Runs a study of cells with a progress bar, and writes its results.
fn run_study(
    common: &Common,
    study: impl FnOnce(Watch<'_>) -> Result<StudyReport, Error>,
) -> Result<Outcome, Error> {
    let bar = progress_bar(STUDY_STEPS);
    let report = study(&mut |done, doing| {
        bar.set_position((done * STUDY_STEPS as f64) as u64);
        bar.set_message(doing.to_owned());
    });
    bar.finish_and_clear();
    let report = report?;
    write_study(&report, common)?;
    let met = report.expectations.iter().all(|verdict| verdict.met);
    Ok(if met { Outcome::Met } else { Outcome::NotMet })
}

/// Steps of a study's progress bar.
const STUDY_STEPS: u64 = 1000;
/// Steps of the progress bar per round.
const STEPS: f64 = 100.0;

fn progress_bar(steps: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
