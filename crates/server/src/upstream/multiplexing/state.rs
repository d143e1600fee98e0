//! The subscribers of a shared queue, and their bindings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::{Fault, ReplyCode};
use broker::TopicIndex;
use hashbrown::HashMap;
use slab::Slab;
use smallvec::SmallVec;
use sync::work;

use super::answers::{BindingAnswers, SLOT};
use super::inbox::{SubscriberEvent, SubscriberInbox};
use super::requests::Requests;

/// The time that a binding is kept after its last subscription, and a queue after its last subscriber: reloading a page,
/// or opening another page of the same site, costs the upstream nothing.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum length of a binding key, a short string (AMQP 0-9-1, section 4.2.5.3), in bytes.
const MAX_KEY: usize = 255;

/// The maximum of unanswered bindings of a subscriber, so that a client that subscribes endlessly is not read while the
/// upstream is slow or unreachable.
pub(super) const MAX_REQUESTED: usize = 256;

/// Identifies a subscriber. Slots are reused, serial numbers are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SubscriberId {
    slot: usize,
    serial: u64,
}

/// Identifies a binding; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BindingId(u64);

/// The state of a shared queue. Sans-IO; called by the subscribers' tasks and by the queue's own.
pub(super) struct SubscribersState {
    /// The bindings by key, which messages are matched with.
    pub(super) index: TopicIndex<BindingId>,
    pub(super) bindings: HashMap<BindingId, MultiplexedBinding>,
    next_binding: u64,
    pub(super) subscribers: Slab<SubscriberEntry>,
    next_serial: u64,
    /// The queue's name, while the upstream has the queue and delivers from it.
    queue: Option<Arc<str>>,
    pub(super) requests: Requests,
    /// Answers that have yet to be passed to subscribers.
    pub(super) answers: BindingAnswers,
    /// When the last subscriber left; `None` while there are any.
    unused_since: Option<Instant>,
    /// [`IDLE_TIMEOUT`], or zero during a shutdown.
    unused_time: Duration,
    /// Set when the queue is abandoned; it then accepts no subscriber.
    ended: bool,
    pub(super) counts: MultiplexedCounts,
}

/// Counts of a shared queue since its first use, or of all shared queues since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MultiplexedCounts {
    /// Messages received from the upstream.
    pub received: u64,
    /// Copies of these messages passed to subscribers.
    pub copies: u64,
    /// QoS 0 messages dropped for clients that did not take them fast enough.
    pub dropped: u64,
    /// Subscribers disconnected because they did not take their messages fast enough.
    pub overflowed: u64,
    /// Upstream connections lost. Messages published until the next connection was ready are missing.
    pub lost: u64,
}

impl MultiplexedCounts {
    /// Adds the counts of another queue.
    pub(super) fn add(&mut self, other: Self) {
        let Self { received, copies, dropped, overflowed, lost } = other;
        self.received += received;
        self.copies += copies;
        self.dropped += dropped;
        self.overflowed += overflowed;
        self.lost += lost;
    }
}

/// A client of the shared queue.
pub(super) struct SubscriberEntry {
    serial: u64,
    pub(super) inbox: Arc<SubscriberInbox>,
    /// Its slots in its bindings. May include a binding whose refusal has yet to be passed to it.
    pub(super) slots: HashMap<BindingId, usize>,
    /// Unanswered bindings requested for this subscriber.
    requested: usize,
    /// The number of the last message offered to it.
    pub(super) offered: u64,
}

/// A binding key with subscribers, or, for a short time, without.
pub(super) struct MultiplexedBinding {
    pub(super) key: Arc<str>,
    /// Whether the upstream has bound the key to the present queue; meaningless without a queue.
    pub(super) is_bound: bool,
    pub(super) subscribers: Slab<BindingSubscriber>,
    /// Number of subscriptions that wait for the upstream's answer.
    pub(super) waiting: usize,
    /// The subscriber for which the first request counts, until it is answered.
    requested_by: Option<SubscriberId>,
    /// Since when it has had no subscriber, if it is bound.
    pub(super) idle_since: Option<Instant>,
    /// Whether it is in [`Requests::line`].
    pub(super) in_line: bool,
}

/// A subscriber's subscriptions with one binding key.
pub(super) struct BindingSubscriber {
    pub(super) subscriber: SubscriberId,
    pub(super) subscriptions: SmallVec<[KeySubscription; 1]>,
}

/// A subscription of a client.
#[derive(Clone, Copy)]
pub(super) struct KeySubscription {
    pub(super) number: u64,
    /// Whether it has been answered to the client. It gets no messages before.
    pub(super) is_answered: bool,
}

impl SubscribersState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            index: TopicIndex::default(),
            bindings: HashMap::new(),
            next_binding: 0,
            subscribers: Slab::new(),
            next_serial: 0,
            queue: None,
            requests: Requests::default(),
            answers: BindingAnswers::default(),
            unused_since: Some(now),
            unused_time: IDLE_TIMEOUT,
            ended: false,
            counts: MultiplexedCounts::default(),
        }
    }

    /// Adds a client without subscriptions. Returns `None` if the queue has ended.
    pub(super) fn join(&mut self, inbox: &Arc<SubscriberInbox>) -> Option<SubscriberId> {
        if self.ended {
            return None;
        }
        self.unused_since = None;
        self.next_serial += 1;
        let serial = self.next_serial;
        let (slots, inbox) = (HashMap::new(), Arc::clone(inbox));
        let slot =
            self.subscribers.insert(SubscriberEntry { serial, inbox, slots, requested: 0, offered: 0 });
        Some(SubscriberId { slot, serial })
    }

    /// Removes a client with all its subscriptions.
    pub(super) fn leave(&mut self, id: SubscriberId, now: Instant) {
        if self.subscriber(id).is_none() {
            return;
        }
        let entry = self.subscribers.remove(id.slot);
        for (binding, slot) in entry.slots {
            self.remove_subscriber(binding, slot, now);
        }
        if self.subscribers.is_empty() {
            // A slab never releases its memory by itself.
            self.subscribers = Slab::new();
            self.unused_since = Some(now);
        }
    }

    /// Adds a subscription. If the key is bound, the answer is added to the inbox at once.
    pub(super) fn subscribe(&mut self, id: SubscriberId, key: &str, number: u64) {
        let Some(inbox) = self.subscriber(id).map(|entry| Arc::clone(&entry.inbox)) else { return };
        if key.len() > MAX_KEY {
            let text = format!("binding key of {} bytes; {MAX_KEY} are the most", key.len());
            return inbox
                .push(SubscriberEvent::Refused(number, Fault::new(ReplyCode::PreconditionFailed, text)));
        }
        let known = self.index.get(key).copied();
        let binding_id = known.unwrap_or_else(|| self.add_binding(key, id));
        let has_queue = self.queue.is_some();
        let Self { subscribers, bindings, requests, .. } = self;
        let (Some(entry), Some(binding)) = (subscribers.get_mut(id.slot), bindings.get_mut(&binding_id))
        else {
            return;
        };
        if binding.idle_since.take().is_some() {
            requests.idle -= 1;
        }
        let new = || {
            binding.subscribers.insert(BindingSubscriber { subscriber: id, subscriptions: SmallVec::new() })
        };
        let slot = *entry.slots.entry(binding_id).or_insert_with(new);
        let own = &mut binding.subscribers[slot].subscriptions;
        if own.iter().any(|own| own.number == number) {
            return;
        }
        let is_answered = has_queue && binding.is_bound;
        own.push(KeySubscription { number, is_answered });
        if is_answered {
            inbox.push(SubscriberEvent::Subscribed(number));
        } else {
            binding.waiting += 1;
        }
    }

    /// Removes a subscription.
    pub(super) fn unsubscribe(&mut self, id: SubscriberId, key: &str, number: u64, now: Instant) {
        let Some(&binding_id) = self.index.get(key) else { return };
        let slot = self.subscriber(id).and_then(|entry| entry.slots.get(&binding_id).copied());
        let (Some(slot), Some(binding)) = (slot, self.bindings.get_mut(&binding_id)) else { return };
        let own = &mut binding.subscribers[slot].subscriptions;
        let Some(at) = own.iter().position(|own| own.number == number) else { return };
        if !own.remove(at).is_answered {
            binding.waiting -= 1;
        }
        if own.is_empty() {
            self.remove_subscriber(binding_id, slot, now);
            if let Some(entry) = self.subscribers.get_mut(id.slot) {
                entry.slots.remove(&binding_id);
            }
        }
    }

    /// Whether a subscriber may request more bindings. Its outbox is nudged when it may again.
    pub(super) fn has_capacity(&self, id: SubscriberId) -> bool {
        self.subscriber(id).is_none_or(|entry| entry.requested < MAX_REQUESTED)
    }

    /// The entry of a present subscriber.
    fn subscriber(&self, id: SubscriberId) -> Option<&SubscriberEntry> {
        self.subscribers.get(id.slot).filter(|entry| entry.serial == id.serial)
    }

    /// As [`Self::subscriber`], mutable.
    pub(super) fn subscriber_mut(&mut self, id: SubscriberId) -> Option<&mut SubscriberEntry> {
        subscriber_in(&mut self.subscribers, id)
    }

    fn add_binding(&mut self, key: &str, id: SubscriberId) -> BindingId {
        self.next_binding += 1;
        let binding_id = BindingId(self.next_binding);
        self.index.insert(key, binding_id);
        let binding = MultiplexedBinding {
            key: key.into(),
            is_bound: false,
            subscribers: Slab::new(),
            waiting: 0,
            requested_by: Some(id),
            idle_since: None,
            in_line: false,
        };
        self.bindings.insert(binding_id, binding);
        if let Some(entry) = self.subscriber_mut(id) {
            entry.requested += 1;
        }
        if self.queue.is_some() {
            self.requests.bind(binding_id);
        }
        binding_id
    }

    fn remove_subscriber(&mut self, id: BindingId, slot: usize, now: Instant) {
        let Some(binding) = self.bindings.get_mut(&id) else { return };
        let gone = binding.subscribers.remove(slot);
        binding.waiting -= gone.subscriptions.iter().filter(|own| !own.is_answered).count();
        if !binding.subscribers.is_empty() {
            return;
        }
        binding.subscribers = Slab::new();
        match (&self.queue, binding.is_bound) {
            (None, _) => _ = self.remove_binding(id),
            (Some(_), true) => self.becomes_idle(id, now),
            // It is removed when its request is sent or answered.
            (Some(_), false) => {}
        }
    }

    /// Removes a binding from this state only; no request is sent.
    pub(super) fn remove_binding(&mut self, id: BindingId) -> Option<MultiplexedBinding> {
        self.request_ended(id);
        let binding = self.bindings.remove(&id)?;
        self.index.remove(&binding.key);
        if binding.idle_since.is_some() {
            self.requests.idle -= 1;
        }
        Some(binding)
    }

    /// Called when the first request for a binding is answered or dropped.
    pub(super) fn request_ended(&mut self, id: BindingId) {
        let by = self.bindings.get_mut(&id).and_then(|binding| binding.requested_by.take());
        if let Some(entry) = by.and_then(|by| self.subscriber_mut(by)) {
            let had_capacity = entry.requested < MAX_REQUESTED;
            entry.requested -= 1;
            if !had_capacity {
                entry.inbox.nudge();
            }
        }
    }

    /// Called when the upstream has declared this queue and delivers from it: all keys have to be bound to it.
    pub(super) fn handle_declared(&mut self, queue: &Arc<str>) {
        self.queue = Some(Arc::clone(queue));
        self.requests.clear();
        work::charge(SLOT, self.bindings.len());
        for (id, binding) in &mut self.bindings {
            binding.is_bound = false;
            self.requests.bind(*id);
        }
    }

    /// Called when the upstream connection is lost, and the queue with it.
    pub(super) fn handle_lost(&mut self) {
        self.queue = None;
        self.requests.clear();
        self.counts.lost += 1;
    }

    /// The queue's name, while the upstream has it.
    pub(super) fn queue(&self) -> Option<&Arc<str>> {
        self.queue.as_ref()
    }

    /// Abandons the queue. Returns its subscribers' inboxes, which the caller has to notify.
    pub(super) fn end(&mut self) -> Vec<Arc<SubscriberInbox>> {
        if std::mem::replace(&mut self.ended, true) {
            return Vec::new();
        }
        self.queue = None;
        self.requests.clear();
        self.subscribers.iter().map(|(_, entry)| Arc::clone(&entry.inbox)).collect()
    }

    /// Abandons the queue if it has been unused for long enough.
    pub(super) fn end_if_unused(&mut self, now: Instant) -> bool {
        self.ended |= self.unused_until().is_some_and(|until| until <= now);
        self.ended
    }

    /// Called at shutdown: the queue is abandoned as soon as it has no subscriber.
    pub(super) fn drain(&mut self) {
        self.unused_time = Duration::ZERO;
    }

    /// The next time at which the queue's task has work without being woken.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.requests.next_deadline().into_iter().chain(self.unused_until()).min()
    }

    fn unused_until(&self) -> Option<Instant> {
        self.unused_since.map(|since| since + self.unused_time)
    }
}

/// The entry of a present subscriber, while another part of the state is borrowed.
pub(super) fn subscriber_in(
    subscribers: &mut Slab<SubscriberEntry>,
    id: SubscriberId,
) -> Option<&mut SubscriberEntry> {
    subscribers.get_mut(id.slot).filter(|entry| entry.serial == id.serial)
}
