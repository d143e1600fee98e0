//! The command line of `bench strategies`, and the checked plan that it becomes.

use clap::{Args, ValueEnum};

use crate::error::Error;
use crate::study::arguments::{Common, CommonArguments, Defaults};
use crate::study::systems::{SystemArguments, Systems};
use crate::usage::check;

/// Publish from many workers over one connection, a connection each, or a pool of channels
#[derive(Debug, Clone, Args)]
pub(crate) struct StrategiesArguments {
    #[command(flatten)]
    pub(crate) systems: SystemArguments,
    /// Strategies; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "STRATEGY")]
    strategy: Vec<Strategy>,
    /// Numbers of workers, each with a queue of its own [default: 5,10,20,50,100,150; with --quick 5,20]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    workers: Vec<usize>,
    /// Messages of each worker [default: 1000; with --quick 100]
    #[arg(long, value_name = "N")]
    messages: Option<u64>,
    /// Body size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    size: usize,
    /// Channels of the pool, all on one connection
    #[arg(long, value_name = "N", default_value_t = 10)]
    pool: usize,
    #[command(flatten)]
    pub(crate) common: CommonArguments,
}

/// How workers share connections and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Strategy {
    /// One connection, with a channel for each worker
    OneConnection,
    /// A connection for each worker
    ConnectionEach,
    /// A pool of channels on one connection: each message takes the next that is free
    Pool,
}

impl Strategy {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneConnection => "one connection",
            Self::ConnectionEach => "connection each",
            Self::Pool => "pool of channels",
        }
    }

    pub(super) fn named(name: &str) -> Self {
        let known = Self::value_variants().iter().copied().find(|strategy| strategy.name() == name);
        known.unwrap_or(Self::OneConnection)
    }
}

/// A checked command line.
#[derive(Debug)]
pub(crate) struct StrategiesPlan {
    pub(super) systems: Systems,
    pub(super) strategies: Vec<Strategy>,
    pub(super) workers: Vec<usize>,
    pub(super) messages: u64,
    pub(super) body: Vec<u8>,
    pub(super) pool: usize,
    pub(crate) common: Common,
}

/// As in the published study. There is no duration: a round ends when all messages are sent.
const DEFAULTS: Defaults = Defaults { rounds: 10, seconds: 0.0, quick_rounds: 2, quick_seconds: 0.0 };
/// Fewer than the channels that RabbitMQ allows on a connection, and than the messages that a study's queue may hold.
const MAX_WORKERS: usize = 2000;
const MAX_MESSAGES: u64 = 1_000_000;
const LARGEST_BODY: usize = 16 << 20;

impl StrategiesArguments {
    /// Checks the arguments.
    pub(crate) fn plan(&self) -> Result<StrategiesPlan, Error> {
        let default: &[usize] = if self.common.quick { &[5, 20] } else { &[5, 10, 20, 50, 100, 150] };
        let workers = if self.workers.is_empty() { default } else { &self.workers };
        let valid = |count: &usize| (1..=MAX_WORKERS).contains(count);
        check(workers.iter().all(valid), "--workers must be between 1 and 2000")?;
        check(valid(&self.pool), "--pool must be between 1 and 2000")?;
        let messages = self.messages.unwrap_or(if self.common.quick { 100 } else { 1000 });
        check((1..=MAX_MESSAGES).contains(&messages), "--messages must be between 1 and 1000000")?;
        check(self.size <= LARGEST_BODY, "--size must be at most 16 MiB")?;
        check(!self.common.has_time(), "--time: a round of this study ends after --messages")?;
        let all = Strategy::value_variants();
        let common = self.common.check(DEFAULTS)?;
        Ok(StrategiesPlan {
            systems: self.systems.systems()?,
            strategies: if self.strategy.is_empty() { all.to_vec() } else { self.strategy.clone() },
            workers: workers.to_vec(),
            messages,
            body: vec![b'x'; self.size],
            pool: self.pool,
            common,
        })
    }
}
