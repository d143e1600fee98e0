//! How an open connection writes its session's state: records of QoS 2 messages, and the list of subscriptions.

use std::collections::VecDeque;

use amqp::{Fault, ReplyCode};
use bytes::Bytes;
use mqtt::packet::SubscribeOptions;
use mqtt::server::ServerConnection as Engine;
use mqtt::session::Subscription;
use mqtt::{QoS, ReasonCode};
use sync::work;

use super::queue::{StateEvent, StateQueue, StateUsage};
use super::record::{MAX_LIST, MAX_RECEIVED, digest, listed_bytes};
use crate::mqtt::hub::queue_name;
use crate::mqtt::session::PendingReply;
use crate::mqtt::upstream::session::{UpstreamSession, of_fault};

/// Cost of a record, in nanoseconds.
const RECORD: u32 = 1_000;

/// Cost of a subscription in a list, in nanoseconds.
const LISTED_SUBSCRIPTION: u32 = 20;

/// A message that a client has published.
pub(in super::super) struct OutboundPublish {
    pub(in super::super) packet_id: u16,
    pub(in super::super) qos: QoS,
    pub(in super::super) dup: bool,
    /// Whether it is to be retained.
    pub(in super::super) retains: bool,
    /// The topic as sent by the client.
    pub(in super::super) topic: Box<str>,
    pub(in super::super) routing_key: Box<str>,
    pub(in super::super) properties: Vec<u8>,
    pub(in super::super) body: Bytes,
}

/// The pending work for the state queue.
#[derive(Default)]
pub(in super::super) struct StateWork {
    /// Messages and releases that wait, in order, for the state queue or for the log of retained messages. The client is
    /// not read meanwhile.
    deferred: VecDeque<DeferredWork>,
    /// Releases whose records are unconfirmed: the number of the record and the packet identifier.
    releases: VecDeque<(u64, u16)>,
    /// Whether the queue has to be declared.
    is_needed: bool,
    /// Whether the list has to be written again.
    is_outdated: bool,
    /// Requests of the client that wait for the next list.
    waiting: Vec<u64>,
    /// The number of the unconfirmed list, with the requests that wait for it.
    listing: Option<(u64, Vec<u64>)>,
    /// Bytes of the subscriptions in a list.
    listed_bytes: usize,
}

enum DeferredWork {
    Publish(OutboundPublish),
    /// The answer to a message that is not published.
    Refused(PendingReply),
    /// The client has released a message.
    Release(u16),
}

impl StateWork {
    /// Whether the client may be read.
    pub(in super::super) fn has_capacity(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Whether no work is pending.
    pub(in super::super) fn is_settled(&self) -> bool {
        self.deferred.is_empty() && self.releases.is_empty()
    }
}

impl UpstreamSession {
    /// Publishes a message after earlier ones. For a persistent session a QoS 2 message has a record.
    pub(in super::super) fn publish_in_order(&mut self, message: OutboundPublish) {
        let is_recorded = message.qos == QoS::ExactlyOnce && self.uses_queue();
        if !is_recorded && self.work.deferred.is_empty() && !self.waits_for_log(&message) {
            return self.publish_plain(&message);
        }
        self.work.deferred.push_back(DeferredWork::Publish(message));
        self.pass_deferred();
    }

    /// Queues the answer to a message that is not published, after earlier messages.
    pub(in super::super) fn refuse_in_order(&mut self, then: PendingReply) {
        if self.work.deferred.is_empty() {
            self.uplink.answer(then);
        } else {
            self.work.deferred.push_back(DeferredWork::Refused(then));
        }
    }

    /// Whether a message is retained, and the log is not available yet.
    fn waits_for_log(&self, message: &OutboundPublish) -> bool {
        message.retains && self.retained.log.must_wait(&self.outbox)
    }

    /// The usage of the state queue. Does not allocate it.
    fn state_usage(&self) -> StateUsage {
        self.uplink.used_state().map_or(StateUsage::Unused, StateQueue::usage)
    }

    fn publish_plain(&mut self, message: &OutboundPublish) {
        let OutboundPublish { packet_id, routing_key, properties, body, .. } = message;
        self.uplink.publish(*packet_id, routing_key, properties, body, self.at);
    }

    /// Handles the release of a QoS 2 message by the client.
    pub(in super::super) fn release(&mut self, packet_id: u16) {
        if self.uplink.used_state().and_then(|state| state.digest(packet_id)).is_none() {
            return self.answers.push_back(PendingReply::Complete { packet_id });
        }
        self.work.deferred.push_back(DeferredWork::Release(packet_id));
        self.pass_deferred();
    }

    /// Processes deferred work for as long as the state queue has capacity.
    fn pass_deferred(&mut self) {
        while let Some(deferred) = self.work.deferred.pop_front() {
            if let Err(deferred) = self.pass(deferred) {
                self.work.deferred.push_front(deferred);
                return;
            }
        }
        self.work.deferred = VecDeque::new();
    }

    /// Processes one piece of deferred work, or returns it if it has to wait.
    fn pass(&mut self, deferred: DeferredWork) -> Result<(), DeferredWork> {
        let usage = self.state_usage();
        let waits = !matches!(usage, StateUsage::Ready) || !self.uplink.state().has_capacity();
        match deferred {
            DeferredWork::Publish(message) if self.waits_for_log(&message) => {
                return Err(DeferredWork::Publish(message));
            }
            DeferredWork::Refused(then) => self.uplink.answer(then),
            DeferredWork::Publish(message) if message.qos != QoS::ExactlyOnce || !self.uses_queue() => {
                self.publish_plain(&message);
            }
            DeferredWork::Publish(message) if usage == StateUsage::Refused => {
                let (packet_id, reason) = (message.packet_id, ReasonCode::NotAuthorized);
                let text = "the session's state queue is refused by the upstream";
                self.uplink.answer(PendingReply::Refuse { packet_id, reason, text });
            }
            DeferredWork::Release(packet_id) if usage == StateUsage::Refused => {
                self.answers.push_back(PendingReply::Complete { packet_id });
            }
            deferred if waits => {
                self.work.is_needed |= usage == StateUsage::Unused;
                return Err(deferred);
            }
            DeferredWork::Publish(message) => self.publish_recorded(&message),
            DeferredWork::Release(packet_id) => {
                work::charge(RECORD, 1);
                let (number, record) = self.uplink.state().write_released(packet_id);
                self.uplink.publish_record(number, &record, self.at);
                self.work.releases.push_back((number, packet_id));
            }
        }
        Ok(())
    }

    /// Publishes a QoS 2 message with its record, unless an earlier connection has published it.
    fn publish_recorded(&mut self, message: &OutboundPublish) {
        work::charge(RECORD, 1);
        let OutboundPublish { packet_id, dup, topic, routing_key, properties, body, .. } = message;
        let (packet_id, digest) = (*packet_id, digest(topic, body));
        let before = self.uplink.state().digest(packet_id);
        if *dup && before == Some(digest) {
            return self.uplink.answer(PendingReply::Accept { packet_id, matched: true });
        }
        if before.is_none() && self.uplink.state().unreleased() >= usize::from(MAX_RECEIVED) {
            let (reason, text) = (ReasonCode::QuotaExceeded, "too many messages that are not released");
            return self.uplink.answer(PendingReply::Refuse { packet_id, reason, text });
        }
        // Without DUP, or with another digest, it is a new message: the client has released the earlier one.
        let (_, record) = self.uplink.state().write_received(packet_id, digest);
        self.uplink.publish_recorded(packet_id, (routing_key, properties, body), &record, self.at);
    }

    /// Counts a new subscription in the list. Returns false if the list is full, which also limits the subscriptions of a
    /// session without a list.
    pub(in super::super) fn note_subscription(
        &mut self,
        filter: &str,
        subscription: &Subscription,
        engine: &Engine,
    ) -> bool {
        self.work.is_needed |=
            self.uses_queue() && !is_plain(subscription) && self.state_usage() == StateUsage::Unused;
        let bytes = listed_bytes(filter);
        if self.work.listed_bytes + bytes + LIST_BYTES > MAX_LIST {
            // The count still includes removed and replaced subscriptions.
            self.count_listed(engine);
        }
        let has_capacity = self.work.listed_bytes + bytes + LIST_BYTES <= MAX_LIST;
        if has_capacity {
            self.work.listed_bytes += bytes;
        }
        has_capacity
    }

    /// Recounts the bytes of the subscriptions in a list.
    fn count_listed(&mut self, engine: &Engine) {
        let sizes = engine.session().subscriptions().map(|(filter, _)| listed_bytes(filter));
        let (bytes, count) = sizes.fold((0, 0), |(bytes, count), size| (bytes + size, count + 1));
        work::charge(LISTED_SUBSCRIPTION, count);
        self.work.listed_bytes = bytes;
    }

    /// A request number that is answered when the next list is confirmed; `None` if no list is needed.
    pub(in super::super) fn wait_for_list(&mut self) -> Option<u64> {
        let is_listed = match self.state_usage() {
            StateUsage::Unused => self.work.is_needed,
            StateUsage::Opening | StateUsage::Ready => true,
            StateUsage::Refused => false,
        };
        is_listed.then(|| {
            let number = self.pending.next_number();
            self.work.waiting.push(number);
            number
        })
    }

    /// Has the list written again, since a subscription in it was refused.
    pub(in super::super) fn mark_list_stale(&mut self) {
        self.work.is_outdated |= self.uplink.used_state().is_some_and(|state| state.name().is_some());
        self.outbox.nudge();
    }

    /// Declares the state queue if it is needed, and writes the list if it has changed.
    pub(in super::super) fn keep_state(&mut self, engine: &Engine) {
        self.pass_deferred();
        let usage = self.state_usage();
        let is_due = !self.work.waiting.is_empty()
            || self.work.is_outdated
            || self.uplink.used_state().is_some_and(StateQueue::wants_list);
        let opens = usage == StateUsage::Unused && self.work.is_needed;
        let writes = usage == StateUsage::Ready && is_due && self.work.listing.is_none();
        if !opens && !writes {
            return;
        }
        let has_queue = !self.queue.is_absent();
        let subscriptions = || engine.session().subscriptions().map(|(filter, one)| (filter, *one));
        self.count_listed(engine);
        let number = if opens {
            let (name, expires) = (queue_name(&self.owner.client_id, 2), self.queue_expires());
            self.uplink.state().open(&name, expires, has_queue, subscriptions());
            1
        } else {
            let (number, list) = self.uplink.state().write_list(has_queue, subscriptions());
            self.uplink.publish_record(number, &list, self.at);
            number
        };
        self.work.listing = Some((number, std::mem::take(&mut self.work.waiting)));
        (self.work.is_needed, self.work.is_outdated) = (false, false);
        // A new list makes space in the queue for further records.
        self.pass_deferred();
        self.outbox.nudge();
    }

    /// Handles confirms of records.
    pub(in super::super) fn recorded(&mut self, engine: &mut Engine) {
        let state = self.uplink.state();
        while let Some((_, packet_id)) =
            self.work.releases.pop_front_if(|(number, _)| state.is_confirmed(*number))
        {
            self.answers.push_back(PendingReply::Complete { packet_id });
        }
        if let Some((_, waiting)) = self.work.listing.take_if(|(number, _)| state.is_confirmed(*number)) {
            waiting.into_iter().for_each(|number| self.answered(number, Ok(()), engine));
        }
        self.outbox.nudge();
    }

    /// Handles an event of the state queue.
    pub(in super::super) fn handle_state(&mut self, event: StateEvent, engine: &mut Engine) {
        match event {
            StateEvent::Opened => self.recorded(engine),
            StateEvent::Refused(fault) => {
                tracing::warn!(
                    vhost = &*self.owner.vhost,
                    client = &*self.owner.client_id,
                    user = self.user(),
                    %fault,
                    "the upstream refuses the state queue of a session: QoS 2 is refused, and options of subscriptions are lost \
                     when the client moves to another server"
                );
                // The subscriptions themselves have been made, so their answers no longer wait for the list.
                let listing = self.work.listing.take().map(|(_, waiting)| waiting).unwrap_or_default();
                let waiting = std::mem::take(&mut self.work.waiting);
                for number in listing.into_iter().chain(waiting) {
                    self.answered(number, Ok(()), engine);
                }
                self.pass_deferred();
                self.outbox.nudge();
            }
            StateEvent::Lost(fault) if fault.code == ReplyCode::NotFound => self.queue_deleted(),
            StateEvent::Lost(fault) => self.fail(of_fault(&fault), &fault),
        }
    }

    /// Disconnects the client, since the upstream has refused a record and its content would be lost.
    pub(in super::super) fn record_refused(&mut self) {
        let fault = Fault::new(ReplyCode::ResourceError, "the state queue has refused a message");
        self.fail(ReasonCode::QuotaExceeded, &fault);
    }

    /// Called when the connection has ended: publishes the waiting messages that need no record.
    pub(in super::super) fn publish_rest(&mut self) {
        for deferred in std::mem::take(&mut self.work.deferred) {
            match deferred {
                DeferredWork::Publish(message) if message.qos != QoS::ExactlyOnce || !self.uses_queue() => {
                    if self.waits_for_log(&message) {
                        let (vhost, client) = (&*self.owner.vhost, &*self.owner.client_id);
                        tracing::warn!(
                            vhost,
                            client,
                            topic = &*message.topic,
                            "message published, but not retained"
                        );
                    }
                    self.publish_plain(&message);
                }
                // The client will send QoS 2 messages and releases again.
                _ => {}
            }
        }
    }
}

/// Bytes of a list without subscriptions.
const LIST_BYTES: usize = 32 + 10 * MAX_RECEIVED as usize;

/// Whether a subscription is what RabbitMQ's own listener derives from a binding, and so need not be in the list.
fn is_plain(subscription: &Subscription) -> bool {
    let SubscribeOptions { qos, no_local, retain_as_published, .. } = subscription.options;
    let is_bare = !no_local && !retain_as_published && subscription.identifier.is_none();
    qos != QoS::AtMostOnce && is_bare && !subscription.is_shared
}
