//! The minimum of each protocol that the study needs: log in, subscribe to one topic, publish to it. Sans-IO.

mod amqp;
mod mqtt;
mod stomp;

use std::time::Duration;

use websocket::MessageKind;

use super::error::MemberError;
use super::target::{CarriedProtocol, Target};

/// An event of a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionEvent {
    /// The session is subscribed: messages can be published.
    Subscribed,
    /// A message was received; its body.
    Delivery(Vec<u8>),
}

/// A client's end of a protocol.
pub(super) trait WebSocketSession: Send {
    /// Appends the first bytes to send.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// Handles whole frames or packets at the front of `input` and appends the answers. `None` if more input is needed.
    ///
    /// # Errors
    /// The server refuses, or violates the protocol.
    fn handle(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>)
    -> Result<Option<SessionEvent>, MemberError>;
    /// Publishes to the client's topic.
    fn publish(&mut self, body: &[u8], out: &mut Vec<u8>);
    /// Appends a heartbeat.
    fn heartbeat(&mut self, out: &mut Vec<u8>);
}

/// Creates the client for a target. `name` is its own; `heartbeat` is the longest silence, zero for no limit.
pub(super) fn session(
    target: &Target,
    name: &str,
    topic: &str,
    heartbeat: Duration,
) -> Box<dyn WebSocketSession> {
    match target.protocol {
        CarriedProtocol::Amqp => Box::new(amqp::AmqpSession::new(target, heartbeat)),
        CarriedProtocol::Mqtt => Box::new(mqtt::MqttSession::new(target, name, topic, heartbeat)),
        CarriedProtocol::Stomp => Box::new(stomp::StompSession::new(target, topic, heartbeat)),
    }
}

/// The kind of WebSocket messages that a protocol uses.
pub(super) fn message_kind(protocol: CarriedProtocol) -> MessageKind {
    match protocol {
        CarriedProtocol::Stomp => MessageKind::Text,
        CarriedProtocol::Amqp | CarriedProtocol::Mqtt => MessageKind::Binary,
    }
}

#[cfg(test)]
mod tests;
