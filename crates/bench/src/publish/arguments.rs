//! The command line of `bench publish`, and the checked plan that it becomes.

use clap::{Args, ValueEnum};

use crate::error::Error;
use crate::link::IN_TRANSIT;
use crate::study::arguments::{Common, CommonArguments, Defaults, round_trips};
use crate::study::systems::{SystemArguments, Systems};
use crate::usage::check;

/// Publish in every way: with and without confirms, one by one, a connection for each message
#[derive(Debug, Clone, Args)]
pub(crate) struct PublishArguments {
    #[command(flatten)]
    pub(crate) systems: SystemArguments,
    /// Start Leveret's pool, or one that spools all publishes, next to the publishers, with the link between it and the first
    /// system, and measure them as well, as the systems near-pool and spool
    #[arg(long, value_enum, value_name = "WHAT,...", value_delimiter = ',')]
    near: Vec<IntermediateProxy>,
    /// Ways of publishing; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "STYLE")]
    style: Vec<PublishStyle>,
    /// Numbers of publishers, each with a connection of its own [default: 1,2,3,4,5; with --quick 1,2]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    publishers: Vec<usize>,
    /// Round trips in milliseconds, at which one publisher is measured [default: 0,1,5,10,50,100; with --quick 0,10]
    #[arg(long, value_name = "MS,...", value_delimiter = ',')]
    latency: Vec<f64>,
    /// Bytes that may be in transit each way of each connection over the link
    #[arg(long, value_name = "BYTES", default_value_t = IN_TRANSIT)]
    in_transit: usize,
    /// Body size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    size: usize,
    /// Publish persistent messages to a durable queue
    #[arg(long)]
    persistent: bool,
    #[command(flatten)]
    pub(crate) common: CommonArguments,
}

/// A program between the publishers and the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum IntermediateProxy {
    /// Leveret's pool
    Pool,
    /// Leveret's pool with a spool
    Spool,
}

impl IntermediateProxy {
    /// The name of the system in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pool => "near-pool",
            Self::Spool => "spool",
        }
    }
}

/// A way of publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PublishStyle {
    /// Nothing is confirmed, nothing is waited for
    Async,
    /// Confirms, 10,000 of which may be awaited at a time
    AsyncConfirm,
    /// Each message waits for the confirm of the one before
    SyncConfirm,
    /// A connection for each message
    Connection,
    /// A connection for each message, which waits for its confirm
    ConnectionConfirm,
}

/// Most unconfirmed messages of a publisher that does not wait for each.
pub(super) const WINDOW: usize = 10_000;
const MAX_PUBLISHERS: usize = 1000;
const LARGEST_BODY: usize = 128 << 20;
const DEFAULTS: Defaults = Defaults { rounds: 3, seconds: 2.0, quick_rounds: 1, quick_seconds: 0.5 };

impl PublishStyle {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::AsyncConfirm => "async confirm",
            Self::SyncConfirm => "sync confirm",
            Self::Connection => "connection each",
            Self::ConnectionConfirm => "connection each, confirm",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|style| style.name() == name)
    }

    /// The confirm window of a style that stays connected; `None` for one that does not.
    pub(super) fn confirms(self) -> Option<usize> {
        match self {
            Self::Async => Some(0),
            Self::AsyncConfirm => Some(WINDOW),
            Self::SyncConfirm => Some(1),
            Self::Connection | Self::ConnectionConfirm => None,
        }
    }
}

/// A checked command line.
#[derive(Debug)]
pub(crate) struct PublishPlan {
    pub(super) systems: Systems,
    /// The proxies between the publishers and the link to the first system.
    pub(super) near: Vec<IntermediateProxy>,
    pub(super) styles: Vec<PublishStyle>,
    pub(super) publishers: Vec<usize>,
    pub(super) round_trips: Vec<f64>,
    /// Most bytes in transit each way of a connection over the link.
    pub(super) in_transit: usize,
    pub(super) body: Vec<u8>,
    pub(super) persistent: bool,
    pub(crate) common: Common,
}

impl PublishArguments {
    /// Checks the arguments against each other.
    pub(crate) fn plan(&self) -> Result<PublishPlan, Error> {
        let quick = self.common.quick;
        let publishers: &[usize] = if quick { &[1, 2] } else { &[1, 2, 3, 4, 5] };
        let latency: &[f64] = if quick { &[0.0, 10.0] } else { &[0.0, 1.0, 5.0, 10.0, 50.0, 100.0] };
        let publishers = if self.publishers.is_empty() { publishers } else { &self.publishers };
        let latency = if self.latency.is_empty() { latency } else { &self.latency };
        check(
            publishers.iter().all(|count| (1..=MAX_PUBLISHERS).contains(count)),
            "--publishers must be between 1 and 1000",
        )?;
        check(self.in_transit > 0, "--in-transit must be above 0")?;
        check(self.size <= LARGEST_BODY, "--size must be at most 128 MiB")?;
        let all = PublishStyle::value_variants();
        let mut near = self.near.clone();
        near.sort_unstable();
        near.dedup();
        let systems = self.systems.systems()?;
        for name in near.iter().map(|near| near.name()) {
            let is_free = systems.iter().all(|system| system.name != name);
            check(is_free, &format!("--system: the name {name} is taken by --near"))?;
        }
        if !near.is_empty() {
            check(
                systems[0].uri.tls.is_none(),
                "--near: the first system is reached over TLS, which the link cannot pass on for a pool",
            )?;
        }
        Ok(PublishPlan {
            systems,
            near,
            styles: if self.style.is_empty() { all.to_vec() } else { self.style.clone() },
            publishers: publishers.to_vec(),
            round_trips: round_trips(latency)?,
            in_transit: self.in_transit,
            body: vec![b'x'; self.size],
            persistent: self.persistent,
            common: self.common.check(DEFAULTS)?,
        })
    }
}
