//! `bench publish`: compares the ways of publishing, with increasing numbers of publishers and with
//! increasing distance from the broker.

mod arguments;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use transport::HostAndPort;

use crate::arrivals::{Arrivals, watched};
use crate::error::{ClientError, Error};
use crate::link::{self, Link, LinkShape, resolve};
use crate::mailbox::Mailbox;
use crate::metric::{Fate, Metric};
use crate::one_shot::OneShotMessage;
use crate::proxy::through;
use crate::report::Round;
use crate::stream::content::MessageProperties;
use crate::stream::workload::{Acks, Length};
use crate::stream::{self, Workload};
use crate::study::managed_process::ManagedProcess;
use crate::study::meter::{IdleUsage, Meter};
use crate::study::report::{Axis, Parameter, StudyReport};
use crate::study::systems::System;
use crate::study::workers::WorkerConfig;
use crate::study::{Cell, Sample, StudyInfo, Watch, run as run_study};
use arguments::IntermediateProxy;
pub(crate) use arguments::{PublishArguments, PublishPlan, PublishStyle};

/// At the longest round trip, each publisher sends at least this many messages.
const FEWEST: u64 = 3;
/// The warm-up of publishers that stay connected, as a fraction (1 / n) of the measured time.
const WARMUP_SHARE: u32 = 4;

/// Runs the study.
pub(crate) fn run(plan: &PublishPlan, watch: Watch<'_>) -> Result<StudyReport, Error> {
    let cells = cells(plan);
    let opened = plan.systems.iter().map(|system| Bench::open(plan, system, None));
    let near = plan.near.iter().map(|near| Bench::open(plan, &plan.systems[0], Some(*near)));
    let mut benches = opened.chain(near).collect::<Result<Vec<_>, _>>()?;
    let systems: Vec<System> = benches.iter().map(|bench| bench.system.clone()).collect();
    let servers: Vec<(String, String)> =
        benches.iter().map(|bench| (bench.system.name.clone(), bench.mailbox.server())).collect();
    let about = |system: &System| {
        let known = servers.iter().find(|(name, _)| *name == system.name);
        Ok(known.map_or_else(String::new, |(_, server)| server.clone()))
    };
    let outline = StudyInfo {
        name: "publish",
        title: "Ways of publishing",
        parameters: vec![
            Parameter::new("body", format!("{} bytes", plan.body.len())),
            Parameter::new("messages", if plan.persistent { "persistent" } else { "transient" }),
            Parameter::new("window of confirms", arguments::WINDOW),
            Parameter::new("seconds a round", plan.common.time.as_secs_f64()),
        ],
        cells: &cells,
        systems: &systems,
    };
    let mut report = run_study(outline, &plan.common, watch, about, |cell, index| {
        let bench = &mut benches[index];
        let name = bench.system.name.clone();
        bench.measure(plan, cell).map_err(|error| match error {
            Failure::Client(cause) => Error::of(&name)(cause),
            Failure::Other(error) => error,
        })
    })?;
    let late = benches.iter().filter_map(|bench| bench.link.lateness()).map(|late| late.p50).reduce(f64::max);
    report.notes.extend(late.map(link::exactness));
    for bench in benches {
        bench.mailbox.close().map_err(Error::of(&bench.system.name))?;
    }
    report.notes.push(
        "The rate is that of confirms, and where there are none, that at which the system took messages from the \
         socket. Nobody consumes; the queue is emptied between rounds and holds a million messages at most."
            .to_owned(),
    );
    if !plan.near.is_empty() {
        report.notes.push(NEAR.to_owned());
    }
    Ok(report)
}

const NEAR: &str = "near-pool and spool stand next to the publishers, and the link between them and the first system. Their \
                    confirms are followed by a wait until everything has arrived in its queue, which has no limit; forward is how many \
                    messages arrived there a second, from the first to the last.";

/// Increasing numbers of publishers next to the system, then one publisher at increasing distances.
fn cells(plan: &PublishPlan) -> Vec<Cell> {
    let near = plan.publishers.iter().map(|&count| (Axis::Publishers, count as f64));
    let far = plan.round_trips.iter().map(|&time| (Axis::RoundTrip, time));
    let places: Vec<(Axis, f64)> = near.chain(far).collect();
    let cell = |style: PublishStyle, (axis, at)| Cell { scenario: style.name(), axis, at };
    places.iter().flat_map(|&place| plan.styles.iter().map(move |&style| cell(style, place))).collect()
}

/// A system with its queue and the link to it.
struct Bench {
    system: System,
    /// The pool between the publishers and the link, killed when this is dropped, before its upstream vanishes with the link.
    near: Option<ManagedProcess>,
    mailbox: Mailbox,
    link: Link,
    processes: IdleUsage,
}

enum Failure {
    Client(ClientError),
    Other(Error),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl Bench {
    /// For the system itself, or a pool in front of it.
    fn open(plan: &PublishPlan, system: &System, near: Option<IntermediateProxy>) -> Result<Self, Error> {
        let target = resolve("--system", &HostAndPort(&system.uri.host, system.uri.port).to_string())?;
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let failed = |cause| Error::Link { address: listen.to_string(), cause };
        let link = Link::start(
            listen,
            target,
            [LinkShape { in_transit: plan.in_transit, ..LinkShape::default() }; 2],
        )
        .map_err(failed)?;
        // Behind a pool or a spool, all that arrives is counted.
        let limited = near.is_none();
        let mailbox =
            Mailbox::declare(&system.uri, plan.persistent, limited).map_err(Error::of(&system.name))?;
        let upstream = format!("amqp://{}", link.address());
        let near = match near {
            None => None,
            Some(near) => Some((near, near.start(&upstream)?)),
        };
        let mut measured = system.clone();
        if let Some((near, process)) = &near {
            measured = process.system(near.name(), &system.uri)?;
            // Both processes do the work.
            measured.watched = measured.watched.with(&system.watched);
        }
        let processes = IdleUsage::none(&measured.watched);
        let near = near.map(|(_, process)| process);
        Ok(Self { system: measured, near, mailbox, link, processes })
    }

    fn measure(&mut self, plan: &PublishPlan, cell: &Cell) -> Result<Sample, Failure> {
        let (round_trip, publishers) = match cell.axis {
            Axis::RoundTrip => (cell.at, 1),
            _ => (0.0, cell.at as usize),
        };
        self.link.set_round_trip(Duration::from_secs_f64(round_trip / 1e3));
        let mut system = self.system.clone();
        if cell.axis == Axis::RoundTrip && self.near.is_none() {
            system.uri = through(&system.uri, self.link.address());
        }
        let (queue, processes) = (self.mailbox.name().to_owned(), &self.processes);
        let style = PublishStyle::named(cell.scenario);
        let confirm = style == Some(PublishStyle::ConnectionConfirm);
        let publish = || match style.map(PublishStyle::confirms) {
            Some(Some(confirms)) => connected(plan, system, &queue, publishers, confirms),
            _ => one_shot(plan, &system, &queue, publishers, confirm, processes),
        };
        let sample = if self.near.is_some() {
            let (mut sample, sent, arrivals) = watched(&mut self.mailbox, publish)?;
            add_arrivals(&mut sample, sent, arrivals);
            sample
        } else {
            publish()?.0
        };
        self.mailbox.empty(0)?;
        Ok(sample)
    }
}

impl IntermediateProxy {
    fn start(self, upstream: &str) -> Result<ManagedProcess, Error> {
        match self {
            Self::Pool => ManagedProcess::pool(upstream),
            Self::Spool => ManagedProcess::spool(upstream),
        }
    }
}

fn add_arrivals(sample: &mut Sample, sent: u64, arrivals: Arrivals) {
    arrivals.rate.into_iter().for_each(|rate| sample.add(Metric::Forward, rate));
    sample.add(Metric::Count(Fate::Lost), sent.saturating_sub(arrivals.count) as f64);
}

/// Publishers that stay connected; also returns how many messages the queue is to get.
fn connected(
    plan: &PublishPlan,
    system: System,
    queue: &str,
    publishers: usize,
    confirms: usize,
) -> Result<(Sample, u64), Failure> {
    let measure = plan.common.time;
    let workload = Workload {
        producers: publishers,
        durable: plan.persistent,
        bodies: Vec::new(),
        properties: MessageProperties::default(),
        first_queue: 1,
        queue_arguments: Vec::new(),
        consumer_arguments: Vec::new(),
        exchange: None,
        exchange_type: String::new(),
        routing_key: None,
        keys: 1,
        consumers: 0,
        channels: 1,
        size: plan.body.len(),
        length: Length::Timed { warmup: measure / WARMUP_SHARE, measure },
        confirms,
        mandatory: false,
        acks: Acks::Automatic,
        persistent: plan.persistent,
        queue: Some(queue.to_owned()),
        queues: 1,
        predeclared: true,
        rate: None,
        limit_backlog: 0,
    };
    let plan = stream::StreamPlan {
        systems: vec![system].into(),
        disk: None,
        workload,
        rounds: 1,
        expectations: Vec::new(),
    };
    let report = stream::run(&plan, |_, _, _| {}).map_err(Failure::Other)?;
    let round = report.systems.first().and_then(|system| system.rounds.first());
    let sent = round.map_or(0, |round| round.counts.published.saturating_sub(round.counts.nacked));
    Ok((round.map_or_else(Sample::default, |round| sample(round, report.machine.cores)), sent))
}

/// Publishers that reconnect for each message; also returns how many messages the queue is to get.
fn one_shot(
    plan: &PublishPlan,
    system: &System,
    queue: &str,
    publishers: usize,
    confirm: bool,
    processes: &IdleUsage,
) -> Result<(Sample, u64), Failure> {
    let message =
        OneShotMessage { uri: &system.uri, queue, body: &plan.body, confirm, persistent: plan.persistent };
    let config = WorkerConfig { workers: publishers, time: plan.common.time, min_steps: FEWEST };
    let no_broker = IdleUsage::default();
    let (mut sample, count) = message.measure(config, Meter::start(processes, &no_broker))?;
    // In this study the latency of a message is that of its confirm, for all styles.
    sample.figures.retain(|(metric, _)| !matches!(metric, Metric::Latency(_)));
    Ok((sample, count))
}

fn sample(round: &Round, cores: usize) -> Sample {
    let mut sample = Sample {
        figures: Vec::new(),
        saturated: round.generator.is_saturated(),
        full: round.generator.machine_is_full(cores),
    };
    sample.add(Metric::Rate, round.end_to_end_rate());
    sample.add_latencies(round.confirm_latency, Metric::ConfirmLatency);
    if let Some(usage) = round.processes {
        let figures = [
            (Metric::CpuPerMessage, usage.cpu_seconds_per_message),
            (Metric::Cpu, usage.cpu_cores),
            (Metric::Rss, usage.rss_bytes.map(|bytes| bytes as f64)),
        ];
        figures.into_iter().for_each(|(metric, value)| value.into_iter().for_each(|v| sample.add(metric, v)));
    }
    sample
}
