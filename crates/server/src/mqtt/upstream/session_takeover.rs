//! Takeovers across servers: a client that connects here has its connections to other Leveret servers in front of the
//! same upstream closed.
//!
//! Each process has one exclusive queue upstream for each login and virtual host with clients, bound to a fanout exchange
//! ([`EXCHANGE`]). An accepted client is announced to the exchange. The session's queue is requested only after the
//! confirm, when the announcement is in the queues of all processes.
//!
//! - [`table`]: the queues of this process ([`Takeovers`]).
//! - [`watch`]: one queue with its clients ([`watch::Watch`]), and a client's entry there ([`watch::Watched`]).
//! - [`link`]: the dialogue with the upstream, which [`crate::upstream::multiplexing::task`] runs.
//! - [`announcement`]: the message. [`earlier`]: the wait for the other connection's consumer.
//!
//! Invariants:
//! - An announcement closes connections of its own user only, whose name the upstream has verified (the property
//!   user_id).
//! - A client waits for its announcement for at most [`watch::MAX_WAIT`]. Without it, the client takes the session over
//!   from connections to this process only.
//! - The cost of a message here is bounded by its length.

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

/// The exchange, and the prefix of the queues' names. They share it so that one permission pattern covers both.
const EXCHANGE: &str = "leveret.mqtt.takeover";
