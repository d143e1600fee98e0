//! The server's end of one connection.
//!
//! # Order of the calls
//! 1. [`ServerConnection::handle_input`] with the received bytes, repeatedly until it consumes nothing and reports
//!    nothing; each call stops after one event. Each call appends the bytes to be sent to `out`, in order.
//! 2. [`MqttEvent::Connect`]: the server authorises the client, ends another connection of the same client
//!    identifier ([`ServerConnection::disconnect`] with Session taken over, [`ServerConnection::take_session`]), and
//!    answers with [`ServerConnection::accept`], passing the stored session, or [`ServerConnection::refuse`].
//! 3. Messages for the client: [`ServerConnection::deliver`] while [`ServerConnection::free_window`] is above 0.
//! 4. [`ServerConnection::next_deadline`] returns the latest time for [`ServerConnection::handle_deadline`]; timeouts of
//!    the handshake and of writing are up to the caller.
//! 5. The end is reported once, as an [`MqttEnd`]: by an event, or by the call that caused it. The session is
//!    then [taken](ServerConnection::take_session) and stored for as long as `End::session_expiry` says.
//!
//! # Durability
//! Nothing survives kill -9 unless the server stores it. It can do so at five points, each before something is sent:
//! before the output of `deliver` (the message has an identifier), before `accepted` (the message is published, at
//! QoS 2 its identifier is stored), before `release` (the client has the message), before `complete` (the identifier
//! is free), and before `subscribed`. A server that writes [`Session::encode`](crate::session::Session::encode) to
//! disk at these points loses nothing of QoS 1 and repeats nothing of QoS 2.

mod alias;
mod answer;
mod connect;
mod connection;
mod deliver;
mod event;
mod input;
mod keep_alive;
mod settings;
mod will;

pub use connection::{MqttStep, Output, ServerConnection};
pub use deliver::Undeliverable;
pub use event::{Cause, MqttEnd, MqttEvent, Requested, SubscribeEvent};
pub use settings::MqttSettings;
pub use will::StoredWill;

/// Splits `vhost:user` as RabbitMQ does, at the last colon. Without a colon there is no vhost.
pub fn split_user_name(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once(':') {
        Some((vhost, user)) => (Some(vhost), user),
        None => (None, name),
    }
}

#[cfg(test)]
mod tests;
