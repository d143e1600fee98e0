//! The state that outlives a connection (section 4.1): subscriptions, messages in flight to the client, and
//! the identifiers of messages of QoS 2 received from it.
//!
//! A [`Session`] belongs to the [`ServerConnection`](crate::server::ServerConnection) while there is one, and is taken
//! out of it at its end. [`Session::encode`] writes it in a form for the disk.

mod outgoing;
mod store;

use std::collections::BTreeMap;

use bytes::Bytes;

pub use outgoing::{InFlight, Outgoing, Stage};
pub use store::SessionDecodeError;

use crate::fault::MqttFault;
use crate::packet::{MqttVersion, Payload, PublishPacket, QoS, SubscribeOptions};
use crate::properties::PropertyList;
use crate::topic::TopicFilter;

/// The session state of one client.
#[derive(Debug, Default)]
pub struct Session {
    subscriptions: BTreeMap<Box<str>, Subscription>,
    pub(crate) outgoing: Outgoing,
    /// Messages of QoS 2 that the client has not released.
    received: BTreeMap<u16, ReceivedStage>,
}

/// How far a message of QoS 2 from the client has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceivedStage {
    /// It waits for its answer.
    Unanswered,
    /// The server has accepted it, and the connection itself acknowledges duplicates.
    Accepted,
    /// It was accepted on an earlier connection. If a message with its identifier comes, the server decides whether it is
    /// the same.
    Earlier,
}

/// A subscription of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscription {
    /// The options as granted.
    pub options: SubscribeOptions,
    /// The Subscription Identifier, sent along with each message.
    pub identifier: Option<u32>,
    /// Whether its filter is the `$share/group/filter` of a shared subscription. It stays shared if the client reconnects
    /// with 3.1.1, where such a filter is an ordinary one ([`Session::parse_filter`]).
    pub is_shared: bool,
}

impl Subscription {
    /// An ordinary subscription without an identifier.
    pub fn of(options: SubscribeOptions) -> Self {
        Self { options, identifier: None, is_shared: false }
    }

    /// The filter whose key in the session is `text`. `None` if it is invalid; those in a session are valid.
    pub fn filter<'a>(&self, text: &'a str) -> Option<TopicFilter<'a>> {
        TopicFilter::parse(text, self.is_shared).ok()
    }
}

/// A message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The topic to which it was published.
    pub topic: Box<str>,
    /// The quality at which it is sent: the lower of the publisher's and the subscription's.
    pub qos: QoS,
    /// Whether RETAIN is set: for a retained message that a new subscription matches, and for others if the subscription
    /// asks to pass the publisher's flag on (section 3.3.1.3).
    pub retain: bool,
    /// Whether it may have been sent before on a connection that the session does not know, such as one before a restart:
    /// at QoS 1 DUP is then set from the first sending on (MQTT-3.3.1-1). At QoS 2 such a message is sent as a new one.
    pub redelivered: bool,
    /// For clients of 5.0: the publisher's properties, Subscription Identifiers, and the rest of the Message
    /// Expiry Interval. Without Topic Alias, which belongs to the connection.
    pub properties: PropertyList,
    /// The payload of the message.
    pub payload: Bytes,
}

impl OutgoingMessage {
    pub(crate) fn as_publish<'a>(
        &'a self,
        version: MqttVersion,
        packet_id: u16,
        dup: bool,
    ) -> PublishPacket<'a> {
        let properties = if version.is_5() { self.properties.as_properties() } else { Default::default() };
        PublishPacket {
            dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id,
            properties,
            payload: Payload::new(&self.payload),
        }
    }
}

impl Session {
    /// Creates the session of a new client.
    pub fn new() -> Self {
        Self::default()
    }

    /// The subscriptions by filter; the filters are as in the SUBSCRIBE, including `$share/group/`.
    pub fn subscriptions(&self) -> impl Iterator<Item = (&str, &Subscription)> {
        self.subscriptions.iter().map(|(filter, subscription)| (&**filter, subscription))
    }

    /// Number of filters that are subscribed to, shared ones included.
    pub fn subscription_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// The filters of the shared subscriptions.
    pub fn shared_filters(&self) -> impl Iterator<Item = TopicFilter<'_>> {
        let shared = self.subscriptions().filter(|(_, subscription)| subscription.is_shared);
        shared.filter_map(|(text, subscription)| subscription.filter(text))
    }

    /// Parses the filter of a SUBSCRIBE or UNSUBSCRIBE. `$share/group/filter` is a shared subscription if the client speaks
    /// 5.0 (`is_5`), or if the session already has it as one. A client that reconnects with 3.1.1 and subscribes again thus
    /// stays a member of the group.
    ///
    /// # Errors
    /// As of [`TopicFilter::parse`].
    pub fn parse_filter<'a>(&self, text: &'a str, is_5: bool) -> Result<TopicFilter<'a>, MqttFault> {
        let is_shared = || self.subscription(text).is_some_and(|subscription| subscription.is_shared);
        TopicFilter::parse(text, is_5 || is_shared())
    }

    /// The subscription with this filter.
    pub fn subscription(&self, filter: &str) -> Option<&Subscription> {
        self.subscriptions.get(filter)
    }

    /// Adds a subscription, and returns the one with the same filter that it replaces.
    pub fn subscribe(&mut self, filter: &str, subscription: Subscription) -> Option<Subscription> {
        self.subscriptions.insert(filter.into(), subscription)
    }

    /// Removes a subscription, and returns it.
    pub fn unsubscribe(&mut self, filter: &str) -> Option<Subscription> {
        self.subscriptions.remove(filter)
    }

    /// Messages in flight to the client, in the order of their first sending.
    pub fn in_flight(&self) -> impl Iterator<Item = &InFlight> {
        self.outgoing.iter()
    }

    /// The message in flight with this packet identifier, unless it is yet to be sent again on this connection.
    pub fn in_flight_with(&self, packet_id: u16) -> Option<&InFlight> {
        self.outgoing.get(packet_id)
    }

    /// Whether a message with this tag is in flight to the client: a broker that redelivers it after a
    /// restart must not send it as another message.
    pub fn holds(&self, tag: u64) -> bool {
        self.outgoing.iter().any(|entry| entry.tag == tag)
    }

    /// Removes a message in flight that will go to another consumer.
    pub fn forget_in_flight(&mut self, tag: u64) {
        self.outgoing.forget(tag);
    }

    /// Replaces the tags of those messages in flight for which `tag` returns a new one. Returns whether it replaced any.
    pub fn remap_tags(&mut self, tag: impl FnMut(u64) -> Option<u64>) -> bool {
        self.outgoing.remap_tags(tag)
    }

    /// Messages of QoS 2 from the client that were accepted and not released.
    pub fn received(&self) -> impl Iterator<Item = u16> {
        let accepted = self.received.iter().filter(|(_, received)| **received != ReceivedStage::Unanswered);
        accepted.map(|(packet_id, _)| *packet_id)
    }

    /// Notes that a message of QoS 2 was accepted after its connection had ended, so that it is not published twice.
    pub fn accepted(&mut self, packet_id: u16) {
        if let Some(received) = self.received.get_mut(&packet_id) {
            *received = ReceivedStage::Accepted;
        }
    }

    /// Replaces the received identifiers with those of QoS 2 messages that were accepted on an earlier connection and are
    /// not released. A PUBLISH with such an identifier is reported: the server compares it with the earlier message.
    pub fn set_earlier(&mut self, packet_ids: impl IntoIterator<Item = u16>) {
        self.received = packet_ids.into_iter().map(|packet_id| (packet_id, ReceivedStage::Earlier)).collect();
    }

    /// How far such a message has come, if it was received before.
    pub(crate) fn has_received(&self, packet_id: u16) -> Option<ReceivedStage> {
        self.received.get(&packet_id).copied()
    }

    pub(crate) fn receive(&mut self, packet_id: u16) {
        self.received.insert(packet_id, ReceivedStage::Unanswered);
    }

    pub(crate) fn forget_received(&mut self, packet_id: u16) -> bool {
        self.received.remove(&packet_id).is_some()
    }

    /// Prepares for a new connection: the client will send messages that were not accepted again.
    pub(crate) fn resume(&mut self) {
        self.received.retain(|_, received| *received != ReceivedStage::Unanswered);
    }
}

#[cfg(test)]
mod tests;
