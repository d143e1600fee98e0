//! Messages for the client from its queues. Retained messages are in [`super::pending_delivery`].

use std::sync::Arc;

use amqp::Properties;
use broker::{ConsumerId, Delivery, DiskPoint, Lsn, Queue, Returned, TracedConnection};
use bytes::Bytes;
use mqtt::QoS;
use mqtt::server::{Output, ServerConnection as Engine, Undeliverable};
use mqtt::session::{OutgoingMessage, Stage, Subscription};
use mqtt::topic::merged;
use sync::work;
use transport::OutBuf;

use super::client::MqttClient;
use super::detached::{OWN_TAGS, UnackedDelivery, take_tag};
use super::hub::is_of_one_filter;
use super::inbox::SourceKey;
use super::message::{self, Addressed, MessageMapping, left};
use super::native::StoredForm;
use super::session::PendingReply;
use super::subscriptions::{Class, FilterMatch, Match, is_for, matches_only_by_star};

/// A queue that the client consumes from.
pub(super) struct ConsumedQueue {
    pub(super) key: SourceKey,
    pub(super) queue: Arc<Queue>,
    pub(super) id: ConsumerId,
    pub(super) kind: SourceKind,
    /// The filter of a shared subscription, without `$share/group/`.
    pub(super) filter: Option<Box<str>>,
    /// Deliveries to be acknowledged to the queue at the end of the batch.
    pub(super) settled: Vec<Delivery>,
}

/// The role of a queue for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceKind {
    Own(Class),
    /// The queue of a shared subscription.
    Shared(Subscription),
}

/// Packets of a batch that are sent only after the batch's QoS 2 messages are on disk.
#[derive(Default)]
pub(super) struct DeferredPackets {
    pub(super) bytes: Vec<u8>,
    /// Messages from shared queues, by the session's tags for them.
    moved: Vec<(u64, UnackedDelivery)>,
    /// Packet identifiers of the batch's QoS 2 messages.
    pub(super) exactly_once: Vec<u16>,
    /// Topics of retained messages that the session holds once the records are written.
    pub(super) settled_retained: Vec<Arc<str>>,
}

/// The outbox as the engine's output.
pub(super) struct Out<'b>(pub(super) &'b mut OutBuf);

impl Output for Out<'_> {
    fn tail(&mut self) -> &mut Vec<u8> {
        self.0.tail()
    }

    fn push(&mut self, piece: Bytes) {
        self.0.push(piece);
    }
}

impl MqttClient {
    /// Sends the messages that the client can take now.
    pub(super) fn deliver(&mut self, engine: &mut Engine) {
        if self.is_resuming() {
            // Not all of the session's subscriptions are restored yet.
            return;
        }
        let mut noted = DeferredPackets::default();
        if !self.waiting.holds_messages() {
            self.deliver_retained(engine, &mut noted);
            let mut progress = true;
            while progress && self.has_capacity(&noted) && !work::is_turn_over() {
                progress = false;
                for at in 0..self.sources.len() {
                    progress |= self.deliver_from(at, engine, &mut noted);
                }
            }
        }
        if !noted.bytes.is_empty() {
            let bytes = std::mem::take(&mut noted.bytes);
            let until = self.note(noted, engine);
            self.wait(PendingReply::Send { bytes }, until);
        }
        self.flush_settled();
        self.flush_traces();
        if work::is_turn_over() && (self.has_arrivals(engine) || self.pending_retained.first().is_some()) {
            self.outbox.nudge();
        }
    }

    /// Writes the records of the batch's QoS 2 messages, if the session is stored. Messages from shared queues belong to
    /// the session from then on: their records reach the disk before the queues' acknowledgements. If a crash leaves the
    /// records without the acknowledgements, the records do not count
    /// ([`DetachedSession::moving`](super::detached::DetachedSession::moving)). Returns the changes that sending has to
    /// wait for.
    fn note(&mut self, noted: DeferredPackets, engine: &Engine) -> DiskPoint {
        let DeferredPackets { moved, exactly_once, settled_retained, .. } = noted;
        if exactly_once.is_empty() {
            return DiskPoint::default();
        }
        let Some(store) = self.store().cloned() else { return DiskPoint::default() };
        let _ordered = store.begin_ordered_round();
        self.moving.retain(|(_, lsn)| *lsn > store.durable());
        let lsn = self.move_out(moved);
        // In one commit, since otherwise a crash could lose a message that is neither pending nor in the session.
        let settled = settled_retained.iter().filter_map(|topic| self.settled_retained(topic)).collect();
        DiskPoint { lsn, ticket: self.persist_in_flight(engine.session(), exactly_once, settled) }
    }

    /// Acknowledges messages to shared queues, since the session holds them from now on. Each queue writes its own
    /// record, and a crash may keep one record without the next. So a message is the session's exactly when its own
    /// queue's record is on disk. Returns the end of the last record.
    fn move_out(&mut self, mut moved: Vec<(u64, UnackedDelivery)>) -> Option<Lsn> {
        let mut until = None;
        for source in &self.sources {
            let of_source = moved.extract_if(.., |(_, unacked)| Arc::ptr_eq(&unacked.queue, &source.queue));
            let (tags, deliveries): (Vec<u64>, Vec<Delivery>) =
                of_source.map(|(tag, unacked)| (tag, unacked.delivery)).unzip();
            if tags.is_empty() {
                continue;
            }
            self.inbox.settled(source.key, deliveries.len());
            // A transient message has no record: after a crash only the session has it.
            if let Some(lsn) = source.queue.ack(deliveries, self.now) {
                self.moving.extend(tags.into_iter().map(|tag| (tag, lsn)));
                until = until.max(Some(lsn));
            }
        }
        debug_assert!(moved.is_empty(), "a message came from a queue that is not consumed");
        until
    }

    pub(super) fn has_capacity(&self, noted: &DeferredPackets) -> bool {
        noted.bytes.len() < MAX_NOTED && self.outbox.has_capacity() && self.may_be_traced()
    }

    /// Whether tracing permits further deliveries. Traced messages need an open publish gate and the rest of the turn.
    pub(super) fn may_be_traced(&self) -> bool {
        self.tracer.is_none() || (self.publish_gate.is_open() && !work::is_turn_over())
    }

    /// Traces a message that was taken from a queue.
    #[cold]
    fn trace(&mut self, at: usize, delivery: &Delivery) {
        let Self { tracer, authorised, view, sources, now, .. } = self;
        let tracer = tracer.get_or_insert_with(|| {
            let view = view.as_deref().map(|view| view as &dyn TracedConnection);
            Box::new(authorised.vhost().tracer(authorised.identity(), view))
        });
        tracer.delivered(1, &sources[at].queue, delivery, false, *now);
    }

    /// Publishes pending traces. Those that do not fit into the turn follow in the next one, before further messages.
    fn flush_traces(&mut self) {
        let Some(tracer) = &mut self.tracer else { return };
        let flushed = tracer.flush(self.now);
        if flushed.unfinished || work::is_turn_over() {
            self.publish_gate.pause_for_turn();
        } else if flushed.full {
            self.publish_gate.pause(self.authorised.vhost());
        } else if !self.authorised.vhost().is_traced() {
            self.tracer = None;
        }
    }

    /// Sends up to [`TURN`] messages from one queue; returns whether any was taken.
    fn deliver_from(&mut self, at: usize, engine: &mut Engine, noted: &mut DeferredPackets) -> bool {
        let (key, needs_window) =
            (self.sources[at].key, self.sources[at].kind != SourceKind::Own(Class::Qos0));
        let mut taken = 0;
        while taken < TURN
            && self.has_capacity(noted)
            && (!needs_window || engine.free_window() > 0)
            && !work::is_turn_over()
        {
            let Some(delivery) = self.inbox.take(key) else { break };
            taken += 1;
            if self.vhost().is_traced() {
                self.trace(at, &delivery);
            }
            if !self.send(at, delivery, engine, noted) {
                break;
            }
        }
        taken > 0
    }

    /// Sends a message, or settles it without sending if it is not for the client. Returns false if the client can take
    /// no more.
    fn send(
        &mut self,
        at: usize,
        delivery: Delivery,
        engine: &mut Engine,
        noted: &mut DeferredPackets,
    ) -> bool {
        work::charge(MESSAGE, 1);
        let kind = self.sources[at].kind;
        if kind == SourceKind::Own(Class::Qos1) && self.restored.remove(&delivery.position()) {
            self.take_back(at, delivery, engine);
            return true;
        }
        let Some(message) = self.message_of(at, &delivery, engine) else {
            self.settle(at, delivery);
            return true;
        };
        if message.qos == QoS::AtMostOnce {
            let properties = message.properties.as_properties();
            let (topic, retain, payload) = (&*message.topic, message.retain, &message.payload);
            let sent = if noted.bytes.is_empty() {
                let sent = self.outbox.append(|buf| {
                    engine.deliver_at_most_once(topic, retain, properties, payload, &mut Out(buf))
                });
                sent.unwrap_or(Err(Undeliverable::NoCapacity))
            } else {
                engine.deliver_at_most_once(topic, retain, properties, payload, &mut noted.bytes)
            };
            // A message too large for the client counts as sent (section 3.1.2.11.4), as does one for a closed
            // connection.
            debug_assert!(sent != Err(Undeliverable::NoCapacity) || self.outbox.is_closed());
            self.settle(at, delivery);
            return true;
        }
        let is_own = kind == SourceKind::Own(Class::Qos1);
        let tag = if is_own { delivery.position() } else { self.own_tag() };
        let is_noted = message.qos == QoS::ExactlyOnce && self.is_persistent();
        let sent = if is_noted || !noted.bytes.is_empty() {
            engine.deliver(message, tag, &mut noted.bytes)
        } else {
            let sent = self.outbox.append(|buf| engine.deliver(message.clone(), tag, &mut Out(buf)));
            sent.unwrap_or(Err(Undeliverable::NoCapacity))
        };
        let unacked = UnackedDelivery { queue: Arc::clone(&self.sources[at].queue), delivery };
        match sent {
            Ok(packet_id) => {
                noted.exactly_once.extend(packet_id.filter(|_| is_noted));
                if is_noted && !is_own {
                    // The session takes the message over only when its record is on disk. After a crash before that, the
                    // queue delivers the message to another client.
                    noted.moved.push((tag, unacked));
                } else {
                    self.unacked.insert(tag, unacked);
                }
                true
            }
            Err(Undeliverable::TooLarge) => {
                self.settle(at, unacked.delivery);
                true
            }
            Err(Undeliverable::NoCapacity) => {
                let UnackedDelivery { queue, delivery } = unacked;
                self.inbox.settled(self.sources[at].key, 1);
                queue.requeue(vec![delivery], Returned::Failed, self.now);
                false
            }
        }
    }

    /// Handles a message that was in flight before a restart and that its queue has redelivered.
    fn take_back(&mut self, at: usize, delivery: Delivery, engine: &Engine) {
        let tag = delivery.position();
        let is_awaited = |stage: &Stage| matches!(stage, Stage::Published(_));
        let entry = engine.session().in_flight().find(|entry| entry.tag == tag);
        if entry.is_some_and(|entry| is_awaited(&entry.stage)) {
            self.unacked
                .insert(tag, UnackedDelivery { queue: Arc::clone(&self.sources[at].queue), delivery });
        } else {
            self.settle(at, delivery);
        }
    }

    /// The message to send to the client. `None` if the message is not for it.
    fn message_of(&self, at: usize, delivery: &Delivery, engine: &Engine) -> Option<OutgoingMessage> {
        let (ConsumedQueue { queue, kind, filter, .. }, amqp) = (&self.sources[at], delivery.message());
        let (kind, is_from_exchange) = (*kind, amqp.exchange() == &*self.hub.config.exchange);
        let properties = Properties::decode(amqp.properties()).ok()?;
        let form = StoredForm::of(amqp, self.vhost().compatibility());
        let mapping = MessageMapping { form, ..self.mapping() };
        let is_merged = kind == SourceKind::Own(Class::Qos1) && delivery.position() < self.merged_below;
        let topic =
            if is_merged { merged(amqp.routing_key()).into() } else { mapping.topic(amqp.routing_key()) };
        let Some(outgoing) = message::outgoing(topic, &properties, form) else {
            tracing::debug!(
                key = amqp.routing_key(),
                "message not delivered: routing key is not a valid topic name"
            );
            return None;
        };
        let is_own = outgoing.client_id.as_deref() == Some(&*self.owner.client_id);
        let verdict = match kind {
            SourceKind::Own(class) => match self.match_topic(&outgoing.topic, class, is_own, is_merged) {
                Match::Send(verdict) => verdict,
                // The message was published through another exchange or directly to the queue. Or it came through a
                // binding that was created outside MQTT, or has been removed since. As in RabbitMQ, it is delivered.
                Match::None
                    if !is_from_exchange
                        || (class == Class::Qos1
                            && !is_own
                            && self.subscriptions.are_exact_for(&outgoing.topic)) =>
                {
                    FilterMatch { qos: class.highest(), ..FilterMatch::default() }
                }
                Match::None | Match::Drop => return None,
            },
            SourceKind::Shared(_)
                if is_from_exchange
                    && filter.as_deref().is_some_and(|filter| {
                        !is_for(filter, &outgoing.topic)
                            || (matches_only_by_star(filter, &outgoing.topic)
                                && is_of_one_filter(queue.name()))
                    }) =>
            {
                return None;
            }
            SourceKind::Shared(subscription) => FilterMatch::of(&subscription),
        };
        let expires = amqp.broker_properties().expiration.and_then(|_| delivery.expires());
        if expires.is_some_and(|at| at <= self.now) {
            return None;
        }
        let addressed = Addressed {
            outgoing,
            properties: &properties,
            mapping,
            left: left(expires, self.now),
            redelivered: delivery.redelivered(),
            payload: amqp.body().to_bytes(),
        };
        Some(addressed.into_message(&verdict, engine.version().is_5()))
    }

    fn match_topic(&self, topic: &str, class: Class, is_own: bool, is_merged: bool) -> Match {
        if is_merged {
            self.subscriptions.match_merged(topic, class, is_own)
        } else {
            self.subscriptions.match_topic(topic, class, is_own)
        }
    }

    pub(super) fn own_tag(&mut self) -> u64 {
        take_tag(&mut self.next_tag)
    }

    /// Called when the client's own queue has been created again and counts its positions from 0: messages in flight from
    /// the earlier queue get the session's own tags instead of positions.
    pub(super) fn give_up_positions(&mut self, engine: &mut Engine) {
        self.restored.clear();
        self.merged_below = 0;
        let Self { unacked, next_tag, .. } = self;
        engine.session_mut().remap_tags(|before| {
            let tag = (before < OWN_TAGS).then(|| take_tag(next_tag))?;
            if let Some(delivery) = unacked.remove(&before) {
                unacked.insert(tag, delivery);
            }
            Some(tag)
        });
    }

    /// Called when the client has acknowledged a message.
    pub(super) fn delivered(&mut self, tag: u64, packet_id: u16, to_be_released: bool) {
        if let Some(unacked) = self.unacked.remove(&tag) {
            self.done_with(unacked);
        }
        if let Some(topic) = self.pending_retained.acknowledged(tag) {
            self.clear_pending_retained(&topic);
        }
        if to_be_released {
            // Must precede writing the session, which holds the message until its queue has released it.
            self.flush_settled();
            self.to_release.push(packet_id);
            self.changed_in_flight.push(packet_id);
        }
    }

    /// Acknowledges a message to its queue.
    fn done_with(&mut self, unacked: UnackedDelivery) {
        match self.sources.iter().position(|source| Arc::ptr_eq(&source.queue, &unacked.queue)) {
            Some(at) => self.settle(at, unacked.delivery),
            None => _ = unacked.queue.ack(vec![unacked.delivery], self.now),
        }
    }

    /// Marks a message as settled.
    fn settle(&mut self, at: usize, delivery: Delivery) {
        if self.sources[at].kind != SourceKind::Own(Class::Qos0) {
            self.sources[at].settled.push(delivery);
        }
    }

    /// Acknowledges settled messages to their queues, and lets the queues deliver more.
    pub(super) fn flush_settled(&mut self) {
        for source in &mut self.sources {
            let settled = std::mem::take(&mut source.settled);
            if !settled.is_empty() {
                self.inbox.settled(source.key, settled.len());
                self.settled_until = self.settled_until.max(source.queue.ack(settled, self.now));
            }
        }
        self.resume_sources();
    }

    /// Resumes queues that were waiting for capacity.
    fn resume_sources(&self) {
        for source in self.sources.iter().filter(|source| self.inbox.wants_resuming(source.key)) {
            source.queue.resume(source.id, self.now);
        }
    }

    /// Whether a message that can be sent now has arrived.
    pub(super) fn has_arrivals(&self, engine: &Engine) -> bool {
        let window = engine.free_window() > 0;
        !self.waiting.holds_messages()
            && !self.is_resuming()
            && self.sources.iter().any(|source| {
                (window || source.kind == SourceKind::Own(Class::Qos0)) && self.inbox.has(source.key)
            })
    }

    /// Whether a queue of the client was deleted by another party.
    pub(super) fn has_lost_a_queue(&self) -> bool {
        self.sources.iter().any(|source| self.inbox.is_gone(source.key))
    }

    /// Stops consuming from a queue.
    pub(super) fn detach(&mut self, name: &str) {
        let Some(at) = self.sources.iter().position(|source| **source.queue.name() == *name) else { return };
        let source = self.sources.swap_remove(at);
        // Nothing arrives from the queue after this.
        let mut back: Vec<Delivery> = self.inbox.remove(source.key).into();
        if source.kind == SourceKind::Own(Class::Qos0) {
            back.clear();
        }
        self.settled_until = self.settled_until.max(source.queue.ack(source.settled, self.now));
        source.queue.leave(&[source.id], back, self.now);
    }

    pub(super) fn detach_all(&mut self) {
        while let Some(source) = self.sources.last() {
            let name = Arc::clone(source.queue.name());
            self.detach(&name);
        }
    }
}

impl SourceKind {
    /// The class of its messages.
    pub(super) fn class(self) -> Class {
        match self {
            Self::Own(class) => class,
            Self::Shared(_) => Class::Qos1,
        }
    }
}

impl Class {
    /// The highest QoS at which messages of this queue are sent.
    fn highest(self) -> QoS {
        match self {
            Self::Qos0 => QoS::AtMostOnce,
            Self::Qos1 => QoS::AtLeastOnce,
        }
    }
}

/// Cost of a message for one client, in nanoseconds, without the cost of [matching](super::subscriptions) it.
pub(super) const MESSAGE: u32 = 1_500;

/// Messages that are sent from one queue before the next queue is served.
const TURN: usize = 32;

/// Bytes of packets that are collected before their records are written.
const MAX_NOTED: usize = 256 * 1024;
