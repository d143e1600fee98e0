//! The least of each protocol that the study needs: log in, subscribe to a topic of one's own, publish to it. Sans-IO.

mod amqp;
mod mqtt;
mod stomp;

use std::time::Duration;

use websocket::MessageKind;

use super::target::{Protocol, Target};

/// What a session has met.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// It is subscribed: messages can be published.
    Subscribed,
    /// A message came; its body.
    Delivery(Vec<u8>),
}

/// A client's end.
pub(super) trait Session: Send {
    /// What is sent first.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// Takes whole units from the front of `input` and appends what is to be answered. `None` when more input is needed.
    ///
    /// # Errors
    /// The server refuses, or broke the protocol.
    fn handle(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<Option<Met>, String>;
    /// Publishes to the topic of one's own.
    fn publish(&mut self, body: &[u8], out: &mut Vec<u8>);
    /// A sign of life.
    fn heartbeat(&mut self, out: &mut Vec<u8>);
}

/// The client for a target. `topic` is its own; `heartbeat` is the longest silence, zero for any.
pub(super) fn session(target: &Target, topic: &str, heartbeat: Duration) -> Box<dyn Session> {
    match target.protocol {
        Protocol::Amqp => Box::new(amqp::Client::new(target, heartbeat)),
        Protocol::Mqtt => Box::new(mqtt::Client::new(target, topic, heartbeat)),
        Protocol::Stomp => Box::new(stomp::Client::new(target, topic, heartbeat)),
    }
}

/// The kind of messages that carry a protocol.
pub(super) fn message_kind(protocol: Protocol) -> MessageKind {
    match protocol {
        Protocol::Stomp => MessageKind::Text,
        Protocol::Amqp | Protocol::Mqtt => MessageKind::Binary,
    }
}

#[cfg(test)]
mod tests;
