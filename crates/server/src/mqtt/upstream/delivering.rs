//! Messages for a client in front of an upstream, from the shared queue (live) and from the session's own queue.

use std::sync::Arc;
use std::time::Duration;

use amqp::{Fault, Properties, ReplyCode};
use bytes::Bytes;
use mqtt::QoS;
use mqtt::ReasonCode;
use mqtt::server::{ServerConnection as Engine, Undeliverable};
use mqtt::session::OutgoingMessage;
use sync::work;

use super::live::LiveEvent;
use super::queue_consumer::QueuedMessage;
use super::session::{UpstreamSession, of_fault};
use crate::mqtt::delivering::{MESSAGE, Out};
use crate::mqtt::message::{self, Addressed, Outgoing};
use crate::mqtt::native::StoredForm;
use crate::mqtt::subscriptions::{Class, FilterMatch, Match};
use crate::upstream::multiplexing::MultiplexedMessage;

impl UpstreamSession {
    /// Sends the messages that the client can take now.
    pub(super) fn deliver_all(&mut self, engine: &mut Engine) {
        // Before live messages, which were published later.
        self.deliver_retained(engine);
        self.deliver_live(engine);
        self.deliver_deferred(engine);
        self.advance_subscribes();
        self.deliver_retained(engine);
        let is_settled = self.deliver_queued(engine) | self.deliver_shared(engine);
        // Answers may have made space for further entries.
        if self.handle_entries(engine) || is_settled || self.uplink.can_resume() {
            // Messages that the client does not acknowledge are acknowledged upstream, and paused consumers are resumed.
            self.take_turn(engine);
        }
        if work::is_turn_over() {
            self.outbox.nudge();
        }
    }

    /// Handles answers and messages from the shared queue.
    fn deliver_live(&mut self, engine: &mut Engine) {
        while self.is_open() && !work::is_turn_over() {
            // A message that waits for the client's window blocks those behind it.
            let has_capacity = self.outbox.has_capacity() && (engine.free_window() > 0 || !self.live.holds());
            match self.live.take(has_capacity) {
                None => return,
                Some(LiveEvent::Answered(number, answer)) => self.answered(number, answer, engine),
                Some(LiveEvent::Message(message)) => {
                    if !self.send_live(&message, engine) {
                        return self.live.hold(message);
                    }
                }
                Some(LiveEvent::Overflowed) => {
                    let fault = Fault::new(ReplyCode::ResourceError, "the client does not take its messages");
                    return self.fail(ReasonCode::QuotaExceeded, &fault);
                }
                Some(LiveEvent::Lost(fault) | LiveEvent::Ended(fault)) => {
                    self.note_refused(&fault);
                    return self.fail(of_fault(&fault), &fault);
                }
            }
        }
    }

    /// Sends a message of the shared queue, if it is for the client. Returns false if the client's window is full.
    fn send_live(&mut self, shared: &Arc<MultiplexedMessage>, engine: &mut Engine) -> bool {
        work::charge(MESSAGE, 1);
        let Ok(properties) = Properties::decode(&shared.properties) else { return true };
        let Some(outgoing) = self.outgoing(&shared.routing_key, &properties) else { return true };
        // Without a session queue, messages of all QoS come through the shared queue.
        let class = if self.uses_queue() { Class::Qos0 } else { Class::Qos1 };
        let verdict = match self.match_topic(&outgoing, class) {
            Match::Send(verdict) => verdict,
            Match::Drop if self.paths.is_lingering(&outgoing.topic) => {
                self.paths.defer(shared, self.at);
                return true;
            }
            Match::Drop | Match::None => return true,
        };
        if outgoing.qos.min(verdict.qos) != QoS::AtMostOnce && engine.free_window() == 0 {
            return false;
        }
        if outgoing.retain {
            self.retained.sent_live(&outgoing.topic, &shared.body, &self.outbox);
        }
        let payload = shared.body.clone();
        let message = self.address(outgoing, &properties, shared.redelivered, payload, &verdict, engine);
        let tag = self.own_tag();
        // A message that is too large for the client counts as sent.
        let _ = self.send(message, tag, engine);
        true
    }

    /// Sends live messages whose copies have not come through the session's queue.
    fn deliver_deferred(&mut self, engine: &mut Engine) {
        while self.outbox.has_capacity()
            && !work::is_turn_over()
            && let Some(shared) = self.paths.next_deferred(self.at)
        {
            work::charge(MESSAGE, 1);
            let Ok(properties) = Properties::decode(&shared.properties) else { continue };
            let Some(outgoing) = self.outgoing(&shared.routing_key, &properties) else { continue };
            if let Match::Send(verdict) = self.match_topic(&outgoing, Class::Qos1) {
                let verdict = FilterMatch { qos: QoS::AtMostOnce, ..verdict };
                let payload = shared.body.clone();
                let message =
                    self.address(outgoing, &properties, shared.redelivered, payload, &verdict, engine);
                // A message that is too large for the client counts as sent.
                let _ = self.send(message, 0, engine);
            }
        }
    }

    /// Sends messages of the session's queue. Returns whether some have to be acknowledged upstream at once.
    fn deliver_queued(&mut self, engine: &mut Engine) -> bool {
        let mut is_settled = false;
        while self.is_open()
            && engine.free_window() > 0
            && self.outbox.has_capacity()
            && !work::is_turn_over()
        {
            let Some(message) = self.uplink.consumer().take() else { break };
            let delivery_tag = message.delivery_tag;
            if !self.send_queued(message, engine) {
                self.uplink.acknowledge(delivery_tag);
                is_settled = true;
            }
        }
        is_settled
    }

    /// Sends a message of the session's queue. Returns whether the client will acknowledge it.
    fn send_queued(&mut self, queued: QueuedMessage, engine: &mut Engine) -> bool {
        work::charge(MESSAGE, 1);
        let QueuedMessage { delivery_tag, redelivered, exchange, routing_key, properties, body } = queued;
        self.paths.note_queued(&routing_key, &properties, &body);
        let Ok(properties) = Properties::decode(&properties) else { return false };
        let Some(outgoing) = self.outgoing(&routing_key, &properties) else { return false };
        let verdict = match self.match_topic(&outgoing, Class::Qos1) {
            // At QoS 1 even if the subscription was changed to QoS 0 since, as in RabbitMQ.
            Match::Send(verdict) => FilterMatch { qos: QoS::AtLeastOnce, ..verdict },
            Match::Drop if *exchange == *self.hub.config.exchange => return false,
            // Routed by a binding that another server created for the client, or that was removed since.
            Match::Drop | Match::None => FilterMatch { qos: QoS::AtLeastOnce, ..FilterMatch::default() },
        };
        if outgoing.retain {
            self.retained.sent_live(&outgoing.topic, &body, &self.outbox);
        }
        let message = self.address(outgoing, &properties, redelivered, Bytes::from(body), &verdict, engine);
        let is_answered = message.qos != QoS::AtMostOnce;
        self.send(message, delivery_tag, engine).is_ok() && is_answered
    }

    /// Sends messages of shared subscriptions. Returns whether some have to be acknowledged upstream at once.
    fn deliver_shared(&mut self, engine: &mut Engine) -> bool {
        let mut is_settled = false;
        while self.is_open()
            && engine.free_window() > 0
            && self.outbox.has_capacity()
            && !work::is_turn_over()
        {
            let Some((consumer, message)) = self.uplink.take_shared() else { break };
            let delivery_tag = message.delivery_tag;
            let Some(verdict) = self.groups.get().and_then(|groups| groups.verdict(consumer)) else {
                // The subscription is gone, so the message goes to another member.
                self.uplink.stop_shared(consumer, Vec::new());
                is_settled = true;
                continue;
            };
            if !self.send_shared(consumer, message, &verdict, engine) {
                self.uplink.acknowledge_shared(consumer, delivery_tag);
                is_settled = true;
            }
        }
        is_settled
    }

    /// Sends a message of a shared subscription. Returns whether the client will acknowledge it.
    fn send_shared(
        &mut self,
        consumer: usize,
        queued: QueuedMessage,
        verdict: &FilterMatch,
        engine: &mut Engine,
    ) -> bool {
        work::charge(MESSAGE, 1);
        let QueuedMessage { delivery_tag, redelivered, exchange, routing_key, properties, body } = queued;
        let Ok(properties) = Properties::decode(&properties) else { return false };
        let Some(outgoing) = self.outgoing(&routing_key, &properties) else { return false };
        if *exchange == *self.hub.config.exchange && !self.groups.made().matches(consumer, &outgoing.topic) {
            return false;
        }
        let message = self.address(outgoing, &properties, redelivered, Bytes::from(body), verdict, engine);
        let is_answered = message.qos != QoS::AtMostOnce;
        let tag = self.own_tag();
        let is_sent = self.send(message, tag, engine).is_ok();
        if is_sent {
            self.groups.made().count_delivered(consumer);
        }
        if is_sent && is_answered {
            self.groups.made().sent(tag, consumer, delivery_tag);
        }
        is_sent && is_answered
    }

    /// The part of an AMQP message that matters to MQTT clients; `None` if its routing key is not a valid topic.
    fn outgoing(&self, routing_key: &str, properties: &Properties<'_>) -> Option<Outgoing> {
        message::outgoing(self.mapping.topic(routing_key), properties, self.mapping.form)
    }

    fn match_topic(&self, outgoing: &Outgoing, class: Class) -> Match {
        let is_own = outgoing.client_id.as_deref() == Some(&*self.owner.client_id);
        self.subscriptions.match_merged(&outgoing.topic, class, is_own)
    }

    /// The message to send to the client.
    fn address(
        &self,
        outgoing: Outgoing,
        properties: &Properties<'_>,
        redelivered: bool,
        payload: Bytes,
        verdict: &FilterMatch,
        engine: &Engine,
    ) -> OutgoingMessage {
        let (mapping, left) = (self.mapping, self.time_left(properties));
        let addressed = Addressed { outgoing, properties, mapping, left, redelivered, payload };
        addressed.into_message(verdict, engine.version().is_5())
    }

    /// The time until a message expires. RabbitMQ 4 states in `timestamp` when it was published; otherwise that is not
    /// known.
    fn time_left(&self, properties: &Properties<'_>) -> Option<Duration> {
        let expiration: u64 = properties.expiration?.parse().ok()?;
        let published = properties.timestamp.filter(|_| self.mapping.form != StoredForm::Headers);
        let since = published.map_or(0, |seconds| self.wall.0.saturating_sub(seconds.saturating_mul(1000)));
        Some(Duration::from_millis(expiration.saturating_sub(since)))
    }

    pub(super) fn send(
        &self,
        message: OutgoingMessage,
        tag: u64,
        engine: &mut Engine,
    ) -> Result<(), Undeliverable> {
        let sent = self.outbox.append(|buf| {
            if message.qos == QoS::AtMostOnce {
                let properties = message.properties.as_properties();
                let (topic, retain, payload) = (&*message.topic, message.retain, &message.payload);
                engine.deliver_at_most_once(topic, retain, properties, payload, &mut Out(buf))
            } else {
                engine.deliver(message, tag, &mut Out(buf)).map(drop)
            }
        });
        sent.unwrap_or(Err(Undeliverable::NoCapacity))
    }
}
