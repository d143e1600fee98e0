//! The state of a persistent session, stored upstream so that every server finds it: its subscriptions with their options, and
//! the messages of QoS 2 that its client has published and not released.
//!
//! - [`record`]: the messages of a state queue. [`queue`]: the queue, as far as this connection has read and written it.
//! - [`reading`]: how it is read before the client is admitted. [`keeping`]: how an open connection's session writes it.
//! - [`stale_consumers`]: how long another connection may keep a client from it.
//!
//! A session that needs it has a *state queue* beside its own, a log that is read from its front: a list is the whole state,
//! and each message behind it a change. A PUBLISH of QoS 2 is sent upstream with its record right behind it on one channel,
//! and PUBREC is sent when both are confirmed; PUBCOMP when the record of the release is. The connection that has the session
//! consumes its own records, to remove all in front of a later list.
//!
//! Invariants: SUBACK and UNSUBACK are sent when the list is confirmed; at most [`queue`]'s window of records is in the queue,
//! so that the next connection can read all of it; a record is not a proof of anything but itself, as others may write some.

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
