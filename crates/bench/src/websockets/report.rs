//! The results of the study.

use serde::{Deserialize, Serialize};

use super::arguments::WebSocketsSettings;
use super::target::Target;
use crate::expect::Verdict;
use crate::latency::Percentiles;
use crate::machine::Machine;

/// The whole report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WebSocketsReport {
    /// The machine that it ran on.
    pub(crate) machine: Machine,
    /// The settings for all systems.
    pub(crate) settings: WebSocketsSettings,
    /// The systems, by round, in the order given.
    pub(crate) systems: Vec<WebSocketsSystem>,
    /// Notes that a reader needs to interpret the figures, besides those about each system.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
    /// The outcomes of the expectations.
    #[serde(default)]
    pub(crate) expectations: Vec<Verdict>,
}

/// The results of one system in one round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WebSocketsSystem {
    /// The name of the system.
    pub(crate) name: String,
    /// The round, from 1.
    pub(crate) round: usize,
    /// The address that it was reached at.
    pub(crate) target: Target,
    /// Resident memory in bytes before the first connection; 0 without process ids.
    pub(crate) baseline_bytes: u64,
    /// The levels that were reached, and the one that could not be.
    pub(crate) levels: Vec<ConnectionLevel>,
    /// The reason why not all connections were opened, if so.
    pub(crate) stopped: Option<String>,
    /// The effect of dropping all connections at once on ten other connections.
    pub(crate) dropped: Option<Dropped>,
}

impl WebSocketsReport {
    /// The title of a system in tables.
    pub(crate) fn title(&self, system: &WebSocketsSystem) -> String {
        match self.settings.rounds {
            1 => system.name.clone(),
            _ => format!("{}, round {}", system.name, system.round),
        }
    }
}

/// The results at one number of connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ConnectionLevel {
    /// Connections that are open and subscribed.
    pub(crate) connections: usize,
    /// Connections opened for this level.
    pub(crate) opened: usize,
    /// From the first connect to the last subscription, in seconds.
    pub(crate) opening_seconds: f64,
    /// CPU time of the processes while they were opened, in seconds.
    pub(crate) opening_cpu_seconds: f64,
    /// Resident memory in bytes at the end of the level.
    pub(crate) rss_bytes: u64,
    /// Growth of resident memory since before the first connection, in bytes per connection.
    pub(crate) bytes_per_connection: f64,
    /// Growth of the kernel's own memory (Slab) on this machine, in bytes per connection with both of its ends.
    pub(crate) kernel_bytes_per_connection: f64,
    /// Cores that the processes used while there were only messages and heartbeats.
    pub(crate) cpu_cores: f64,
    /// Cores that this generator used in that time.
    pub(crate) generator_cores: f64,
    /// Messages published in that time.
    pub(crate) published: u64,
    /// Messages received in that time, and shortly after it.
    pub(crate) received: u64,
    /// Latency from publish to delivery, in seconds.
    pub(crate) latency: Option<Percentiles>,
    /// Connections that were lost in that time.
    pub(crate) lost: u64,
    /// The reason why the first of them was lost.
    pub(crate) lost_because: Option<String>,
}

/// The effect of dropping all connections of the study on ten others, each of which continuously publishes to itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Dropped {
    /// The number of connections that were dropped.
    pub(crate) connections: usize,
    /// Latency from publish to delivery in the seconds before, in seconds.
    pub(crate) before: Option<Percentiles>,
    /// Latency from publish to delivery in the seconds from then on, in seconds.
    pub(crate) during: Option<Percentiles>,
    /// Messages published and not received.
    pub(crate) missing: u64,
    /// Resident memory in bytes afterwards.
    pub(crate) rss_bytes: u64,
}
