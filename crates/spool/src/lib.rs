//! A spool takes publishes on a disk near the application, confirms them there, and forwards them to a broker that may be
//! far away or unreachable.
//!
//! # Parts
//!
//! - [`Envelope`]: a spooled message with what it takes to publish it, as it is stored.
//! - [`Forwarding`]: the order in which the messages of one queue are published, how many are in flight, what is retried
//!   later and what is refused for good.
//! - [`ClientConfirms`]: one numbering for the publishes of a client's channel, of which some are spooled and the others go
//!   directly to the broker.
//!
//! # Invariants
//!
//! - A message is reported as forwarded or parked once, and only after the broker has confirmed it or has refused it alone.
//! - Messages with the same exchange and routing key are published in their order. One that the broker refuses with basic.nack
//!   delays those of its own exchange and key alone.
//! - Everything is bounded by [`ForwardingLimits`], and time comes in as an argument.
//!
//! Sockets, disks, AMQP frames and clocks must never be added.

mod confirms;
mod envelope;
mod forwarding;
mod held;

pub use confirms::{Answer, ClientConfirms};
pub use envelope::{Envelope, EnvelopeError, SpooledMessage};
pub use forwarding::{Forwarding, ForwardingLimits, MessageRefusal, Settled};
