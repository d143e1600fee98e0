//! A session's messages that are to be retained.

use std::collections::VecDeque;

use amqp::{FieldTable, FieldValue, Properties, RawTable};
use bytes::Bytes;
use mqtt::packet::PublishPacket;

use super::log::LogClient;
use super::record::second_key;
use crate::mqtt::message::Incoming;
use crate::mqtt::session::{Refusal, Then};
use crate::mqtt::upstream::session::UpstreamSession;

/// Routing keys by which a message gets to queues of Leveret's own, and the headers that these need. RabbitMQ removes the
/// header BCC, which has the keys.
#[derive(Debug, Default)]
pub(in super::super) struct BlindCopies {
    keys: Vec<String>,
    headers: FieldTable,
}

/// A message, or the refusal of one, that waits for the log.
pub(in super::super) enum HeldPublish {
    Message { packet_id: u16, routing_key: Box<str>, properties: Vec<u8>, body: Bytes },
    Refused(Then),
}

impl BlindCopies {
    /// Adds a routing key, and a header for those who get the message by it.
    pub(in super::super) fn add(&mut self, key: String, (name, value): (&str, FieldValue)) {
        self.keys.push(key);
        self.headers.insert(name, value);
    }

    /// Adds the copies to a message's properties (flags and list).
    pub(in super::super) fn apply(self, properties: Vec<u8>) -> Vec<u8> {
        let Self { keys, headers: added } = self;
        let Ok(mut amqp) = Properties::decode(&properties) else { return properties };
        if keys.is_empty() {
            return properties;
        }
        let mut headers = amqp.headers.map(|headers| headers.decode()).unwrap_or_default();
        for (name, value) in added.iter() {
            headers.remove(name);
            headers.insert(name, value.clone());
        }
        headers.insert("BCC", FieldValue::Array(keys.into_iter().map(FieldValue::text).collect()));
        let headers = headers.encode();
        amqp.headers = RawTable::check(&headers).ok();
        let mut extended = Vec::new();
        amqp.encode(&mut extended);
        extended
    }
}

impl LogClient {
    /// Adds the copy of a message for the log.
    ///
    /// # Errors
    /// Too much is retained.
    pub(in super::super) fn retain(
        &self,
        message: &Incoming<'_>,
        routing_key: &str,
        payload: usize,
        copies: &mut BlindCopies,
    ) -> Result<(), Refusal> {
        self.check(routing_key, message.properties.bytes(), payload)?;
        copies.add(second_key(routing_key), self.header(message));
        Ok(())
    }
}

impl UpstreamSession {
    /// Publishes a message, behind those that wait for the log.
    pub(in super::super) fn publish_in_order(
        &mut self,
        publish: &PublishPacket<'_>,
        routing_key: &str,
        properties: Vec<u8>,
    ) {
        let (packet_id, body) = (publish.packet_id, publish.payload.to_bytes());
        let retained = &mut self.retained;
        if retained.held.is_empty() && !(publish.retain && retained.log.must_wait(&self.outbox)) {
            self.uplink.publish(packet_id, routing_key, &properties, &body, self.at);
            return;
        }
        let routing_key = routing_key.into();
        retained.held.push_back(HeldPublish::Message { packet_id, routing_key, properties, body });
    }

    /// Answers a message that is not published, behind those that wait for the log.
    pub(in super::super) fn refuse_in_order(&mut self, then: Then) {
        if self.retained.held.is_empty() {
            self.uplink.refuse(then);
        } else {
            self.retained.held.push_back(HeldPublish::Refused(then));
        }
    }

    /// Publishes what has waited for the log, if it is there or the connection `ends`.
    pub(in super::super) fn publish_held(&mut self, ends: bool) {
        if self.retained.held.is_empty() || !(ends || self.retained.log.is_known()) {
            return;
        }
        for held in std::mem::take(&mut self.retained.held) {
            match held {
                HeldPublish::Message { packet_id, routing_key, properties, body } => {
                    self.uplink.publish(packet_id, &routing_key, &properties, &body, self.at);
                }
                HeldPublish::Refused(then) => self.uplink.refuse(then),
            }
        }
    }
}

/// Messages that wait.
pub(super) type HeldPublishes = VecDeque<HeldPublish>;
