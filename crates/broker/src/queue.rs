//! Queues: ready messages in order, consumers in turn, and counts.
//!
//! A queue has one lock, held for a batch of messages at a time. Consumers are called under it, and so is the store
//! (ARCHITECTURE.md, "Lock order"). Effects outside of the queue (dead letters, the queue's own deletion) follow after
//! the lock is released. Dead letters are queued under it, and one thread at a time sends them, so that they leave in
//! order.

mod consumers;
mod credit;
mod delivery;
mod flow;
mod moving;
mod paging;
mod ready;
mod returning;
mod state;
mod stored;
mod view;

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use amqp::{FieldTable, FieldValue};
use arc_swap::ArcSwap;
use store::{StoredQueue, WaitList};
use sync::{Mutex, MutexGuard, Rank};

pub(crate) use credit::{Load, PublisherLoad};
pub(crate) use delivery::NEVER;
pub use delivery::{
    Consumer, ConsumerCapacity, ConsumerId, ConsumerSpec, Delivery, Fetched, Got, Offer, Returned,
};
pub(crate) use flow::Sender;
pub use flow::ThrottledPublisher;
pub use moving::{ForeignMessage, ImportOutcome, Moving};
pub(crate) use ready::{Extent, ReadyStore};
pub(crate) use ready::{Plan, Run};
pub use returning::Requeue;
pub(crate) use state::{DeadLetter, DeathReason, Effects, Step};
pub(crate) use stored::{StoredMessages, stored_expiry};

use crate::SessionId;
use crate::arguments::{QueueArguments, QueueKind};
use crate::compatibility::{Compatibility, DeliveryOrder};
use crate::deadlines::Deadlines;
use crate::error::BrokerError;
use crate::lru::LruList;
use crate::metrics::Metrics;
use crate::paging::Paging;
use crate::time::Timestamp;
use crate::vhost::VirtualHost;
use consumers::ConsumerEntry;
use state::QueueState;

/// A queue's state, locked.
type StateGuard<'a> = MutexGuard<'a, QueueState, { Rank::TopologyOrQueue as u8 }>;

/// The parts shared by all queues of a virtual host.
pub(crate) struct QueueContext {
    /// The name of the virtual host.
    pub(crate) vhost: Arc<str>,
    pub(crate) home: Weak<VirtualHost>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) paging: Arc<Paging>,
    pub(crate) compatibility: Compatibility,
    /// Arguments in effect: most of very many queues have the same.
    pub(crate) arguments: Mutex<LruList<Arc<QueueArguments>>, { Rank::Leaf as u8 }>,
}

impl QueueContext {
    fn share(&self, arguments: QueueArguments) -> Arc<QueueArguments> {
        let mut recent = self.arguments.lock();
        let equal = recent.get_or_insert_with(|known| **known == arguments, || Arc::new(arguments.clone()));
        Arc::clone(equal)
    }
}

/// A queue of one virtual host. There may be very many idle ones: rarely used fields are boxed, and common ones are shared.
pub struct Queue {
    name: Arc<str>,
    context: Arc<QueueContext>,
    properties: QueueProperties,
    declared: Arc<QueueArguments>,
    /// `x-expires` in milliseconds, in place of the declared value; 0 for none
    /// (`VirtualHost::set_queue_expires`).
    own_expires: AtomicU64,
    /// The declared arguments merged with those of policies.
    arguments: ArcSwap<QueueArguments>,
    /// Unlike the name, never reused.
    id: u64,
    /// The number of a durable queue on disk.
    number: Option<NonZeroU64>,
    /// Storage of persistent messages, if the queue is durable and there is a store.
    stored: Option<StoredQueue>,
    /// Its slot in the topology.
    slot: AtomicU32,
    this: Weak<Queue>,
    /// A copy of the argument, which is read for each batch.
    lazy: AtomicBool,
    /// Set under the lock, read without it.
    deleted: AtomicBool,
    /// Set under the lock, read without it: most of very many queues have no consumer.
    has_consumers: AtomicBool,
    state: Mutex<QueueState, { Rank::TopologyOrQueue as u8 }>,
    /// Locked by [`Queue::dead_letters_turn`].
    dead_letters_turn: Mutex<(), { Rank::DeadLettersTurn as u8 }>,
    /// Locked by [`Queue::purge`] until its record is in the log.
    purging: Mutex<(), { Rank::Purges as u8 }>,
}

/// The properties that a queue was declared with.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueProperties {
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it is deleted with its last consumer.
    pub auto_delete: bool,
    /// The only session that may use it; it is deleted when that session ends.
    pub owner: Option<SessionId>,
    /// The arguments as they were sent.
    pub arguments: FieldTable,
    /// The name of its type, if it differs from its kind's.
    pub type_name: Option<&'static str>,
    /// Its maximum size, if its front end limits it.
    pub capacity: Option<Box<QueueCapacity>>,
}

/// The maximum number of ready messages in a queue of a front end, regardless of its policies. It drops the oldest ones
/// beyond that, which are counted in [`Metrics::mqtt_messages_dropped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueCapacity {
    /// Ready messages, delivered ones not included.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// The parts of a new queue.
pub(crate) struct NewQueue {
    pub(crate) name: Arc<str>,
    pub(crate) context: Arc<QueueContext>,
    pub(crate) properties: QueueProperties,
    pub(crate) arguments: QueueArguments,
    /// The number on disk, for a durable queue.
    pub(crate) number: Option<u64>,
    /// The storage of the queue, if it is durable and there is a store.
    pub(crate) stored: Option<StoredQueue>,
}

/// A consumer, for introspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// The consumer tag, unique on its channel.
    pub tag: String,
    /// The session of the consumer.
    pub session: SessionId,
    /// Whether deliveries count as acknowledged once taken.
    pub no_ack: bool,
    /// Whether the queue may have no other consumer.
    pub exclusive: bool,
    /// `x-priority`, 0 by default.
    pub priority: i64,
    /// Whether it is served: with `x-single-active-consumer` only one consumer is.
    pub active: bool,
    /// The number of its channel.
    pub channel: u16,
    /// Its limit of unacknowledged deliveries; 0 means no limit.
    pub prefetch: u16,
}

/// The reason why a queue is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeleteRefused {
    InUse,
    NotEmpty,
    /// It is already deleted.
    Gone,
}

impl Queue {
    pub(crate) fn new(new: NewQueue) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let order = new.context.compatibility.delivery_order(&new.arguments);
        let stores = StoredMessages::of(new.arguments.kind, new.stored.as_ref());
        let state = Mutex::new(QueueState::new(&new.arguments, order, stores));
        let declared = new.context.share(new.arguments);
        Arc::new_cyclic(|this| Self {
            name: new.name,
            context: new.context,
            properties: new.properties,
            lazy: AtomicBool::new(declared.lazy),
            arguments: ArcSwap::new(Arc::clone(&declared)),
            own_expires: AtomicU64::new(declared.expires.unwrap_or(0)),
            declared,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            // Numbers start at 1.
            number: new.number.and_then(NonZeroU64::new),
            stored: new.stored,
            slot: AtomicU32::new(u32::MAX),
            this: this.clone(),
            deleted: AtomicBool::new(false),
            has_consumers: AtomicBool::new(false),
            state,
            dead_letters_turn: Mutex::new(()),
            purging: Mutex::new(()),
        })
    }

    /// The name, unique among the queues of the virtual host.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The properties that it was declared with.
    pub fn properties(&self) -> &QueueProperties {
        &self.properties
    }

    pub(crate) fn compatibility(&self) -> Compatibility {
        self.context.compatibility
    }

    /// Its type, which policies cannot change.
    pub fn kind(&self) -> QueueKind {
        self.declared.kind
    }

    /// The name of its type, as operators see it.
    pub fn type_name(&self) -> &'static str {
        self.properties.type_name.unwrap_or(self.kind().name())
    }

    /// Its parsed arguments, merged with those of policies.
    pub fn arguments(&self) -> Arc<QueueArguments> {
        self.arguments.load_full()
    }

    /// The order in which it delivers messages; policies cannot change it.
    pub(crate) fn delivery_order(&self) -> DeliveryOrder {
        self.context.compatibility.delivery_order(&self.declared)
    }

    /// The number of failed deliveries of a message after which these arguments drop it; `None` for no limit.
    fn delivery_limit_of(&self, arguments: &QueueArguments) -> Option<u64> {
        let is_quorum = arguments.kind == QueueKind::Quorum;
        is_quorum.then(|| self.context.compatibility.delivery_limit(arguments.delivery_limit)).flatten()
    }

    /// Its own `x-expires` in milliseconds.
    pub(crate) fn own_expires(&self) -> Option<u64> {
        Some(self.own_expires.load(Ordering::Relaxed)).filter(|expires| *expires > 0)
    }

    /// Sets its own `x-expires`; returns whether the value is new.
    pub(crate) fn set_own_expires(&self, expires: Option<u64>) -> bool {
        let expires = expires.unwrap_or(0);
        self.own_expires.swap(expires, Ordering::Relaxed) != expires
    }

    /// Its own arguments for display, storage and comparison: as they were sent, but with the current
    /// `x-expires`.
    pub fn own_arguments(&self) -> Cow<'_, FieldTable> {
        const KEY: &str = "x-expires";
        let sent = &self.properties.arguments;
        let expires = self.own_expires();
        if expires == self.declared.expires {
            return Cow::Borrowed(sent);
        }
        let mut arguments = sent.clone();
        match expires.map(|expires| i64::try_from(expires).unwrap_or(i64::MAX)) {
            Some(expires) => arguments.insert(KEY, FieldValue::I64(expires)),
            None => drop(arguments.remove(KEY)),
        }
        Cow::Owned(arguments)
    }

    /// Sets the merged arguments; returns whether they differ from the old ones.
    pub(crate) fn set_arguments(&self, arguments: QueueArguments) -> bool {
        if **self.arguments.load() == arguments {
            return false;
        }
        self.lazy.store(arguments.lazy, Ordering::Relaxed);
        self.arguments.store(self.context.share(arguments));
        true
    }

    /// Applies new arguments at once: the `x-expires` lease starts again, and messages above the length limits are dropped.
    pub(crate) fn arguments_changed(&self, now: Timestamp) {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        if state.deleted {
            return;
        }
        state.last_used = now;
        let (mut state, _) = self.trim_some(state, &mut effects, now);
        state.drop_expired(now, &mut effects);
        self.finish(state, effects, now);
    }

    /// Messages ready for delivery.
    pub fn message_count(&self) -> u64 {
        self.state.lock().ready.len() as u64
    }

    /// The position that the next message will get (see [`Delivery::position`]).
    pub fn next_position(&self) -> u64 {
        self.state.lock().next_position
    }

    /// Messages delivered and not settled.
    pub fn unacked_count(&self) -> u64 {
        self.state.lock().unacked
    }

    /// The number of consumers.
    pub fn consumer_count(&self) -> u64 {
        self.state.lock().consumers.len() as u64
    }

    /// The numbers of ready messages and consumers, read at the same moment.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.ready.len() as u64, state.consumers.len() as u64)
    }

    /// All consumers of the queue.
    pub fn consumers(&self) -> Vec<ConsumerInfo> {
        self.consumers_that(|_| true)
    }

    /// The consumers of one channel.
    pub fn consumers_of(&self, session: SessionId, channel: u16) -> Vec<ConsumerInfo> {
        self.consumers_that(|entry| entry.session == session && entry.consumer.channel() == channel)
    }

    /// A queue without consumers is not locked, so that a search through all queues does not block others.
    fn consumers_that(&self, wanted: impl Fn(&ConsumerEntry) -> bool) -> Vec<ConsumerInfo> {
        if !self.has_consumers.load(Ordering::Acquire) {
            return Vec::new();
        }
        let state = self.state.lock();
        let info = |entry: &ConsumerEntry| ConsumerInfo {
            tag: entry.tag.to_string(),
            session: entry.session,
            no_ack: entry.no_ack,
            exclusive: entry.exclusive,
            priority: entry.priority,
            active: state.consumers.is_active(entry),
            channel: entry.consumer.channel(),
            prefetch: entry.consumer.prefetch(),
        };
        state.consumers.iter().filter(|entry| wanted(entry)).map(info).collect()
    }

    /// Whether it has been deleted. A deleted queue accepts and contains no messages.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// Its number in this process, which no other queue ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of a durable queue on disk; a queue that is declared again has another.
    pub fn number(&self) -> Option<u64> {
        self.number.map(NonZeroU64::get)
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }

    /// Called under the topology's lock, which makes the slot visible to other threads.
    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Refuses access if the queue is exclusive to another session.
    pub(crate) fn check_access(&self, session: SessionId) -> Result<(), BrokerError> {
        match self.properties.owner {
            Some(owner) if owner != session => Err(BrokerError::locked(&self.name, &self.context.vhost)),
            _ => Ok(()),
        }
    }

    /// Starts or renews the lease of `x-expires`.
    pub(crate) fn touch(&self, now: Timestamp) {
        let mut state = self.state.lock();
        state.last_used = now;
        self.schedule(&mut state);
    }

    /// Marks the queue as deleted, unless a condition forbids it; the caller removes it from the topology. Returns the
    /// number of ready messages.
    pub(crate) fn delete(&self, if_unused: bool, if_empty: bool) -> Result<u64, DeleteRefused> {
        let state = self.state.lock();
        if state.deleted {
            return Err(DeleteRefused::Gone);
        }
        if if_empty && !state.ready.is_empty() {
            return Err(DeleteRefused::NotEmpty);
        }
        if if_unused && !state.consumers.is_empty() {
            return Err(DeleteRefused::InUse);
        }
        Ok(self.mark_deleted(state))
    }

    /// Handles deadlines that have passed, as far as that does not hold the lock for long; the rest is due again at once.
    /// Returns the number of dropped messages.
    pub(crate) fn expire(&self, now: Timestamp) -> usize {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.scheduled = None;
        let released = state.credit.expire(now);
        let unused = state.consumers.is_empty() && !state.deleted;
        let lease = self.arguments.load().expires;
        if unused && lease.is_some_and(|lease| state.last_used.after(lease) <= now) {
            self.delete_locked(state);
            released.wake();
            return 0;
        }
        state.retry_paging(now);
        let dead_letters = self.arguments.load().dead_lettering.is_some();
        if dead_letters && state.next_expiry().is_some_and(|expiry| expiry <= now) {
            self.schedule_dead_lettering(&mut state);
        }
        if !(dead_letters && state.awaits_capacity) {
            // Consumers may have been waiting for messages behind the expired ones.
            state.pump(now, &mut effects);
        }
        let dropped = effects.dead.len();
        self.finish_in_turn(state, effects, now);
        released.wake();
        dropped
    }

    /// Schedules [`Self::continue_dead_lettering`] for when the store has capacity. A deleted queue stays alive until its
    /// dead letters are sent.
    fn schedule_dead_lettering(&self, state: &mut QueueState) {
        if !std::mem::replace(&mut state.awaits_capacity, true) {
            self.context.deadlines.await_capacity(self.this.clone());
        }
        if state.deleted {
            state.keep_for_dead_letters(self.this.upgrade());
        }
    }

    /// Sends some of its dead letters that no thread is sending, or drops some of the messages that have expired or exceed
    /// its limits, and serves its consumers. The broker calls this again until everything is done. Returns the number of
    /// dead letters.
    pub(crate) fn continue_dead_lettering(&self, now: Timestamp) -> usize {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.awaits_capacity = false;
        if state.has_dead_letters() || state.has_many_dead_letters() {
            // Drop messages after the dead letters.
            self.schedule_dead_lettering(&mut state);
            drop(state);
            return self.send_dead_letters(0, now);
        }
        let is_done = state.deleted
            || state.trim(&self.arguments.load(), &mut effects) && state.pump(now, &mut effects);
        let waiting = if is_done { state.take_waiting() } else { WaitList::default() };
        if !is_done {
            self.schedule_dead_lettering(&mut state);
        }
        let dropped = effects.dead.len();
        self.finish_in_turn(state, effects, now);
        waiting.wake();
        dropped
    }

    /// Puts the next deadline into the broker's list, if it is earlier than the one listed.
    fn schedule(&self, state: &mut QueueState) {
        let lease = self.arguments.load().expires.filter(|_| state.consumers.is_empty());
        let lease = lease.map(|lease| state.last_used.after(lease));
        let is_later = state.awaits_capacity && self.arguments.load().dead_lettering.is_some();
        let head = state.next_expiry().filter(|_| !is_later);
        // Messages left over by the last sweep are due at its time, after queues that were due before.
        let head = head.map(|at| at.max(state.sweeping.unwrap_or_default()));
        let due = lease.into_iter().chain(head).chain(state.paging_retry()).chain(state.credit.due()).min();
        let Some(due) = due else { return };
        if !state.deleted && state.scheduled.is_none_or(|scheduled| due < scheduled) {
            self.context.deadlines.replace(state.scheduled, due, self.id, &self.this);
            state.scheduled = Some(due);
        }
    }

    /// Deletes the queue when its lease has expired or its last consumer has left.
    fn delete_locked(&self, state: StateGuard<'_>) {
        self.mark_deleted(state);
        if let Some(home) = self.context.home.upgrade() {
            home.forget_queue(self);
        }
    }

    fn mark_deleted(&self, mut state: StateGuard<'_>) -> u64 {
        state.deleted = true;
        self.deleted.store(true, Ordering::Release);
        if let Some(scheduled) = state.scheduled.take() {
            self.context.deadlines.remove(scheduled, self.id);
        }
        state.keep_for_dead_letters(self.this.upgrade());
        let messages = state.ready.take_all();
        let passed = std::mem::take(&mut state.passing);
        let consumers = std::mem::take(&mut state.consumers);
        self.has_consumers.store(false, Ordering::Release);
        let waiting = state.take_waiting();
        let released = state.credit.release_all();
        self.look_at_paging(&mut state, Timestamp::default());
        if let Some(passed) = passed.last_read()
            && let Some(home) = self.context.home.upgrade()
        {
            home.add_counts_of_deleted_queue(passed);
        }
        drop(state);
        waiting.wake();
        released.wake();
        self.context.metrics.consumers.sub(consumers.len());
        consumers.iter().for_each(|entry| entry.consumer.cancelled());
        let count = messages.len() as u64;
        self.context.paging.free(messages);
        count
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}
