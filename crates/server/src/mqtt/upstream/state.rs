//! The state of a persistent session, stored upstream so that every server finds it: its subscriptions with their
//! options, and the QoS 2 messages that its client has published and not released.
//!
//! - [`record`]: the messages of a state queue. [`queue`]: the queue, as this connection has read and written it.
//! - [`reading`]: reads it before the client is admitted. [`keeping`]: writes it during the connection.
//! - [`stale_consumers`]: limits the time for which another consumer can keep a client from it.
//!
//! A session that needs it has a *state queue* besides its message queue. It is a log that is read from its front: a list
//! is the whole state, and each later record is a change. A QoS 2 PUBLISH is sent upstream directly followed by its
//! record on the same channel. PUBREC is sent once both are confirmed, and PUBCOMP once the record of the release is. The
//! session's connection consumes its own records, in order to remove all before a later list.
//!
//! Invariants: SUBACK and UNSUBACK are sent once the list is confirmed. The queue has at most [`queue`]'s window of
//! records, so that the next connection can read all of it. A record proves nothing beyond itself, since others may write
//! records as well.

mod keeping;
mod queue;
mod reading;
mod record;
mod stale_consumers;
#[cfg(test)]
mod tests;

pub(super) use keeping::{OutboundPublish, StateWork};
pub(super) use queue::{OPENING, STATE, StateEvent, StateQueue, publish};
pub(super) use reading::{ReadState, StateReading, in_use};
pub(super) use record::MAX_RECEIVED;
#[cfg(test)]
pub(super) use stale_consumers::STALE_TIMEOUT;
pub(super) use stale_consumers::StaleConsumers;
