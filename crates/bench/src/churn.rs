//! `bench churn`: how many connections, channels, queues, bindings and consumers can be opened and closed per second.

mod connections;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use amqp::Method;
use amqp::method::{basic, channel, queue};
use clap::{Args, ValueEnum};

use crate::client::Connection;
use crate::error::{ClientError, Error};
use crate::mailbox::new_name;
use crate::study::arguments::{Common, CommonArguments, Defaults};
use crate::study::meter::{IdleUsage, Meter};
use crate::study::report::{Parameter, StudyReport};
use crate::study::systems::System;
use crate::study::systems::{SystemArguments, Systems};
use crate::study::workers::{WorkResult, WorkerConfig, work};
use crate::study::{Sample, StudyInfo, Watch, ask, run as run_study, worker_cells};
use crate::uri::Uri;
use crate::usage::check;

/// Open and close connections, channels, queues, bindings and consumers, as fast as possible
#[derive(Debug, Clone, Args)]
pub(crate) struct ChurnArguments {
    #[command(flatten)]
    pub(crate) systems: SystemArguments,
    /// Kind of objects to open and close; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Vec<ChurnKind>,
    /// Numbers of workers; except for connections, each has a connection of its own [default: 1,4,16; with --quick 1,4]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    workers: Vec<usize>,
    #[command(flatten)]
    pub(crate) common: CommonArguments,
}

/// The kind of objects that are opened and closed. Each step waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChurnKind {
    /// Connect, log in, open the vhost; close
    Connection,
    /// Open a channel; close it
    Channel,
    /// Declare a queue; delete it
    Queue,
    /// Bind a queue to amq.direct with a new key; unbind it
    Binding,
    /// Consume from a queue; cancel
    Consumer,
}

impl ChurnKind {
    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Channel => "channel",
            Self::Queue => "queue",
            Self::Binding => "binding",
            Self::Consumer => "consumer",
        }
    }

    fn named(name: &str) -> Self {
        let known = Self::value_variants().iter().copied().find(|kind| kind.name() == name);
        known.unwrap_or(Self::Connection)
    }
}

/// A checked command line.
#[derive(Debug)]
pub(crate) struct ChurnPlan {
    systems: Systems,
    kinds: Vec<ChurnKind>,
    workers: Vec<usize>,
    pub(crate) common: Common,
}

const DEFAULTS: Defaults = Defaults { rounds: 3, seconds: 2.0, quick_rounds: 1, quick_seconds: 0.5 };
const MAX_WORKERS: usize = 1000;
const CHANNEL: u16 = 1;
/// The channel that is opened and closed; another one stays open.
const OTHER_CHANNEL: u16 = 2;

impl ChurnArguments {
    /// Checks the arguments.
    pub(crate) fn plan(&self) -> Result<ChurnPlan, Error> {
        let default: &[usize] = if self.common.quick { &[1, 4] } else { &[1, 4, 16] };
        let workers = if self.workers.is_empty() { default } else { &self.workers };
        let valid = workers.iter().all(|count| (1..=MAX_WORKERS).contains(count));
        check(valid, "--workers must be between 1 and 1000")?;
        let all = ChurnKind::value_variants();
        Ok(ChurnPlan {
            systems: self.systems.systems()?,
            kinds: if self.kind.is_empty() { all.to_vec() } else { self.kind.clone() },
            workers: workers.to_vec(),
            common: self.common.check(DEFAULTS)?,
        })
    }
}

/// Runs the study.
pub(crate) fn run(plan: &ChurnPlan, watch: Watch<'_>) -> Result<StudyReport, Error> {
    let cells = worker_cells(plan.kinds.iter().map(|kind| kind.name()), &plan.workers);
    let outline = StudyInfo {
        name: "churn",
        title: "Opened and closed",
        parameters: vec![Parameter::new("seconds a round", plan.common.time.as_secs_f64())],
        cells: &cells,
        systems: &plan.systems,
    };
    let mut report = run_study(outline, &plan.common, watch, ask, |cell, index| {
        let system = &plan.systems[index];
        let config = WorkerConfig { workers: cell.at as usize, time: plan.common.time, min_steps: 1 };
        measure(system, ChurnKind::named(cell.scenario), config).map_err(Error::of(&system.name))
    })?;
    report.notes.push(
        "Each is opened and closed again, and every answer is waited for; the time is that of both together."
            .into(),
    );
    Ok(report)
}

const NAME: &str = "leveret bench churn";

fn measure(system: &System, kind: ChurnKind, config: WorkerConfig) -> Result<Sample, ClientError> {
    let (processes, no_broker) = (IdleUsage::none(&system.watched), IdleUsage::default());
    let uri = &system.uri;
    if kind == ChurnKind::Connection {
        let meter = Meter::start(&processes, &no_broker);
        let done = match uri.tls {
            None => connections::work(uri, NAME, config)?,
            Some(_) => work(config, |_| Ok(()), |()| Connection::open_small(uri, NAME)?.close_and_wait())?,
        };
        return Ok(sample(meter, &done));
    }
    // Clients are set up beforehand, so that only the steps under study are measured.
    let clients = (0..config.workers).map(|_| ChurnClient::open(uri, kind)).collect::<Result<Vec<_>, _>>()?;
    let clients: Vec<_> = clients.into_iter().map(|client| std::sync::Mutex::new(Some(client))).collect();
    let meter = Meter::start(&processes, &no_broker);
    let take = |number: usize| {
        let client = clients[number].lock().ok().and_then(|mut client| client.take());
        client.ok_or(ClientError::Panicked("churn"))
    };
    let done = work(config, take, |client| client.step(kind))?;
    let sample = sample(meter, &done);
    done.states.into_iter().try_for_each(ChurnClient::close)?;
    Ok(sample)
}

fn sample<T>(meter: Meter<'_>, done: &WorkResult<T>) -> Sample {
    let mut sample = meter.finish(done.count, done.busiest);
    done.add_to(&mut sample);
    sample
}

/// A worker's connection, with a queue of its own if the kind needs one.
struct ChurnClient {
    connection: Connection,
    queue: Option<String>,
}

impl ChurnClient {
    fn open(uri: &Uri, kind: ChurnKind) -> Result<Self, ClientError> {
        let mut connection = Connection::open_small(uri, NAME)?;
        connection.open_channel(CHANNEL)?;
        let mut client = Self { connection, queue: None };
        if matches!(kind, ChurnKind::Binding | ChurnKind::Consumer) {
            let name = new_name();
            client.declare(&name)?;
            client.queue = Some(name);
        }
        Ok(client)
    }

    fn step(&mut self, kind: ChurnKind) -> Result<(), ClientError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let queue = self.queue.clone().unwrap_or_default();
        let call = &mut self.connection;
        match kind {
            // This kind does not use an existing connection; see `measure`.
            ChurnKind::Connection => Ok(()),
            ChurnKind::Channel => {
                call.open_channel(OTHER_CHANNEL)?;
                let close = channel::Close { reply_code: 200, reply_text: "Bye", ..Default::default() };
                call.call(OTHER_CHANNEL, close, |m| matches!(m, Method::ChannelCloseOk(_)).then_some(()))
            }
            ChurnKind::Queue => {
                let name = new_name();
                self.declare(&name)?;
                self.delete(&name)
            }
            ChurnKind::Binding => {
                let key = NUMBER.fetch_add(1, Relaxed).to_string();
                let (queue, routing_key, exchange) = (queue.as_str(), key.as_str(), "amq.direct");
                let bind = queue::Bind { queue, exchange, routing_key, ..Default::default() };
                call.call(CHANNEL, bind, |m| matches!(m, Method::QueueBindOk(_)).then_some(()))?;
                let unbind = queue::Unbind { queue, exchange, routing_key, ..Default::default() };
                call.call(CHANNEL, unbind, |m| matches!(m, Method::QueueUnbindOk(_)).then_some(()))
            }
            ChurnKind::Consumer => {
                let consume = basic::Consume { queue: &queue, consumer_tag: "c", ..Default::default() };
                call.call(CHANNEL, consume, |m| matches!(m, Method::BasicConsumeOk(_)).then_some(()))?;
                let cancel = basic::Cancel { consumer_tag: "c", no_wait: false };
                call.call(CHANNEL, cancel, |m| matches!(m, Method::BasicCancelOk(_)).then_some(()))
            }
        }
    }

    fn declare(&mut self, name: &str) -> Result<(), ClientError> {
        let declare = queue::Declare { queue: name, ..Default::default() };
        self.connection.call(CHANNEL, declare, |m| matches!(m, Method::QueueDeclareOk(_)).then_some(()))
    }

    fn delete(&mut self, name: &str) -> Result<(), ClientError> {
        let delete = queue::Delete { queue: name, ..Default::default() };
        self.connection.call(CHANNEL, delete, |m| matches!(m, Method::QueueDeleteOk(_)).then_some(()))
    }

    fn close(mut self) -> Result<(), ClientError> {
        if let Some(name) = self.queue.take() {
            self.delete(&name)?;
        }
        self.connection.close();
        Ok(())
    }
}
