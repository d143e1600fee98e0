//! Sessions of other protocols in front of an upstream: what they need goes there as AMQP, through the pool.
//!
//! - [`client`]: an AMQP client within this process, whose server is a session of the pool.
//! - [`confirms`]: which of its messages the upstream has confirmed.
//!
//! Invariants: whatever a client of another protocol does is done upstream under its own user; nothing is acknowledged to
//! it before the upstream has confirmed it.

pub(crate) mod client;
pub(crate) mod confirms;
