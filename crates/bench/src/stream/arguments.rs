//! The command line of `bench stream`, and the checked plan that it becomes.

use std::path::PathBuf;

use clap::Args;

use super::content::{self, BodyFile, MessageProperties};
use super::schedule::Schedule;
use super::workload::{Acks, Length, Workload};
use crate::error::Error;
use crate::expect::Expectation;
use crate::study::arguments::OutputArguments;
use crate::study::systems::{SystemArguments, Systems};
use crate::usage::{check, seconds};

/// Publish and consume at full speed or at a fixed rate; measure rates, latency and losses
#[derive(Debug, Clone, Args)]
pub(crate) struct StreamArguments {
    #[command(flatten)]
    pub(crate) systems: SystemArguments,
    /// Beside the systems, round by round, write and sync messages of this size one by one in this directory, as
    /// the system named disk: the best that a synchronous publisher could achieve
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// Connections that publish
    #[arg(long, default_value_t = 1)]
    pub(crate) producers: usize,
    /// Connections that consume
    #[arg(long, default_value_t = 1)]
    pub(crate) consumers: usize,
    /// Channels of each connection: a producer's messages take them in turn, a consumer consumes on each of them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) channels: u16,
    /// Body size in bytes; from 8 on messages are numbered, from 16 on they carry the time
    #[arg(long, value_name = "BYTES", default_value_t = 16, conflicts_with = "body")]
    pub(crate) size: usize,
    /// Publish the contents of this file; repeat for several, which messages take in turn. They are not numbered
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Vec<PathBuf>,
    /// A property of every message, such as content-type=text/plain or priority=5, or a header as header.NAME=VALUE;
    /// may be repeated
    #[arg(long = "property", value_name = "NAME=VALUE")]
    pub(crate) properties: Vec<String>,
    /// Measure each round for this long, in seconds [default: 5]
    #[arg(long, value_name = "SECONDS", conflicts_with = "messages")]
    pub(crate) time: Option<f64>,
    /// Warm up for this long before each timed round, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", conflicts_with = "messages")]
    pub(crate) warmup: Option<f64>,
    /// End each round after this many messages of each producer instead (without producers: of each consumer). A system
    /// that does nothing for 30 seconds meanwhile ends the run
    #[arg(long)]
    pub(crate) messages: Option<u64>,
    /// Rounds for each system [default: 3]
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Publisher confirms: the number of messages of a producer that may be unconfirmed; 0 is no confirms, 1
    /// is a producer that waits for each
    #[arg(long, value_name = "WINDOW", default_value_t = 0)]
    pub(crate) confirms: usize,
    /// Have unroutable messages returned
    #[arg(long)]
    pub(crate) mandatory: bool,
    /// Consume without acknowledgements
    #[arg(long, conflicts_with_all = ["prefetch", "multi_ack"])]
    pub(crate) auto_ack: bool,
    /// Unacknowledged messages that a consumer may hold; 0 means no limit [default: 1000]
    #[arg(long, value_name = "N")]
    pub(crate) prefetch: Option<u16>,
    /// Acknowledge every N messages at once [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) multi_ack: Option<u16>,
    /// Publish persistent messages to durable queues
    #[arg(long)]
    pub(crate) persistent: bool,
    /// Use the queue with this name, or these when --queues gives a number, which stands where the name has %d, or else
    /// at its end. Each round declares and deletes it: one that exists needs --predeclared, or --producers 0 to be
    /// consumed [default: a new name each round]
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Number of queues; they are shared out among the producers, and among the consumers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) queues: usize,
    /// Number of the first queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) first_queue: u64,
    /// Type of the queues, such as classic, quorum or stream
    #[arg(long, value_name = "TYPE")]
    pub(crate) queue_type: Option<String>,
    /// An argument of the queues, such as x-max-length=1000; may be repeated
    #[arg(long = "queue-argument", value_name = "NAME=VALUE")]
    pub(crate) queue_arguments: Vec<String>,
    /// An argument of the consumers, such as x-priority=5 or x-stream-offset=first; may be repeated
    #[arg(long = "consumer-argument", value_name = "NAME=VALUE")]
    pub(crate) consumer_arguments: Vec<String>,
    /// Publish to this exchange, declared with --exchange-type, bound to the queues, and deleted by each round: one that
    /// exists needs --predeclared
    #[arg(long, value_name = "NAME")]
    pub(crate) exchange: Option<String>,
    /// Type of the exchange
    #[arg(long, value_name = "TYPE", default_value = "direct", requires = "exchange")]
    pub(crate) exchange_type: String,
    /// Routing key; --routing-keys of them have numbers where it has %d, or else at the end. Each is bound to
    /// one of the queues [default: the names of the queues]
    #[arg(long, value_name = "KEY")]
    pub(crate) routing_key: Option<String>,
    /// Number of routing keys, which messages take in turn
    #[arg(long, value_name = "N", default_value_t = 1, requires = "routing_key")]
    pub(crate) routing_keys: usize,
    /// Queues and exchange exist: neither declare, bind nor delete them
    #[arg(long, requires = "queue")]
    pub(crate) predeclared: bool,
    /// Messages per second of each producer: fixed, as 1000; a ramp over the round, as 0..5000; or pieces with their
    /// seconds, as 1000:5,1000..5000:10,0:1, which are repeated. Latency then counts from when a message was due
    #[arg(long, value_name = "MSGS_PER_S")]
    pub(crate) rate: Option<Schedule>,
    /// Without confirms, publish only while fewer messages than this are in transit; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = LIMIT_BACKLOG)]
    pub(crate) limit_backlog: u64,
    /// Two short rounds, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) outputs: OutputArguments,
    /// Fail unless this holds, such as 'p99<5ms', 'a.rate>100k' or 'ratio(a/b)>3'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) expect: Vec<String>,
}

/// A checked command line.
#[derive(Debug, Clone)]
pub(crate) struct StreamPlan {
    /// The systems, in the order given; ratios are relative to the first.
    pub(crate) systems: Systems,
    /// The directory in which a plain loop of writing and syncing is measured, too.
    pub(crate) disk: Option<PathBuf>,
    /// The workload of each round.
    pub(crate) workload: Workload,
    /// Rounds for each system.
    pub(crate) rounds: usize,
    /// Conditions on the result.
    pub(crate) expectations: Vec<Expectation>,
}

impl StreamArguments {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// A description of the problem, for the command line.
    pub(crate) fn plan(&self) -> Result<StreamPlan, Error> {
        let systems = self.systems.systems()?;
        let mut names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
        if let Some(directory) = &self.disk {
            check(!names.contains(&DISK), "--system: the name disk is taken by --disk")?;
            check(directory.is_dir(), "--disk must name a directory")?;
            names.push(DISK);
        }
        let mut expectations = Vec::new();
        for text in &self.expect {
            let expectation: Expectation = text.parse().map_err(Error::Expect)?;
            expectation.check_systems(&names).map_err(Error::Expect)?;
            expectations.push(expectation);
        }
        let rounds = self.rounds.unwrap_or(if self.quick { 2 } else { 3 });
        let workload = self.workload()?;
        check(rounds > 0, "--rounds must be at least 1")?;
        workload.check()?;
        Ok(StreamPlan { systems, disk: self.disk.clone(), workload, rounds, expectations })
    }

    fn workload(&self) -> Result<Workload, Error> {
        let length = match self.messages {
            Some(messages) => Length::Messages(messages),
            None => {
                let (warmup, measure) = if self.quick { (0.3, 1.0) } else { (1.0, 5.0) };
                let warmup = seconds("--warmup", self.warmup.unwrap_or(warmup))?;
                let measure = seconds("--time", self.time.unwrap_or(measure))?;
                // Rates are per second of it.
                check(!measure.is_zero(), "--time must be above 0")?;
                Length::Timed { warmup, measure }
            }
        };
        let acks = if self.auto_ack {
            Acks::Automatic
        } else {
            Acks::Manual { prefetch: self.prefetch.unwrap_or(1000), every: self.multi_ack.unwrap_or(1) }
        };
        let round = match length {
            Length::Timed { warmup, measure } => Some((warmup + measure).as_secs_f64()),
            Length::Messages(_) => None,
        };
        let rate = self.rate.clone().map(|rate| rate.over(round)).transpose()?;
        let queue_type = self.queue_type.iter().map(|kind| format!("x-queue-type={kind}"));
        let queue_arguments: Vec<String> = queue_type.chain(self.queue_arguments.iter().cloned()).collect();
        let mut workload = Workload {
            producers: self.producers,
            consumers: self.consumers,
            channels: self.channels,
            size: self.size,
            length,
            confirms: self.confirms,
            mandatory: self.mandatory,
            acks,
            persistent: self.persistent,
            durable: self.persistent,
            bodies: self.body.iter().map(|path| BodyFile::read(path)).collect::<Result<_, _>>()?,
            properties: MessageProperties::parse(&self.properties)?,
            queue: self.queue.clone(),
            queues: self.queues,
            first_queue: self.first_queue,
            queue_arguments: content::pairs("--queue-argument", &queue_arguments)?,
            consumer_arguments: content::pairs("--consumer-argument", &self.consumer_arguments)?,
            exchange: self.exchange.clone(),
            exchange_type: self.exchange_type.clone(),
            routing_key: self.routing_key.clone(),
            keys: self.routing_keys,
            predeclared: self.predeclared,
            rate,
            limit_backlog: self.limit_backlog,
        };
        // All queues of these types are durable.
        workload.durable |= workload.is_replicated();
        Ok(workload)
    }
}

/// The default of [`StreamArguments::limit_backlog`].
pub(crate) const LIMIT_BACKLOG: u64 = 100_000;

/// The system name of the measurement that [`StreamArguments::disk`] adds.
pub(crate) const DISK: &str = "disk";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::usage::parse;

    pub(crate) fn plan(arguments: &[&str]) -> Result<StreamPlan, Error> {
        parse::<StreamArguments>(arguments).unwrap().plan()
    }

    pub(crate) fn workload(arguments: &[&str]) -> Workload {
        plan(arguments).unwrap().workload
    }

    #[test]
    fn invalid_arguments_are_refused_before_connecting() {
        for arguments in [
            &["--producers", "0", "--consumers", "0"][..],
            &["--producers", "0"],
            &["--queues", "0"],
            &["--channels", "0"],
            &["--channels", "2048"],
            &["--routing-key", "k"],
            &["--exchange", "e", "--routing-key", "k", "--queues", "2"],
            &["--rate", "0..5", "--messages", "5"],
            &["--property", "colour=red"],
            &["--queue-argument", "x"],
            &["--body", "/nowhere/at/all"],
            &["--rounds", "0"],
            &["--messages", "0"],
            &["--time=-1"],
            &["--time", "0"],
            &["--time", "0.0000000001"],
            &["--multi-ack", "2", "--prefetch", "1"],
            &["--expect", "other.rate>1"],
            &["--uri", "http://h"],
            &["--disk", "/nowhere/at/all"],
            &["--disk", "/tmp", "--system", "disk=amqp://h"],
            &["--expect", "disk.rate>1"],
        ] {
            let error = plan(arguments).unwrap_err();
            assert!(error.is_usage(), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn publishers_and_consumers_are_coupled_unless_confirms_or_the_user_say_otherwise() {
        assert!(plan(&[]).unwrap().workload.is_coupled());
        for arguments in [&["--confirms", "10"], &["--limit-backlog", "0"], &["--consumers", "0"]] {
            assert!(!plan(arguments).unwrap().workload.is_coupled(), "{arguments:?}");
        }
    }
}
