//! The server's end of one connection.
//!
//! # Order of the calls
//! 1. [`Connection::handle_input`] with what has come, again and again until it takes nothing and tells nothing; each
//!    call ends at one event. What is to be sent is appended to `out` by each call, in order.
//! 2. [`Event::Connect`]: the server authorises the client, ends another connection of the same client identifier
//!    ([`Connection::disconnect`] with Session taken over, [`Connection::take_session`]), and answers with
//!    [`Connection::accept`], handing over the session that it kept, or [`Connection::refuse`].
//! 3. Messages for the client: [`Connection::deliver`] while [`Connection::room`] is above 0.
//! 4. [`Connection::next_deadline`] tells when [`Connection::handle_deadline`] is to be called at the latest; time-outs of
//!    the handshake and of writing are the caller's.
//! 5. The end is told once, as an [`End`]: by an event, or returned by the call that made it. The session is then
//!    [taken](Connection::take_session) and kept for as long as `End::session_expiry` says.
//!
//! # What survives kill -9
//! Nothing, unless the server keeps it. It has its chance at five moments, each before something is sent: before the
//! output of `deliver` (the message has an identifier), before `accepted` (the message is published, at QoS 2 its
//! identifier is remembered), before `release` (the message is the client's), before `complete` (the identifier is
//! free), and before `subscribed`. A server that writes [`Session::encode`](crate::session::Session::encode) down at
//! these moments loses nothing of QoS 1 and repeats nothing of QoS 2.

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

pub use connection::{Connection, Output, Step};
pub use deliver::Undeliverable;
pub use event::{Cause, End, Event, Requested, SubscribeEvent};
pub use settings::Settings;
pub use will::StoredWill;

/// Takes `vhost:user` apart, as RabbitMQ does: at the last colon. Without one there is no vhost.
pub fn split_user_name(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once(':') {
        Some((vhost, user)) => (Some(vhost), user),
        None => (None, name),
    }
}

#[cfg(test)]
mod tests;
