//! Retained messages for a client's new subscriptions.

use std::sync::Arc;

use broker::{Change, Section};
use mqtt::QoS;
use mqtt::server::{ServerConnection as Engine, Undeliverable};
use mqtt::session::OutgoingMessage;
use sync::work;

use super::client::MqttClient;
use super::delivering::{DeferredPackets, MESSAGE, Out};
use super::pending_retained::{PendingCopy, pending_key};
use super::subscriptions::FilterMatch;

impl MqttClient {
    /// Sends the retained messages that the client can take now.
    pub(super) fn deliver_retained(&mut self, engine: &mut Engine, noted: &mut DeferredPackets) {
        if self.pending_retained.first().is_none()
            || self.waiting.holds_subscriptions()
            || self.is_subscribing()
        {
            return;
        }
        let retained = self.hub.retained(self.vhost());
        // Copies that match nothing take time as well.
        while !work::is_turn_over()
            && let Some(PendingCopy { topic, is_noted, is_redelivered, filter }) =
                self.pending_retained.first()
        {
            work::charge(MESSAGE, 1);
            // `None` if the message has been cleared or the subscription removed.
            let verdict = match filter {
                Some(filter) => self.subscriptions.get(&filter).map(FilterMatch::of),
                None => self.subscriptions.match_retained(&topic),
            };
            let found = retained.get(&topic, self.now).zip(verdict);
            let copy = found.map(|(message, verdict)| OutgoingMessage {
                redelivered: is_redelivered,
                ..message.to_subscriber(&verdict, self.now)
            });
            let qos = copy.as_ref().map_or(QoS::AtMostOnce, |copy| copy.qos);
            if !self.has_capacity(noted) || (qos != QoS::AtMostOnce && engine.free_window() == 0) {
                return;
            }
            let sent = copy.map(|copy| self.send_retained(copy, engine, noted));
            if sent == Some(Err(Undeliverable::NoCapacity)) {
                // The connection has ended.
                return;
            }
            self.pending_retained.pop_first();
            match sent {
                _ if !is_noted => {}
                Some(Ok(tag)) if qos == QoS::AtLeastOnce => self.pending_retained.sent(tag, topic),
                // The session holds the message once its record is written.
                Some(Ok(_)) if qos == QoS::ExactlyOnce && self.is_persistent() => {
                    noted.settled_retained.push(topic)
                }
                // A message that is too large for the client counts as sent.
                _ => self.clear_pending_retained(&topic),
            }
        }
    }

    /// Sends the message and returns its tag.
    fn send_retained(
        &mut self,
        copy: OutgoingMessage,
        engine: &mut Engine,
        noted: &mut DeferredPackets,
    ) -> Result<u64, Undeliverable> {
        let tag = self.own_tag();
        let is_noted = copy.qos == QoS::ExactlyOnce && self.is_persistent();
        let sent = if is_noted || !noted.bytes.is_empty() {
            engine.deliver(copy, tag, &mut noted.bytes)
        } else {
            let sent = self.outbox.append(|buf| engine.deliver(copy, tag, &mut Out(buf)));
            sent.unwrap_or(Err(Undeliverable::NoCapacity))
        };
        sent.map(|packet_id| {
            noted.exactly_once.extend(packet_id.filter(|_| is_noted));
            tag
        })
    }

    /// Called when the client has acknowledged the topic's retained message: removes the topic from disk, if it is there.
    pub(super) fn clear_pending_retained(&self, topic: &Arc<str>) {
        if let Some(change) = self.settled_retained(topic) {
            self.vhost().note(|catalogue| catalogue.note([change]));
        }
    }

    /// The change that removes the topic from disk; `None` if it is pending again.
    pub(super) fn settled_retained(&self, topic: &Arc<str>) -> Option<Change> {
        let is_settled = !self.pending_retained.needs(topic);
        is_settled.then(|| Change::delete(Section::MqttPendingRetained, pending_key(&self.owner, topic)))
    }
}
