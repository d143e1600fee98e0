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
mod arrivals;
mod churn;
mod client;
mod delivery_tracker;
mod error;
mod expect;
mod latency;
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
use study::arguments::OutputArguments;
use study::compare::CompareArguments;
use study::report::StudyReport;
use study::results::Results;
use websockets::WebSocketsArguments;

/// The command line of `leveret bench`: one of the studies, each a subcommand.
#[derive(Debug, Clone, Args)]
#[command(about = "Measure AMQP systems")]
pub struct Arguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum BenchCommand {
    #[command(flatten)]
    Study(Box<Study>),
    Link(LinkArguments),
    Sink(SinkArguments),
    All(AllArguments),
    Compare(CompareArguments),
}

#[derive(Debug, Clone, Subcommand)]
enum Study {
    Stream(Box<StreamArguments>),
    Routing(RoutingArguments),
    Websockets(WebSocketsArguments),
    Publish(PublishArguments),
    Proxy(ProxyArguments),
    Strategies(StrategiesArguments),
    Churn(ChurnArguments),
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
    match arguments.command {
        BenchCommand::Study(study) => {
            let (job, outputs) = study.job()?;
            let results = with_progress(job)?;
            results.write(&outputs)?;
            Ok(if results.met() { Outcome::Met } else { Outcome::NotMet })
        }
        BenchCommand::All(arguments) => {
            let found = with_progress(|watch| arguments.run(watch))?;
            arguments.write(found)
        }
        BenchCommand::Compare(arguments) => arguments.run().map(|()| Outcome::Met),
        BenchCommand::Link(arguments) => arguments.run(),
        BenchCommand::Sink(arguments) => arguments.run().map(|()| Outcome::Met),
    }
}

/// A study that is ready to run, with its arguments checked.
type Job = Box<dyn FnOnce(Watch<'_>) -> Result<Results, Error>>;

impl Study {
    /// Checks the arguments; also returns where the results go.
    fn job(self) -> Result<(Job, OutputArguments), Error> {
        Ok(match self {
            Self::Stream(arguments) => {
                let plan = arguments.plan()?;
                let job = move |watch: Watch<'_>| {
                    let report = stream::run(&plan, watch_as_study(plan.rounds, watch))?;
                    Ok(Results::Stream(Box::new(report)))
                };
                (Box::new(job), arguments.outputs)
            }
            Self::Routing(arguments) => {
                let plan = arguments.plan()?;
                (Box::new(move |watch| routing::run(&plan, watch).map(Results::Routing)), arguments.outputs)
            }
            Self::Websockets(arguments) => {
                let plan = arguments.plan()?;
                let job = move |watch: Watch<'_>| websockets::run(&plan, watch).map(Results::WebSockets);
                (Box::new(job), arguments.outputs)
            }
            Self::Publish(arguments) => (of_cells(arguments.plan()?, publish::run), arguments.common.outputs),
            Self::Proxy(arguments) => (of_cells(arguments.plan()?, proxy::run), arguments.common.outputs),
            Self::Strategies(arguments) => {
                (of_cells(arguments.plan()?, strategies::run), arguments.common.outputs)
            }
            Self::Churn(arguments) => (of_cells(arguments.plan()?, churn::run), arguments.common.outputs),
        })
    }
}

fn of_cells<P: 'static>(plan: P, run: fn(&P, Watch<'_>) -> Result<StudyReport, Error>) -> Job {
    Box::new(move |watch| run(&plan, watch).map(Results::Cells))
}

/// Runs something that shows its progress on a progress bar.
fn with_progress<T>(job: impl FnOnce(Watch<'_>) -> T) -> T {
    let bar = progress_bar();
    let outcome = job(&mut |done, doing| {
        bar.set_position((done * STEPS as f64) as u64);
        bar.set_message(doing.to_owned());
    });
    bar.finish_and_clear();
    outcome
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
