//! The command line of `bench stream`, and the checked plan that it becomes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::expect::Expectation;
use crate::process;
use crate::uri::Uri;

/// Publish and consume at full speed or at a fixed rate; measure rates, latency and losses
#[derive(Debug, Clone, Args)]
pub struct StreamArguments {
    /// The system under test, as amqp://user:password@host:port/vhost
    #[arg(long, value_name = "URI", conflicts_with = "systems", default_value = "amqp://localhost")]
    pub uri: String,
    /// A system under test with a name and process ids to sample, as name=uri[,pid=N]...; repeat to compare
    /// systems, round by round
    #[arg(long = "system", value_name = "NAME=URI[,pid=N]")]
    pub systems: Vec<String>,
    /// Beside the systems, round by round, write and sync messages of this size one by one in this folder, as the
    /// system named disk: what a synchronous publisher could have at best
    #[arg(long, value_name = "FOLDER")]
    pub disk: Option<PathBuf>,
    /// Connections that publish
    #[arg(long, default_value_t = 1)]
    pub producers: usize,
    /// Connections that consume
    #[arg(long, default_value_t = 1)]
    pub consumers: usize,
    /// Body size in bytes; from 8 on messages are numbered, from 16 on they carry the time
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub size: usize,
    /// Measure each round for this long, in seconds [default: 5]
    #[arg(long, value_name = "SECONDS", conflicts_with = "messages")]
    pub time: Option<f64>,
    /// Warm up for this long before each timed round, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", conflicts_with = "messages")]
    pub warmup: Option<f64>,
    /// End each round after this many messages of each producer instead (without producers: of each consumer)
    #[arg(long)]
    pub messages: Option<u64>,
    /// Rounds for each system [default: 3]
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Publisher confirms: how many messages of a producer may be unconfirmed; 0 is no confirms, 1 is a producer that
    /// waits for each
    #[arg(long, value_name = "WINDOW", default_value_t = 0)]
    pub confirms: usize,
    /// Have unroutable messages returned
    #[arg(long)]
    pub mandatory: bool,
    /// Consume without acknowledgements
    #[arg(long, conflicts_with_all = ["prefetch", "multi_ack"])]
    pub auto_ack: bool,
    /// Unacknowledged messages that a consumer may hold; 0 is no limit [default: 1000]
    #[arg(long, value_name = "N")]
    pub prefetch: Option<u16>,
    /// Acknowledge every N messages at once [default: 1]
    #[arg(long, value_name = "N")]
    pub multi_ack: Option<u16>,
    /// Publish persistent messages to durable queues
    #[arg(long)]
    pub persistent: bool,
    /// Use the queue with this name, or these when --queues gives a number [default: a new name each round]
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Number of queues, named with -1, -2, ... at the end; producers and consumers take them in turn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: usize,
    /// The queues exist: neither declare, purge nor delete them
    #[arg(long, requires = "queue")]
    pub predeclared: bool,
    /// Messages per second of each producer; latency then counts from when a message was due
    #[arg(long, value_name = "MSGS_PER_S")]
    pub rate: Option<f64>,
    /// Without confirms, publish only while fewer messages than this are under way; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub limit_backlog: u64,
    /// Two short rounds, to see that everything works
    #[arg(long)]
    pub quick: bool,
    /// Write everything as JSON to this file; - is the standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Fail unless this holds, such as 'p99<5ms', 'a.rate>100k' or 'ratio(a/b)>3'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub expect: Vec<String>,
}

/// A system under test.
#[derive(Debug, Clone)]
pub struct System {
    /// Its name in the report.
    pub name: String,
    /// Where it listens.
    pub uri: Uri,
    /// Processes whose CPU and memory, children included, belong to it.
    pub pids: Vec<u32>,
}

/// What one round does; the same for every system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    /// Connections that publish.
    pub producers: usize,
    /// Connections that consume.
    pub consumers: usize,
    /// Body size in bytes.
    pub size: usize,
    /// When a round ends.
    pub length: Length,
    /// Most unconfirmed messages of a producer; 0 is no confirms.
    pub confirms: usize,
    /// Whether messages are published as mandatory.
    pub mandatory: bool,
    /// How messages are acknowledged.
    pub acks: Acks,
    /// Whether messages are persistent and queues durable.
    pub persistent: bool,
    /// Name of the queue or queues; `None` is a new one each round.
    pub queue: Option<String>,
    /// Number of queues.
    pub queues: usize,
    /// Whether the queues exist already and stay.
    pub predeclared: bool,
    /// Messages per second of each producer; `None` is as fast as it goes.
    pub rate: Option<f64>,
    /// Most messages between publishers and consumers; 0 is no limit.
    pub limit_backlog: u64,
}

/// When a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// After a time.
    Timed {
        /// Not measured, at the start; in seconds where serialised.
        #[serde(serialize_with = "as_seconds")]
        warmup: Duration,
        /// Measured, thereafter; in seconds where serialised.
        #[serde(serialize_with = "as_seconds")]
        measure: Duration,
    },
    /// After so many messages of each producer, or of each consumer when there is no producer.
    Messages(u64),
}

/// How consumers acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Acks {
    /// Not at all (no_ack).
    Automatic,
    /// With basic.ack.
    Manual {
        /// Unacknowledged messages that a consumer may hold; 0 is no limit.
        prefetch: u16,
        /// Messages per acknowledgement.
        every: u16,
    },
}

/// A checked command line.
#[derive(Debug, Clone)]
pub struct Plan {
    /// In the order given; ratios are relative to the first.
    pub systems: Vec<System>,
    /// Where a plain loop of writing and syncing is measured as well.
    pub disk: Option<PathBuf>,
    /// What each round does.
    pub workload: Workload,
    /// Rounds for each system.
    pub rounds: usize,
    /// Conditions on the result.
    pub expectations: Vec<Expectation>,
}

impl StreamArguments {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// What is wrong with them, in words for the command line.
    pub fn plan(&self) -> Result<Plan, Error> {
        let systems = parse_systems(&self.uri, &self.systems)?;
        let mut names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
        if let Some(folder) = &self.disk {
            check(!names.contains(&DISK), "--system: the name disk is taken by --disk")?;
            check(folder.is_dir(), "--disk must name a folder")?;
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
        Ok(Plan { systems, disk: self.disk.clone(), workload, rounds, expectations })
    }

    fn workload(&self) -> Result<Workload, Error> {
        let length = match self.messages {
            Some(messages) => Length::Messages(messages),
            None => {
                let (warmup, measure) = if self.quick { (0.3, 1.0) } else { (1.0, 5.0) };
                Length::Timed {
                    warmup: seconds("--warmup", self.warmup.unwrap_or(warmup))?,
                    measure: seconds("--time", self.time.unwrap_or(measure))?,
                }
            }
        };
        let acks = if self.auto_ack {
            Acks::Automatic
        } else {
            Acks::Manual { prefetch: self.prefetch.unwrap_or(1000), every: self.multi_ack.unwrap_or(1) }
        };
        Ok(Workload {
            producers: self.producers,
            consumers: self.consumers,
            size: self.size,
            length,
            confirms: self.confirms,
            mandatory: self.mandatory,
            acks,
            persistent: self.persistent,
            queue: self.queue.clone(),
            queues: self.queues,
            predeclared: self.predeclared,
            rate: self.rate,
            limit_backlog: self.limit_backlog,
        })
    }
}

impl Workload {
    fn check(&self) -> Result<(), Error> {
        check(self.producers + self.consumers > 0, "--producers and --consumers must not both be 0")?;
        check(self.producers <= super::message::MAX_PRODUCERS, "--producers must be at most 65536")?;
        check(self.size <= MAX_SIZE, "--size must be at most 512 MiB")?;
        check(self.queues > 0, "--queues must be at least 1")?;
        // A queue that nobody reads, or nobody writes to, would stall the round or idle.
        check(self.producers == 0 || self.queues <= self.producers, "--queues must not exceed --producers")?;
        check(self.consumers == 0 || self.queues <= self.consumers, "--queues must not exceed --consumers")?;
        check(
            self.producers > 0 || self.queue.is_some(),
            "without producers, --queue must name a queue to consume",
        )?;
        check(self.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0), "--rate must be above 0")?;
        check(self.length != Length::Messages(0), "--messages must be at least 1")?;
        check(self.confirms <= MAX_CONFIRMS, "--confirms must be at most 1000000")?;
        if let Acks::Manual { prefetch, every } = self.acks {
            check(every > 0, "--multi-ack must be at least 1")?;
            check(prefetch == 0 || every <= prefetch, "--multi-ack must not exceed --prefetch")?;
        }
        Ok(())
    }

    /// Whether publishers wait for consumers to keep up.
    pub fn is_coupled(&self) -> bool {
        self.limit_backlog > 0 && self.confirms == 0 && self.producers > 0 && self.consumers > 0
    }
}

/// The name of what [`StreamArguments::disk`] measures.
pub(crate) const DISK: &str = "disk";
/// RabbitMQ's largest configurable message.
const MAX_SIZE: usize = 512 << 20;
/// A window's bookkeeping takes 32 bytes a message.
const MAX_CONFIRMS: usize = 1_000_000;

/// A usage error unless something holds.
pub(crate) fn check(holds: bool, otherwise: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Usage(otherwise.to_owned())) }
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// A length of time that was given as `flag`.
pub(crate) fn seconds(flag: &str, value: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Error::Usage(format!("{flag}: {value} is no length of time")))
}

/// The systems that a command line names: `given`, or else the one at `uri`.
pub(crate) fn parse_systems(uri: &str, given: &[String]) -> Result<Vec<System>, Error> {
    if given.is_empty() {
        return Ok(vec![System { name: "default".into(), uri: Uri::parse(uri)?, pids: Vec::new() }]);
    }
    let mut systems: Vec<System> = Vec::new();
    for text in given {
        let system = parse_system(text)?;
        check(
            systems.iter().all(|other| other.name != system.name),
            &format!("--system: the name {:?} is given twice", system.name),
        )?;
        systems.push(system);
    }
    Ok(systems)
}

fn parse_system(text: &str) -> Result<System, Error> {
    let fail = |what: &str| Error::Usage(format!("--system: {what}; it is written name=uri[,pid=N]"));
    let (name, rest) = text.split_once('=').ok_or_else(|| fail("there is no name"))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(allowed) {
        return Err(fail(&format!("{name:?} is no name of letters, digits, - and _")));
    }
    // From the end, for a password may hold a comma.
    let (mut uri, mut pids) = (rest, Vec::new());
    while let Some((before, pid)) = uri.rsplit_once(",pid=") {
        let pid = pid.parse().map_err(|_| fail(&format!("{pid:?} is no process id")))?;
        if !process::exists(pid) {
            return Err(Error::Usage(format!("--system {name}: there is no process {pid}")));
        }
        pids.push(pid);
        uri = before;
    }
    Ok(System { name: name.into(), uri: Uri::parse(uri)?, pids })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        stream: StreamArguments,
    }

    fn plan(arguments: &[&str]) -> Result<Plan, Error> {
        Cli::parse_from([&["stream"], arguments].concat()).stream.plan()
    }

    #[test]
    fn systems_have_names_uris_and_processes() {
        let own = std::process::id();
        let system = format!("a=amqp://u:p,w@h:1/v,pid={own},pid=1");
        let systems = plan(&["--system", &system, "--system", "b=amqp://h"]).unwrap().systems;
        assert_eq!((&*systems[0].name, &*systems[0].uri.password, &*systems[0].uri.vhost), ("a", "p,w", "v"));
        assert_eq!(systems[0].pids, [1, own]);
        assert_eq!(systems[1].name, "b");
    }

    #[test]
    fn what_could_never_work_is_refused_before_anything_is_connected() {
        for arguments in [
            &["--producers", "0", "--consumers", "0"][..],
            &["--producers", "0"],
            &["--queues", "2"],
            &["--rate", "0"],
            &["--rounds", "0"],
            &["--messages", "0"],
            &["--time=-1"],
            &["--multi-ack", "2", "--prefetch", "1"],
            &["--system", "amqp://h"],
            &["--system", "a=amqp://h,pid=x"],
            &["--system", "a.b=amqp://h"],
            &["--system", "a=amqp://h", "--system", "a=amqp://h"],
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
