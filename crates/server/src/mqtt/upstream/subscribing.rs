//! A client's subscriptions in front of an upstream: live ones, and those of the session's queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use amqp::{Fault, ReplyCode};
use mqtt::server::ServerConnection as Engine;
use mqtt::session::Subscription;
use mqtt::topic::TopicFilter;
use mqtt::{QoS, ReasonCode};

use super::queue_requests::QueueRequest;
use super::retained::RetainedWait;
use super::session::{QueueState, UpstreamSession, of_fault};
use crate::mqtt::message::MAX_SHORT;
use crate::mqtt::session::{Refusal, Request, Then, granted};
use crate::mqtt::subscriptions::Class;

/// SUBSCRIBEs and UNSUBSCRIBEs without an answer at which the client is no longer read.
const MAX_PENDING: usize = 1024;

/// SUBSCRIBEs and UNSUBSCRIBEs that wait for the upstream, answered in their order.
#[derive(Default)]
pub(super) struct PendingSubscribes {
    packets: VecDeque<PendingPacket>,
    /// Number of the last request; requests about the queue and live subscriptions are numbered together.
    last: u64,
}

/// A SUBSCRIBE or UNSUBSCRIBE.
struct PendingPacket {
    packet_id: u16,
    is_subscribe: bool,
    /// The answer to each entry, as far as known.
    reasons: Vec<ReasonCode>,
    /// The requests upstream without an answer.
    waiting: Vec<PendingEntry>,
    /// The retained messages of its filters.
    retained: RetainedWait,
}

/// A request upstream for an entry of a packet.
struct PendingEntry {
    number: u64,
    /// The index of the entry.
    entry: usize,
    /// Its filter.
    filter: Box<str>,
}

impl PendingSubscribes {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.packets.len() < MAX_PENDING
    }

    /// Whether the next answer is due.
    pub(super) fn is_due(&self) -> bool {
        self.packets.front().is_some_and(PendingPacket::is_answered)
    }

    /// When the next answer is due, if the log of retained messages has not been read by then.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.packets.front()?.retained {
            RetainedWait::Ticket(_, end) => Some(end),
            _ => None,
        }
    }

    /// The next answer that is due.
    pub(super) fn next_answer(&mut self) -> Option<Then> {
        let packet = self.packets.pop_front_if(|packet| packet.is_answered())?;
        let PendingPacket { packet_id, is_subscribe, reasons, .. } = packet;
        if self.packets.is_empty() {
            self.packets = VecDeque::new();
        }
        Some(match is_subscribe {
            true => Then::Subscribed { packet_id, reasons },
            false => Then::Unsubscribed { packet_id, reasons },
        })
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records the answer to a request. Returns the filter of a subscription that was refused.
    fn answered(&mut self, number: u64, refused: Option<ReasonCode>) -> Option<Box<str>> {
        for packet in &mut self.packets {
            let Some(at) = packet.waiting.iter().position(|entry| entry.number == number) else { continue };
            let PendingEntry { entry, filter, .. } = packet.waiting.swap_remove(at);
            let reason = refused?;
            let first = &mut packet.reasons[entry];
            // The first of several requests tells why.
            if !first.is_error() {
                *first = reason;
            }
            return packet.is_subscribe.then_some(filter);
        }
        None
    }
}

impl PendingPacket {
    fn is_answered(&self) -> bool {
        self.waiting.is_empty() && matches!(self.retained, RetainedWait::No)
    }
}

impl UpstreamSession {
    /// Asks for the retained messages of SUBSCRIBEs that are bound, and collects those that are there.
    pub(super) fn advance_subscribes(&mut self) {
        for packet in self.pending.packets.iter_mut().filter(|packet| packet.waiting.is_empty()) {
            self.retained.advance(&mut packet.retained, &self.outbox, self.at);
        }
        self.collect_retained();
    }

    /// Subscribes, and answers once the upstream has bound everything.
    pub(super) fn subscribe_all(&mut self, engine: &mut Engine, packet_id: u16, requests: Vec<Request>) {
        let (mut reasons, mut waiting) = (Vec::with_capacity(requests.len()), Vec::new());
        let mut retained: Vec<Arc<str>> = Vec::new();
        for request in requests {
            let subscribed = match request.fault {
                Some(reason) => Err(Refusal { reason, text: "" }),
                None => self.subscribe_one(engine, &request),
            };
            match subscribed {
                Ok((qos, numbers)) => {
                    let entry = reasons.len();
                    reasons.push(granted(qos));
                    if request.wants_retained {
                        retained.push((*request.text).into());
                    }
                    waiting.extend(numbers.into_iter().flatten().map(|number| PendingEntry {
                        number,
                        entry,
                        filter: request.text.clone(),
                    }));
                }
                Err(refusal) => reasons.push(refusal.reason),
            }
        }
        let retained = if retained.is_empty() { RetainedWait::No } else { RetainedWait::Wanted(retained) };
        self.pending.packets.push_back(PendingPacket {
            packet_id,
            is_subscribe: true,
            reasons,
            waiting,
            retained,
        });
    }

    /// Adds a subscription. Returns the quality that is granted, and the numbers of the requests to wait for.
    fn subscribe_one(
        &mut self,
        engine: &mut Engine,
        request: &Request,
    ) -> Result<(QoS, [Option<u64>; 2]), Refusal> {
        let key = self.binding_key(&request.text, engine)?;
        let mut options = request.options(self.is_bridge);
        if self.uses_queue() {
            // As in RabbitMQ: the upstream does not know which messages the client has received.
            options.qos = options.qos.min(QoS::AtLeastOnce);
        }
        let subscription = Subscription { options, identifier: request.identifier };
        let before = engine.session_mut().subscribe(&request.text, subscription);
        self.subscriptions.insert(&request.text, subscription);
        let class = self.class_of(options.qos);
        let numbers = self.bind(class, &key);
        // Its messages came by the other way until now.
        if let Some(before) = before.map(|before| self.class_of(before.options.qos))
            && before != class
        {
            self.unbind(&request.text, &key, before);
        }
        Ok((options.qos, numbers))
    }

    /// The way by which messages of a subscription come: the session's queue, if it has one and they are of QoS 1.
    fn class_of(&self, qos: QoS) -> Class {
        if self.uses_queue() { Class::of(qos) } else { Class::Qos0 }
    }

    /// Asks the upstream for a binding. Returns the numbers of the requests.
    fn bind(&mut self, class: Class, key: &str) -> [Option<u64>; 2] {
        let number = self.pending.next_number();
        if class == Class::Qos0 {
            self.live.subscribe(&self.shared, &self.outbox, key, number);
            return [Some(number), None];
        }
        let queue = self.queue.name.clone();
        let declared = (self.queue.state == QueueState::Absent).then(|| {
            let (number, expires) = (self.pending.next_number(), self.queue_expires());
            self.uplink.request(number, QueueRequest::Declare { queue: queue.clone(), expires });
            self.queue.state = QueueState::Declared(number);
            number
        });
        self.uplink.request(number, QueueRequest::Bind { queue, key: key.into() });
        [declared, Some(number)]
    }

    /// Removes a binding, unless another subscription needs it. Returns the number of the request.
    fn unbind(&mut self, filter: &str, key: &str, class: Class) -> Option<u64> {
        if self.subscriptions.binds(filter, self.mapping, |qos| self.class_of(qos) == class) {
            return None;
        }
        if class == Class::Qos0 {
            self.live.unsubscribe(key);
            return None;
        }
        let number = self.pending.next_number();
        let queue = self.queue.name.clone();
        self.uplink.request(number, QueueRequest::Unbind { queue, key: key.into() });
        Some(number)
    }

    fn binding_key(&self, filter: &str, engine: &Engine) -> Result<String, Refusal> {
        let parsed = TopicFilter::parse(filter, engine.version().is_5())
            .map_err(|fault| Refusal { reason: fault.code, text: fault.text })?;
        let key = self.mapping.key(parsed.filter());
        if key.len() > MAX_SHORT {
            return Err(Refusal {
                reason: ReasonCode::TopicFilterInvalid,
                text: "filter longer than 255 bytes",
            });
        }
        Ok(key)
    }

    /// Unsubscribes, and answers once the upstream has unbound everything.
    pub(super) fn unsubscribe_all(&mut self, engine: &mut Engine, packet_id: u16, filters: Vec<Box<str>>) {
        let (mut reasons, mut waiting) = (Vec::with_capacity(filters.len()), Vec::new());
        for filter in filters {
            let entry = reasons.len();
            let key = self.mapping.key(&filter);
            let before = engine.session_mut().unsubscribe(&filter);
            let class = match &before {
                Some(before) => self.class_of(before.options.qos),
                // The queue of a session that another server has served may have the binding.
                None if self.queue.is_there() => Class::Qos1,
                None => {
                    reasons.push(ReasonCode::NoSubscriptionExisted);
                    continue;
                }
            };
            self.subscriptions.remove(&filter);
            let number = self.unbind(&filter, &key, class);
            let existed =
                if before.is_some() { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
            reasons.push(existed);
            waiting.extend(number.map(|number| PendingEntry { number, entry, filter }));
        }
        self.pending.packets.push_back(PendingPacket {
            packet_id,
            is_subscribe: false,
            reasons,
            waiting,
            retained: RetainedWait::No,
        });
    }

    /// Handles the upstream's answer to a request.
    pub(super) fn answered(&mut self, number: u64, answer: Result<(), Fault>, engine: &mut Engine) {
        let refused = answer.err().and_then(|fault| {
            tracing::debug!(client = &*self.owner.client_id, %fault, "refused by the upstream");
            // A queue that another server has declared otherwise is used as it is.
            (fault.code != ReplyCode::PreconditionFailed).then(|| of_fault(&fault))
        });
        if self.queue.state == QueueState::Declared(number) {
            self.queue.state = if refused.is_none() { QueueState::There } else { QueueState::Absent };
            self.consume();
        }
        if let Some(filter) = self.pending.answered(number, refused) {
            self.subscriptions.remove(&filter);
            engine.session_mut().unsubscribe(&filter);
        }
    }

    /// Consumes from the session's queue, if it is there.
    fn consume(&mut self) {
        if self.queue.is_there() {
            let (queue, window) = (self.queue.name.clone(), self.window());
            self.uplink.consume(&queue, window);
            self.outbox.nudge();
        }
    }

    /// Restores the subscriptions of a resumed session.
    pub(super) fn resume(&mut self, engine: &Engine) {
        let all: Vec<(Box<str>, Subscription)> =
            engine.session().subscriptions().map(|(filter, one)| (filter.into(), *one)).collect();
        for (filter, subscription) in all {
            self.subscriptions.insert(&filter, subscription);
            // The session's queue has its bindings.
            if Class::of(subscription.options.qos) == Class::Qos0
                && let Ok(key) = self.binding_key(&filter, engine)
            {
                let number = self.pending.next_number();
                self.live.subscribe(&self.shared, &self.outbox, &key, number);
            }
        }
        self.consume();
    }
}
