//! AMQP 0-9-1 clients.
//!
//! [`connection`] speaks the handshake and channel 0; behind it stands a [`session`]: the upstream pool's, or the
//! embedded broker's ([`broker_session`]), whose channels are in [`channel`].

mod blocking;
mod channel;
mod content;
mod deliveries;
mod held;
mod room;

pub(crate) mod broker_session;
pub(crate) mod connection;
pub(crate) mod session;

#[cfg(test)]
mod simulation;
