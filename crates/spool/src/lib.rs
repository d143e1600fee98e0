//! A spool stores publishes on a disk near the application, confirms them there, and forwards them to a broker that may be
//! far away or unreachable.
//!
//! # Parts
//!
//! - [`Envelope`]: a spooled message as it is stored, with all that is needed to publish it.
//! - [`Forwarding`]: the order in which the messages of one main queue are published, how many are in flight, what is retried
//!   later and what is refused permanently. A destination is an exchange with a routing key. `Deferred` holds messages that
//!   wait for their destination in memory, `Backlogs` counts those that wait on disk, `RefusedExchanges` records which
//!   exchanges refuse messages, `Nacks` how long messages have been nacked, and `InFlight` holds those that are unconfirmed on
//!   a channel.
//! - [`ClientConfirms`]: one numbering for the publishes of a client's channel, of which some are spooled and the others go
//!   directly to the broker.
//!
//! # Invariants
//!
//! - A message is reported as forwarded or parked once, and only after the broker has confirmed it or has refused it alone.
//! - Messages of a destination are published in their order. One that the broker refuses with basic.nack delays those of its
//!   own destination alone.
//! - Messages in a backlog are older than those in the main queue for the same destination, so a restart restores the
//!   order.
//! - Everything is bounded by [`ForwardingLimits`], and time comes in as an argument.
//!
//! Sockets, disks, AMQP frames and clocks must never be added.

mod backlogs;
mod confirms;
mod deferred;
mod envelope;
mod forwarding;
mod in_flight;
mod item;
mod nacks;
mod refusal;
mod refused_exchanges;

pub use backlogs::{BacklogId, BacklogName};
pub use confirms::{Answer, ClientConfirms};
pub use envelope::{Envelope, EnvelopeError, SpooledMessage};
pub use forwarding::{Forwarding, ForwardingChannel, ForwardingLimits, Settled};
pub use refusal::{FaultCertainty, MessageRefusal, is_backend_error};
