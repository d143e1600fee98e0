//! Retained messages in front of an upstream: stored there, so that all Leveret servers have the same, and held in memory
//! here.
//!
//! The upstream has one stream for each virtual host ([`LOG`]), the log of all retained messages. Each process with MQTT
//! clients of a virtual host reads the log from its first entry, and holds the last message of each topic in memory. One
//! queue per topic would not work: AMQP cannot list the queues that a filter matches, and a queue costs RabbitMQ 23 to 46
//! KiB, gigabytes for 100,000 topics. The stream costs it some 10 MiB for these (docs/benchmarks.md).
//!
//! - [`record`]: an entry of the log. [`topics`]: the messages in the log, and which entries are copied before they are
//!   dropped.
//! - [`log`]: a log and its clients ([`LogClient`]); [`table`]: all logs of this process; [`logins`]: the login that
//!   reads a log; [`status`]: the operators' list.
//! - [`link`]: the dialogue with the upstream, which [`crate::upstream::multiplexing::task`] runs.
//! - [`publishing`]: a session's retained publishes; [`delivering`]: retained messages for its new subscriptions.
//!
//! # How a message is retained
//!
//! The client's own login sends one basic.publish to the `mqtt_exchange`, whose BCC header has a second routing key. The
//! stream is bound with that key, and no other queue receives a message through it alone ([`record::BINDING_KEY`]).
//! RabbitMQ routes the message to subscribers and to the log together, with one confirm, and removes the header. An entry
//! with an empty payload removes a topic's message.
//!
//! # How a subscriber gets it
//!
//! When the upstream has answered a SUBSCRIBE's bindings, the reader publishes a marker to the log. Once the marker is
//! read back, all that the log had at that time has been read. Then SUBACK and the retained messages follow.
//! Subscriptions share markers: one is in flight at a time. A message that is published later arrives through the
//! binding. After a live RETAIN message the topic's retained copy is sent only if it is the same, since another one may
//! be older. The copy may also be newer than live messages that are still in flight; these follow it, the newest last.
//!
//! RabbitMQ looks up bindings before it passes a message to its queues. If a subscription is bound, and its marker
//! published, in between, then the message reaches neither. Its publisher has no confirm at that time.
//!
//! # Invariants
//! - A retained message is published only once the log is declared and bound, or no login here may use it.
//! - It has the second key in that case as well: another server may read the log, and must not keep a message that was
//!   removed.
//! - Entries that anybody may have published are validated, and no entry hides later ones ([`record::read`]).
//! - The needed entries are a bounded part of the log, so that copying them ends ([`topics::LogLimits`]).
//! - A client sees every message that was retained before the upstream accepted its filter's binding, whichever login
//!   reads the log.

mod delivering;
mod link;
mod log;
mod logins;
mod publishing;
mod record;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod topics;

pub(super) use delivering::{RetainedSession, RetainedWait};
pub(super) use log::LogClient;
pub(super) use publishing::BlindCopies;
pub use status::{RetainedState, RetainedStatus};
pub(super) use table::RetainedLogs;

use topics::LogLimits;

/// The stream, and the exchange for markers and copies. They share a name so that one permission pattern covers both.
const LOG: &str = "leveret.mqtt.retained";

/// The size of a log. All retained messages together may take a quarter of it; a process that starts reads all of it.
/// Segments are dropped as a whole.
const LIMITS: LogLimits = LogLimits { maximum: 256 << 20, segment: 16 << 20 };
