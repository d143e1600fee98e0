//! What one round of `bench stream` does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::content::{BodyFile, MessageProperties};
use super::message::{IDENTITY_LEN, MAX_PRODUCERS, STAMPED_LEN, least_common_multiple};
use super::schedule::Schedule;
use crate::error::Error;
use crate::usage::{as_seconds, check};

/// What one round does; the same for every system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Connections that publish.
    pub producers: usize,
    /// Connections that consume.
    pub consumers: usize,
    /// Channels of each of these connections.
    pub channels: u16,
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
    /// Whether messages are persistent.
    pub persistent: bool,
    /// Whether queues and exchange are durable.
    pub durable: bool,
    /// Bodies instead of those of `size`.
    pub bodies: Vec<BodyFile>,
    /// Of every message.
    pub properties: MessageProperties,
    /// Name of the queue or queues; `None` is a new one each round.
    pub queue: Option<String>,
    /// Number of queues.
    pub queues: usize,
    /// Number of the first.
    pub first_queue: u64,
    /// Names and values.
    pub queue_arguments: Vec<(String, String)>,
    /// Names and values.
    pub consumer_arguments: Vec<(String, String)>,
    /// `None` is the default exchange.
    pub exchange: Option<String>,
    /// Its type.
    pub exchange_type: String,
    /// `None` is the names of the queues.
    pub routing_key: Option<String>,
    /// Number of routing keys, where there is one.
    pub keys: usize,
    /// Whether the queues exist already and stay.
    pub predeclared: bool,
    /// Messages per second of each producer; `None` is as fast as it goes.
    pub rate: Option<Schedule>,
    /// Most messages between publishers and consumers; 0 is no limit.
    pub limit_backlog: u64,
}

/// When a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// After a time.
    Timed {
        /// Not measured, at the start; in seconds where serialised.
        #[serde(with = "as_seconds")]
        warmup: Duration,
        /// Measured, thereafter; in seconds where serialised.
        #[serde(with = "as_seconds")]
        measure: Duration,
    },
    /// After so many messages of each producer, or of each consumer when there is no producer.
    Messages(u64),
}

/// How consumers acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

impl Workload {
    /// Checks the parts against each other.
    pub(super) fn check(&self) -> Result<(), Error> {
        check(self.producers + self.consumers > 0, "--producers and --consumers must not both be 0")?;
        check(self.producers <= MAX_PRODUCERS, "--producers must be at most 65536")?;
        check((1..=MAX_CHANNELS).contains(&self.channels), "--channels must be between 1 and 2047")?;
        check(self.size <= MAX_SIZE, "--size must be at most 512 MiB")?;
        check(self.queues > 0, "--queues must be at least 1")?;
        check(self.queues <= MAX_QUEUES, "--queues must be at most 100000")?;
        check(self.keys > 0 && self.keys <= MAX_QUEUES, "--routing-keys must be between 1 and 100000")?;
        check(
            self.routing_key.is_none() || self.exchange.is_some() || self.predeclared,
            "--routing-key needs --exchange, or queues that are --predeclared",
        )?;
        check(self.exchange.as_deref() != Some(""), "--exchange must have a name")?;
        check(
            self.routing_key.is_none() || self.predeclared || self.queues <= self.keys,
            "--queues must not exceed --routing-keys: no message would reach the others",
        )?;
        let (keys, bodies) =
            (if self.routing_key.is_some() { self.keys } else { self.queues }, self.bodies.len().max(1));
        let cycle = least_common_multiple(least_common_multiple(keys, bodies), self.channels.into());
        let largest = self.bodies.iter().map(|body| body.bytes.len()).max().unwrap_or(self.size);
        check(
            cycle.saturating_mul(largest + 100) <= MAX_CYCLE,
            "--routing-keys, --queues, --body and --channels: all combinations together must be at most 512 MiB",
        )?;
        check(
            self.producers > 0 || self.queue.is_some(),
            "without producers, --queue must name a queue to consume",
        )?;
        check(self.length != Length::Messages(0), "--messages must be at least 1")?;
        check(self.confirms <= MAX_CONFIRMS, "--confirms must be at most 1000000")?;
        if let Acks::Manual { prefetch, every } = self.acks {
            check(every > 0, "--multi-ack must be at least 1")?;
            check(prefetch == 0 || every <= prefetch, "--multi-ack must not exceed --prefetch")?;
        }
        Ok(())
    }

    /// Whether messages are numbered.
    pub(crate) fn is_numbered(&self) -> bool {
        self.bodies.is_empty() && self.size >= IDENTITY_LEN
    }

    /// Whether messages carry the time.
    pub(crate) fn is_stamped(&self) -> bool {
        self.bodies.is_empty() && self.size >= STAMPED_LEN
    }

    /// The type of the queues, where one is given.
    pub(crate) fn queue_type(&self) -> Option<&str> {
        let kind = self.queue_arguments.iter().find(|(name, _)| name == "x-queue-type");
        kind.map(|(_, value)| value.as_str())
    }

    /// Whether queues are of a type that is always durable and never deleted by itself.
    pub(crate) fn is_replicated(&self) -> bool {
        matches!(self.queue_type(), Some("quorum" | "stream"))
    }

    /// Whether publishers wait for consumers to keep up.
    pub fn is_coupled(&self) -> bool {
        self.limit_backlog > 0 && self.confirms == 0 && self.producers > 0 && self.consumers > 0
    }
}

/// What RabbitMQ allows on a connection.
const MAX_CHANNELS: u16 = 2047;
/// RabbitMQ's largest configurable message.
const MAX_SIZE: usize = 512 << 20;
/// A window's bookkeeping takes 32 bytes a message.
const MAX_CONFIRMS: usize = 1_000_000;
/// More than a broker is asked for in any test of this kind.
const MAX_QUEUES: usize = 100_000;
/// Bytes of messages that a producer keeps encoded.
const MAX_CYCLE: usize = 512 << 20;
