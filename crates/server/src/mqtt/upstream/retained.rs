//! Retained messages in front of an upstream: kept there, so that all Leverets have the same, and in memory here.
//!
//! The upstream has one stream for each virtual host ([`LOG`]), the log of all that was retained. Each process with MQTT
//! clients of a virtual host reads it from its first entry, and has the last message of each topic in memory. One queue for
//! each topic would not do: AMQP lists no queues, so that nobody could find those that a filter matches, and a queue costs
//! RabbitMQ 23 to 46 KiB, which makes gigabytes of 100,000 topics: as a stream they cost it some 10 MiB (docs/benchmarks.md).
//!
//! - [`record`]: an entry of the log. [`topics`]: what is retained, and which entries are copied before they drop out.
//! - [`log`]: the log as sessions see it ([`LogClient`]); [`table`]: all logs of this process; [`logins`]: by whose
//!   login one is read; [`status`]: as operators see them.
//! - [`link`]: the conversation with the upstream, which [`crate::upstream::multiplexing::task`] runs.
//! - [`publishing`]: a session's messages that are to be retained; [`delivering`]: those for its new subscriptions.
//!
//! # How a message is retained
//!
//! It is one basic.publish to the exchange of MQTT clients by the client's own login, whose header BCC has a second routing
//! key: the stream is bound by it, and no other queue gets a message by it alone ([`record::BINDING_KEY`]). RabbitMQ routes it
//! to subscribers and to the log together, with one confirm, and removes the header. An empty payload is the entry that
//! removes a topic's message.
//!
//! # How a subscriber gets it
//!
//! When the upstream has answered the bindings of a SUBSCRIBE, the reader publishes a marker to the log; what it has read when
//! the marker comes back is what the log had at that time. SUBACK and the retained messages follow then. Subscriptions share
//! markers: one is on its way at a time. A message that is published later comes by the binding. After a live
//! message with RETAIN the copy of its topic is sent only if it is the same: another one may be older, and must not follow it.
//! The copy may be ahead of live messages that are still on their way: these follow it up to the newest.
//!
//! RabbitMQ looks bindings up before it hands a message to its queues. A message that it has looked up, and not yet handed to
//! the log, when a subscription is bound and the marker published comes to neither; its publisher has no confirm then.
//!
//! # Invariants
//! - A message that is to be retained is published only once the log is declared and bound, or no login here may have it.
//! - It has the second key even then: another server may read the log, and is not to continue with a message that was removed.
//! - What anybody may have published is validated, and no entry hides those behind it ([`record::read`]).
//! - Entries of use are a part of the log that is bounded, so that copying them ends ([`topics::LogLimits`]).
//! - All clients see what is retained once the upstream has accepted the binding of their filter, whoever reads the log.

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

/// The stream, and the exchange by which markers and copies get to it: one pattern permits both.
const LOG: &str = "leveret.mqtt.retained";

/// The size of a log. Its quarter is that of all retained messages together; a process that begins reads all of it. Segments
/// are dropped whole.
const LIMITS: LogLimits = LogLimits { maximum: 256 << 20, segment: 16 << 20 };
