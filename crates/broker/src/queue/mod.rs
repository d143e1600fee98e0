//! Queues: ready messages in order, consumers in turn, and counts.
//!
//! A queue has one lock, held for a batch of messages at a time. Under it consumers are called, and nothing else that
//! takes a lock, except the broker's list of deadlines. What a step leads to outside of the queue (dead letters, the
//! queue's own deletion) is done after the lock is released. Dead letters stand in line under it, and one thread at a time
//! sends them on, so that they leave in order.

mod consumers;
mod delivery;
mod flow;
mod paging;
mod ready;
mod state;
mod stored;
mod view;

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use amqp::{FieldTable, FieldValue};
use arc_swap::ArcSwap;
use store::StoredQueue;
use sync::{Mutex, MutexGuard};

pub(crate) use delivery::NEVER;
pub use delivery::{Consumer, ConsumerId, ConsumerSpec, Delivery, Fetched, Got, Offer, Room};
pub(crate) use flow::Sender;
pub(crate) use ready::{Plan, Run};
pub(crate) use state::{DeadLetter, DeathReason, Effects};
pub(crate) use stored::stored_expiry;

use crate::SessionId;
use crate::arguments::{QueueArguments, QueueKind};
use crate::deadlines::Deadlines;
use crate::error::BrokerError;
use crate::metrics::Metrics;
use crate::paging::Paging;
use crate::time::Timestamp;
use crate::vhost::VirtualHost;
use consumers::ConsumerEntry;
use state::QueueState;

/// A queue of one virtual host.
pub struct Queue {
    name: Arc<str>,
    vhost: Arc<str>,
    properties: QueueProperties,
    declared: QueueArguments,
    /// `x-expires` in milliseconds, in place of what was declared; 0 for none (`VirtualHost::set_queue_expires`).
    own_expires: AtomicU64,
    /// What was declared, and what policies make of it.
    arguments: ArcSwap<QueueArguments>,
    /// Unlike the name never used again.
    id: u64,
    /// The number that a durable queue has on disk.
    number: Option<u64>,
    /// Where it keeps persistent messages, if it is durable and there is a store.
    stored: Option<StoredQueue>,
    /// Its place in the topology.
    slot: AtomicU32,
    this: Weak<Queue>,
    home: Weak<VirtualHost>,
    metrics: Arc<Metrics>,
    deadlines: Arc<Deadlines>,
    paging: Arc<Paging>,
    /// Its arguments say so, which is asked for each batch.
    lazy: AtomicBool,
    /// Set under the lock, read without it.
    deleted: AtomicBool,
    /// Set under the lock, read without it: of very many queues most have no consumer.
    has_consumers: AtomicBool,
    state: Mutex<QueueState>,
    /// See [`Queue::letters_turn`].
    letters_turn: Mutex<()>,
}

/// What a queue was declared as.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueProperties {
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// The only session that may use it, and with which it goes.
    pub owner: Option<SessionId>,
    /// As they were sent.
    pub arguments: FieldTable,
}

/// What a queue is made of.
pub(crate) struct NewQueue {
    pub(crate) name: Arc<str>,
    pub(crate) vhost: Arc<str>,
    pub(crate) properties: QueueProperties,
    pub(crate) arguments: QueueArguments,
    /// On disk.
    pub(crate) number: Option<u64>,
    /// The same queue in the store.
    pub(crate) stored: Option<StoredQueue>,
    pub(crate) home: Weak<VirtualHost>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) paging: Arc<Paging>,
}

/// A consumer, for introspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its tag.
    pub tag: String,
    /// Whose it is.
    pub session: SessionId,
    /// Deliveries count as acknowledged once taken.
    pub no_ack: bool,
    /// Whether it keeps others out.
    pub exclusive: bool,
    /// `x-priority`.
    pub priority: i64,
    /// Whether it is served: of those with `x-single-active-consumer` one alone is.
    pub active: bool,
    /// The number of its channel.
    pub channel: u16,
    /// How many deliveries it may leave unsettled; 0 is no limit.
    pub prefetch: u16,
}

/// Why a queue is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    InUse,
    NotEmpty,
    /// Somebody else has deleted it.
    Gone,
}

impl Queue {
    pub(crate) fn new(new: NewQueue) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let state = Mutex::new(QueueState::new(&new.arguments, new.stored.is_some()));
        Arc::new_cyclic(|this| Self {
            name: new.name,
            vhost: new.vhost,
            properties: new.properties,
            lazy: AtomicBool::new(new.arguments.lazy),
            arguments: ArcSwap::from_pointee(new.arguments.clone()),
            own_expires: AtomicU64::new(new.arguments.expires.unwrap_or(0)),
            declared: new.arguments,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            number: new.number,
            stored: new.stored,
            slot: AtomicU32::new(u32::MAX),
            this: this.clone(),
            home: new.home,
            metrics: new.metrics,
            deadlines: new.deadlines,
            paging: new.paging,
            deleted: AtomicBool::new(false),
            has_consumers: AtomicBool::new(false),
            state,
            letters_turn: Mutex::new(()),
        })
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What it was declared as.
    pub fn properties(&self) -> &QueueProperties {
        &self.properties
    }

    /// Its type, which no policy changes.
    pub fn kind(&self) -> QueueKind {
        self.declared.kind
    }

    /// Its arguments, parsed, with what policies add to them.
    pub fn arguments(&self) -> Arc<QueueArguments> {
        self.arguments.load_full()
    }

    /// Its own arguments alone; for `x-expires` see [`Queue::own_expires`].
    pub(crate) fn declared_arguments(&self) -> &QueueArguments {
        &self.declared
    }

    /// Its own `x-expires` in milliseconds.
    pub(crate) fn own_expires(&self) -> Option<u64> {
        Some(self.own_expires.load(Ordering::Relaxed)).filter(|expires| *expires > 0)
    }

    /// Sets its own `x-expires`; whether that is something new.
    pub(crate) fn set_own_expires(&self, expires: Option<u64>) -> bool {
        let expires = expires.unwrap_or(0);
        self.own_expires.swap(expires, Ordering::Relaxed) != expires
    }

    /// Its own arguments as they are shown, written down and compared: as they were sent, with the `x-expires` of today.
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

    /// Sets what holds now; whether that is something new.
    pub(crate) fn set_arguments(&self, arguments: QueueArguments) -> bool {
        if **self.arguments.load() == arguments {
            return false;
        }
        self.lazy.store(arguments.lazy, Ordering::Relaxed);
        self.arguments.store(Arc::new(arguments));
        true
    }

    /// Does what new arguments ask for at once: the lease begins anew, and what is too long is cut.
    pub(crate) fn arguments_changed(&self, now: Timestamp) {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        if state.deleted {
            return;
        }
        state.last_used = now;
        state = self.trim(state, &mut effects, now);
        state.drop_expired(now, &mut effects);
        self.finish(state, effects, now);
    }

    /// Messages ready for delivery.
    pub fn message_count(&self) -> u64 {
        self.state.lock().ready.len() as u64
    }

    /// The place that the next message will have (see [`Delivery::position`]).
    pub fn next_position(&self) -> u64 {
        self.state.lock().next_position
    }

    /// Messages delivered and not settled yet.
    pub fn unacked_count(&self) -> u64 {
        self.state.lock().unacked
    }

    /// Consumers.
    pub fn consumer_count(&self) -> u64 {
        self.state.lock().consumers.len() as u64
    }

    /// Ready messages and consumers, read at the same moment.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.ready.len() as u64, state.consumers.len() as u64)
    }

    /// Its consumers.
    pub fn consumers(&self) -> Vec<ConsumerInfo> {
        self.consumers_that(|_| true)
    }

    /// Those of its consumers that are of one channel.
    pub fn consumers_of(&self, session: SessionId, channel: u16) -> Vec<ConsumerInfo> {
        self.consumers_that(|entry| entry.session == session && entry.consumer.channel() == channel)
    }

    /// Without consumers it is not locked, so that to look through all queues for them keeps nobody waiting.
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

    /// Whether it has been deleted. A deleted queue takes no message and has none.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The number that a durable queue has on disk.
    pub(crate) fn number(&self) -> Option<u64> {
        self.number
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }

    /// Called under the topology's lock, which is what makes the slot visible to others.
    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Refuses sessions that the queue does not belong to.
    pub(crate) fn check_access(&self, session: SessionId) -> Result<(), BrokerError> {
        match self.properties.owner {
            Some(owner) if owner != session => Err(BrokerError::locked(&self.name, &self.vhost)),
            _ => Ok(()),
        }
    }

    /// Begins or renews the lease of `x-expires`.
    pub(crate) fn touch(&self, now: Timestamp) {
        let mut state = self.state.lock();
        state.last_used = now;
        self.schedule(&mut state);
    }

    /// Marks the queue as deleted, unless a condition forbids it; the caller takes it out of the topology. Returns
    /// the number of messages that were ready.
    pub(crate) fn delete(&self, if_unused: bool, if_empty: bool) -> Result<u64, Kept> {
        let state = self.state.lock();
        if state.deleted {
            return Err(Kept::Gone);
        }
        if if_empty && !state.ready.is_empty() {
            return Err(Kept::NotEmpty);
        }
        if if_unused && !state.consumers.is_empty() {
            return Err(Kept::InUse);
        }
        Ok(self.mark_deleted(state))
    }

    /// Does what has fallen due, or so much of it that the lock is not held for long; the rest falls due again at once.
    /// Returns the number of messages that were dropped.
    pub(crate) fn expire(&self, now: Timestamp) -> usize {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.scheduled = None;
        let unused = state.consumers.is_empty() && !state.deleted;
        let lease = self.arguments.load().expires;
        if unused && lease.is_some_and(|lease| state.last_used.after(lease) <= now) {
            self.delete_locked(state);
            return 0;
        }
        state.retry_paging(now);
        // Consumers may have been waiting for what is behind the expired messages.
        state.pump(now, &mut effects);
        let dropped = effects.dead.len();
        self.finish(state, effects, now);
        dropped
    }

    /// Puts the next deadline into the broker's list, if it is earlier than what stands there.
    fn schedule(&self, state: &mut QueueState) {
        let lease = self.arguments.load().expires.filter(|_| state.consumers.is_empty());
        let lease = lease.map(|lease| state.last_used.after(lease));
        // What was left from the last time stands behind other queues that fell due before.
        // What is being loaded is looked at when it is there.
        let head = if state.ready.is_hungry() { None } else { state.ready.next_expiry() };
        let head = head.map(|at| Timestamp(at).max(state.sweeping.unwrap_or_default()));
        let Some(due) = lease.into_iter().chain(head).chain(state.paging_retry()).min() else { return };
        if !state.deleted && state.scheduled.is_none_or(|scheduled| due < scheduled) {
            self.deadlines.replace(state.scheduled, due, self.id, &self.this);
            state.scheduled = Some(due);
        }
    }

    /// Deletes the queue for a reason of its own.
    fn delete_locked(&self, state: MutexGuard<'_, QueueState>) {
        self.mark_deleted(state);
        if let Some(home) = self.home.upgrade() {
            home.forget_queue(self);
        }
    }

    fn mark_deleted(&self, mut state: MutexGuard<'_, QueueState>) -> u64 {
        state.deleted = true;
        self.deleted.store(true, Ordering::Release);
        if let Some(scheduled) = state.scheduled.take() {
            self.deadlines.remove(scheduled, self.id);
        }
        let messages = state.ready.take_all();
        let passed = std::mem::take(&mut state.passing);
        let consumers = std::mem::take(&mut state.consumers);
        self.has_consumers.store(false, Ordering::Release);
        let waiting = state.take_waiting();
        self.look_at_paging(&mut state, Timestamp::default());
        if let Some(passed) = passed.last_read()
            && let Some(home) = self.home.upgrade()
        {
            home.queue_has_passed(passed);
        }
        drop(state);
        waiting.iter().for_each(|waiter| waiter.wake());
        self.metrics.consumers.sub(consumers.len());
        consumers.iter().for_each(|entry| entry.consumer.cancelled());
        messages.len() as u64
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}
