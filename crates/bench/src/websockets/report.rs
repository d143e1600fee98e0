//! What the study has found.

use serde::{Deserialize, Serialize};

use super::arguments::Settings;
use super::target::Target;
use crate::expect::Verdict;
use crate::latency::Percentiles;
use crate::machine::Machine;

/// The whole report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WebSocketsReport {
    /// Where it ran.
    pub machine: Machine,
    /// The same for all systems.
    pub settings: Settings,
    /// By round, in the order given.
    pub systems: Vec<SystemReport>,
    /// What a reader must know to judge the figures, besides what is told of each system.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What became of the expectations.
    #[serde(default)]
    pub expectations: Vec<Verdict>,
}

/// What was found of one system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SystemReport {
    /// Its name.
    pub name: String,
    /// In which round, from 1.
    pub round: usize,
    /// Where it listens.
    pub target: Target,
    /// Bytes of its resident memory before the first connection; 0 without process ids.
    pub baseline_bytes: u64,
    /// The levels that were reached, and the one that could not be.
    pub levels: Vec<Level>,
    /// Why no more were opened, if not all were.
    pub stopped: Option<String>,
    /// How ten others fared when all connections were dropped at once.
    pub dropped: Option<Dropped>,
}

impl WebSocketsReport {
    /// What a system is called in tables.
    pub(crate) fn title(&self, system: &SystemReport) -> String {
        match self.settings.rounds {
            1 => system.name.clone(),
            _ => format!("{}, round {}", system.name, system.round),
        }
    }
}

/// What was found at one number of connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Level {
    /// Connections that are open and subscribed.
    pub connections: usize,
    /// Connections opened for this level, and how long that took, in seconds.
    pub opened: usize,
    /// From the first connect to the last subscription, in seconds.
    pub opening_seconds: f64,
    /// CPU time of the processes while they were opened, in seconds.
    pub opening_cpu_seconds: f64,
    /// Bytes of resident memory at the end of the level.
    pub rss_bytes: u64,
    /// What it grew by since before the first connection, for each.
    pub bytes_per_connection: f64,
    /// What the kernel's own memory (Slab) grew by on this machine, for each connection, both of its ends.
    pub kernel_bytes_per_connection: f64,
    /// Cores that the processes used while nothing but messages and heartbeats went on.
    pub cpu_cores: f64,
    /// Cores that this generator used meanwhile.
    pub generator_cores: f64,
    /// Messages published meanwhile.
    pub published: u64,
    /// Messages that came back meanwhile, and a moment after.
    pub received: u64,
    /// From publish to delivery, in seconds.
    pub latency: Option<Percentiles>,
    /// Connections that the server closed meanwhile.
    pub lost: u64,
    /// Why the first of them was.
    pub lost_because: Option<String>,
}

/// How ten connections fared, which publish to themselves all the time, when all of the study went at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Dropped {
    /// Connections that went.
    pub connections: usize,
    /// From publish to delivery in the seconds before.
    pub before: Option<Percentiles>,
    /// From publish to delivery in the seconds from then on.
    pub during: Option<Percentiles>,
    /// Published and not received.
    pub missing: u64,
    /// Bytes of resident memory afterwards.
    pub rss_bytes: u64,
}
