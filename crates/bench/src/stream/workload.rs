//! The workload of one round of `bench stream`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::content::{BodyFile, MessageProperties};
use super::message::{IDENTITY_LEN, MAX_PRODUCERS, STAMPED_LEN, least_common_multiple};
use super::schedule::Schedule;
use crate::error::Error;
use crate::usage::{as_seconds, check};

/// The workload of one round; the same for every system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// Connections that publish.
    pub(crate) producers: usize,
    /// Connections that consume.
    pub(crate) consumers: usize,
    /// Channels of each of these connections.
    pub(crate) channels: u16,
    /// Body size in bytes.
    pub(crate) size: usize,
    /// The condition that ends a round.
    pub(crate) length: Length,
    /// Most unconfirmed messages of a producer; 0 is no confirms.
    pub(crate) confirms: usize,
    /// Whether messages are published as mandatory.
    pub(crate) mandatory: bool,
    /// How messages are acknowledged.
    pub(crate) acks: Acks,
    /// Whether messages are persistent.
    pub(crate) persistent: bool,
    /// Whether queues and exchange are durable.
    pub(crate) durable: bool,
    /// Bodies to use instead of generated ones of `size` bytes.
    pub(crate) bodies: Vec<BodyFile>,
    /// The properties of every message.
    pub(crate) properties: MessageProperties,
    /// Name of the queue or queues; `None` means a new one each round.
    pub(crate) queue: Option<String>,
    /// Number of queues.
    pub(crate) queues: usize,
    /// Number of the first queue.
    pub(crate) first_queue: u64,
    /// Names and values of queue arguments.
    pub(crate) queue_arguments: Vec<(String, String)>,
    /// Names and values of consumer arguments.
    pub(crate) consumer_arguments: Vec<(String, String)>,
    /// The exchange to publish to; `None` means the default exchange.
    pub(crate) exchange: Option<String>,
    /// The type of the exchange.
    pub(crate) exchange_type: String,
    /// The routing key; `None` means the names of the queues.
    pub(crate) routing_key: Option<String>,
    /// Number of routing keys, if there is a routing key.
    pub(crate) keys: usize,
    /// Whether the queues exist already and stay.
    pub(crate) predeclared: bool,
    /// Messages per second of each producer; `None` means as fast as possible.
    pub(crate) rate: Option<Schedule>,
    /// Most messages between publishers and consumers; 0 means no limit.
    pub(crate) limit_backlog: u64,
}

/// The condition that ends a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Length {
    /// After a time.
    Timed {
        /// The warm-up, which is not measured; in seconds where serialised.
        #[serde(with = "as_seconds")]
        warmup: Duration,
        /// The measured time after it; in seconds where serialised.
        #[serde(with = "as_seconds")]
        measure: Duration,
    },
    /// After this number of messages of each producer, or of each consumer if there is no producer.
    Messages(u64),
}

/// The acknowledgement mode of consumers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Acks {
    /// Not at all (no_ack).
    Automatic,
    /// With basic.ack.
    Manual {
        /// Unacknowledged messages that a consumer may hold; 0 means no limit.
        prefetch: u16,
        /// Messages per acknowledgement.
        every: u16,
    },
}

impl Workload {
    /// Validates the combination of settings.
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

    /// Whether a message may reach several queues, as with a fanout exchange.
    pub(crate) fn is_copied(&self) -> bool {
        let Some(_) = &self.exchange else { return false };
        let key = self.routing_key.as_ref().or(self.queue.as_ref()).map_or("", String::as_str);
        match self.exchange_type.as_str() {
            // The bindings of predeclared objects are unknown.
            _ if self.predeclared => true,
            "direct" => false,
            "topic" if !key.contains(['*', '#']) => false,
            _ => self.queues > 1,
        }
    }

    /// The type of the queues, if given.
    pub(crate) fn queue_type(&self) -> Option<&str> {
        let kind = self.queue_arguments.iter().find(|(name, _)| name == "x-queue-type");
        kind.map(|(_, value)| value.as_str())
    }

    /// Whether queues are of a type that is always durable and never auto-deleted.
    pub(crate) fn is_replicated(&self) -> bool {
        matches!(self.queue_type(), Some("quorum" | "stream"))
    }

    /// Whether publishers wait for consumers to keep up.
    pub(crate) fn is_coupled(&self) -> bool {
        self.limit_backlog > 0 && self.confirms == 0 && self.producers > 0 && self.consumers > 0
    }
}

/// RabbitMQ's limit on a connection.
const MAX_CHANNELS: u16 = 2047;
/// RabbitMQ's largest configurable message.
const MAX_SIZE: usize = 512 << 20;
/// A window's bookkeeping takes 32 bytes a message.
const MAX_CONFIRMS: usize = 1_000_000;
/// More than any realistic test needs.
const MAX_QUEUES: usize = 100_000;
/// Bytes of encoded messages that a producer keeps in memory.
const MAX_CYCLE: usize = 512 << 20;
