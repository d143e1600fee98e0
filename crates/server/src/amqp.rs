//! AMQP 0-9-1 clients.
//!
//! [`connection`] handles the handshake and channel 0. Its [`session`] is the upstream pool's or the embedded broker's
//! ([`broker_session`]), whose channels are in [`channel`].

mod blocking;
mod channel;
mod ending;
pub(crate) mod incomplete;
mod pending_answers;

pub(crate) mod broker_session;
pub(crate) mod connection;
pub(crate) mod content;
pub(crate) mod deliveries;
pub(crate) mod publish_gate;
pub(crate) mod session;

#[cfg(test)]
mod simulation;
