//! Takeovers across servers: a client that connects here has its connections to other Leverets in front of the same upstream
//! closed.
//!
//! Each process has one exclusive queue upstream for each login and virtual host that has clients, bound to a fanout exchange
//! ([`EXCHANGE`]). A client that has been accepted is announced to the exchange, and the session's queue is asked for once the
//! upstream has confirmed that: the announcement then is in the queues of all processes.
//!
//! - [`table`]: the queues of this process ([`Takeovers`]).
//! - [`watch`]: one of them with its clients ([`watch::Watch`]), and a client's entry there ([`watch::Watched`]).
//! - [`link`]: the conversation with the upstream, which [`crate::upstream::multiplexing::task`] runs.
//! - [`announcement`]: the message. [`earlier`]: the wait for the other connection's consumer.
//!
//! Invariants:
//! - An announcement closes connections of its own user alone, which the upstream has checked (the property user_id).
//! - A client waits for its announcement for [`watch::MAX_WAIT`] at most. Without it, it takes the session over from
//!   connections to this process alone.
//! - What a message costs here is bounded by its length.

mod announcement;
mod earlier;
mod link;
mod table;
#[cfg(test)]
mod tests;
mod watch;

pub(super) use earlier::EarlierConsumer;
pub(super) use table::Takeovers;
#[cfg(test)]
pub(super) use watch::IDLE_TIMEOUT;
pub(super) use watch::{TakenBy, Watched, Watcher};

/// The exchange, and the beginning of the names of the queues: one pattern permits both.
const EXCHANGE: &str = "leveret.mqtt.takeover";
