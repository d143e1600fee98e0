//! What outlives a connection (section 4.1): subscriptions, messages on their way to the client, and the identifiers of
//! messages of QoS 2 that came from it.
//!
//! A [`Session`] belongs to the [`Connection`](crate::server::Connection) while there is one, and is taken out of it at
//! its end. [`Session::encode`] gives it a form for the disk.

mod outgoing;
mod store;

use std::collections::BTreeMap;

use bytes::Bytes;

pub use outgoing::{InFlight, Outgoing, Stage};
pub use store::DecodeError;

use crate::packet::{Payload, Publish, QoS, SubscribeOptions, Version};
use crate::properties::PropertyList;

/// The state of one client.
#[derive(Debug, Default)]
pub struct Session {
    subscriptions: BTreeMap<Box<str>, Subscription>,
    pub(crate) outgoing: Outgoing,
    /// Messages of QoS 2 from the client that it has not released, and whether each was accepted.
    received: BTreeMap<u16, bool>,
}

/// What the client asked to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscription {
    /// As granted.
    pub options: SubscribeOptions,
    /// Sent along with each message.
    pub identifier: Option<u32>,
}

impl Subscription {
    /// Whether RETAIN is set in what is sent: `stored` is a retained message that a new subscription gets, `published`
    /// the flag of a message that has just been published (section 3.3.1.3).
    pub fn retain_flag(&self, stored: bool, published: bool) -> bool {
        stored || (published && self.options.retain_as_published)
    }
}

/// A message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published.
    pub topic: Box<str>,
    /// At which quality it is sent: the lower of the publisher's and the subscription's.
    pub qos: QoS,
    /// See [`Subscription::retain_flag`].
    pub retain: bool,
    /// It may have been sent before, on a connection that the session knows nothing of, such as one before a restart: at
    /// QoS 1 it has DUP from the first sending on (MQTT-3.3.1-1). A message of QoS 2 that comes by itself is a new one.
    pub redelivered: bool,
    /// For clients of 5.0: what the publisher gave, Subscription Identifiers, and what is left of the Message Expiry
    /// Interval. Without Topic Alias, which is the connection's.
    pub properties: PropertyList,
    /// What it says.
    pub payload: Bytes,
}

impl Message {
    pub(crate) fn as_publish<'a>(&'a self, version: Version, packet_id: u16, dup: bool) -> Publish<'a> {
        let properties = if version.is_5() { self.properties.as_properties() } else { Default::default() };
        Publish {
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
    /// A session of a client that was never here.
    pub fn new() -> Self {
        Self::default()
    }

    /// The subscriptions by their filters, which are as in the SUBSCRIBE, with `$share/group/`.
    pub fn subscriptions(&self) -> impl Iterator<Item = (&str, &Subscription)> {
        self.subscriptions.iter().map(|(filter, subscription)| (&**filter, subscription))
    }

    /// The subscription with this filter.
    pub fn subscription(&self, filter: &str) -> Option<&Subscription> {
        self.subscriptions.get(filter)
    }

    /// Notes a subscription, and returns the one with the same filter that it replaces.
    pub fn subscribe(&mut self, filter: &str, subscription: Subscription) -> Option<Subscription> {
        self.subscriptions.insert(filter.into(), subscription)
    }

    /// Forgets a subscription.
    pub fn unsubscribe(&mut self, filter: &str) -> Option<Subscription> {
        self.subscriptions.remove(filter)
    }

    /// Messages on their way to the client, in the order of their first sending.
    pub fn in_flight(&self) -> impl Iterator<Item = &InFlight> {
        self.outgoing.iter()
    }

    /// Whether a message with this tag is on its way to the client: a broker that brings it again after a restart
    /// must not send it again by itself.
    pub fn holds(&self, tag: u64) -> bool {
        self.outgoing.iter().any(|entry| entry.tag == tag)
    }

    /// Forgets a message on its way to the client that is somebody else's after all.
    pub fn forget_in_flight(&mut self, tag: u64) {
        self.outgoing.forget(tag);
    }

    /// Messages of QoS 2 from the client that were accepted and not released.
    pub fn received(&self) -> impl Iterator<Item = u16> {
        self.received.iter().filter(|(_, accepted)| **accepted).map(|(id, _)| *id)
    }

    /// A message of QoS 2 was accepted after its connection had ended: the client will not get it published twice.
    pub fn accepted(&mut self, packet_id: u16) {
        if let Some(accepted) = self.received.get_mut(&packet_id) {
            *accepted = true;
        }
    }

    /// Whether such a message has come already; `Some(true)` when it was accepted.
    pub(crate) fn has_received(&self, packet_id: u16) -> Option<bool> {
        self.received.get(&packet_id).copied()
    }

    pub(crate) fn receive(&mut self, packet_id: u16) {
        self.received.insert(packet_id, false);
    }

    pub(crate) fn forget_received(&mut self, packet_id: u16) -> bool {
        self.received.remove(&packet_id).is_some()
    }

    /// A new connection: what was not accepted will come again.
    pub(crate) fn resume(&mut self) {
        self.received.retain(|_, accepted| *accepted);
    }
}

#[cfg(test)]
mod tests;
