//! Moves a queue's messages between memory and disk when memory cannot hold them all.
//!
//! Each queue performs one step at a time, in a call of [`Broker::page`](crate::Broker::page): a step checks for work under
//! the lock, reads or writes without it, and applies the result under it. Since the queue may have changed in between,
//! messages that were read or written are identified by position.
//!
//! # Example
//! Memory exceeds the watermark, and a queue has 3,000 ready transient messages, each of which takes 1 KiB of memory.
//! The queue is long, since more than 128 KiB can be paged out, and is scheduled:
//! - It is split: the first 64 messages (64 KiB) stay as the head, the other 2,936 are the tail.
//! - Five steps copy 512 messages each from the front of the tail and write them to transient segments, a sixth one the
//!   last 376. After each write, those of them that are still in the tail join the run, which is on disk only. Persistent
//!   messages that the store has would leave in the same steps without a write.
//! - The job ends sooner if less than seven eighths of the watermark are in memory, and after 64 steps, when other
//!   queues have their turn.
//! - A consumer takes a message. Because the head has less than 512 KiB, about 1 MiB is read from the front of the run, a
//!   thousand messages, and appended to the head. The next load follows when consumers have left less than 512 KiB of it.
//! - If all long queues have done that, and memory still exceeds the watermark, all other queues page out what
//!   they can ([`Queue::evict`]), and long ones more.
//! - If a read or a write fails, or the write would use disk space that must stay free, nothing changes. It is retried
//!   after
//!   100 ms, then after 200 ms, and so on up to 25.6 s; a failed write delays no read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::pages::QueueSegments;
use store::{WaitList, Waiter};

use super::ready::{Extent, PagedOut, Plan, ToWrite};
use super::{DeathReason, Delivery, Effects, Queue, QueueState, StateGuard};
use crate::paging::Counted;
use crate::persistence::{self, Loaded, PagingError};
use crate::time::Timestamp;

/// The state of a queue's paging.
#[derive(Default)]
pub(super) struct PagingState {
    /// It is scheduled for a step, or in the middle of one.
    busy: bool,
    /// It is in the broker's list of long queues.
    listed: bool,
    /// Bytes that could not be paged out by the last attempt.
    stuck: u64,
    /// The failures since the last success, if any; boxed, as they are rare.
    retries: Option<Box<PagingRetries>>,
    /// Bytes of unreadable messages that were dropped, until [`Queue::take_lost_bytes`].
    lost_bytes: u64,
    /// The counts last reported to the broker.
    counted: Counted,
    /// Waiters for a message that is on disk, or behind dead letters.
    waiting: WaitList,
}

/// Failed reads and writes of a queue. A failed write delays no read.
#[derive(Default)]
struct PagingRetries {
    reads: RetryState,
    writes: RetryState,
}

#[derive(Default)]
struct RetryState {
    /// The number of consecutive failures.
    failures: u32,
    /// The time of the next attempt after a failure, until it has come.
    retry_at: Option<Timestamp>,
}

impl Queue {
    /// Performs one step of paging, if one is due. Blocks on the disk.
    pub(crate) fn page(&self, now: Timestamp) {
        let mut state = self.state.lock();
        let discarded = state.ready.take_discarded();
        if !discarded.is_empty() {
            drop(state);
            discarded.iter().for_each(|segments| self.remove(segments));
        } else if let Some(plan) = state.may_load(now).then(|| state.ready.plan_load()).flatten() {
            drop(state);
            self.load(&plan, now);
        } else if state.paging.may_write(now) {
            self.page_out(state, Extent::Usual, now);
        }
        self.end_step(now);
    }

    /// Pages out messages, even of a short queue, while memory exceeds the watermark. Blocks on the disk. Returns false if
    /// they could not be written.
    pub(crate) fn evict(&self, extent: Extent, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        if state.paging.busy
            || !state.paging.may_write(now)
            || state.ready.needs_load()
            || state.ready.resident() <= extent.least()
        {
            return true;
        }
        state.paging.busy = true;
        self.page_out(state, extent, now);
        self.end_step(now)
    }

    /// Returns whether no write has failed.
    fn end_step(&self, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        state.paging.busy = false;
        self.look_at_paging(&mut state, now);
        self.schedule(&mut state);
        state.paging.may_write(now)
    }

    /// Reports the queue's contents to the broker, and schedules a step if one is needed. Called before the lock is
    /// released, after every change of the messages.
    #[inline]
    pub(super) fn look_at_paging(&self, state: &mut QueueState, now: Timestamp) {
        // The bytes that could not be paged out may have been delivered since.
        state.paging.stuck = state.paging.stuck.min(state.ready.pageable());
        let counted = state.counted();
        if counted != state.paging.counted {
            self.context.paging.count(state.paging.counted, counted);
            state.paging.counted = counted;
        }
        if !state.paging.listed && state.is_long() {
            state.paging.listed = true;
            self.context.paging.is_long(&self.this);
        }
        if !state.paging.busy
            && self.has_paging_to_do(state, now)
            && let Some(this) = self.this.upgrade()
        {
            state.paging.busy = true;
            self.context.paging.ask(this);
        }
    }

    /// Asks a long queue to page out messages; returns whether it is still long.
    pub(crate) fn is_still_long(&self, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        state.paging.listed = state.is_long();
        self.look_at_paging(&mut state, now);
        state.paging.listed
    }

    fn has_paging_to_do(&self, state: &QueueState, now: Timestamp) -> bool {
        state.ready.has_discarded()
            || state.may_load(now)
            || state.paging.may_write(now) && state.is_long() && self.should_page()
    }

    /// Whether messages that can be on disk have to leave memory.
    #[inline]
    pub(super) fn should_page(&self) -> bool {
        (self.context.paging.is_over_watermark() || self.lazy.load(Ordering::Relaxed))
            && self.context.paging.store().is_some()
    }

    fn load(&self, plan: &Plan, now: Timestamp) {
        let loaded = match persistence::load(plan, self.stored()) {
            Ok(loaded) => loaded,
            // Damaged messages were dropped, and there were no others.
            Err(PagingError::Missing { .. })
                if self.state.lock().paging.failed_reads() >= MISSING_ATTEMPTS =>
            {
                Loaded { deliveries: Vec::new(), through: plan.last() }
            }
            Err(error) => {
                let attempt = self.state.lock().paging.retries.get_or_insert_default().reads.failed(now);
                return self.paging_failed("read", attempt, &error);
            }
        };
        self.context.metrics.paging_reads.add(1);
        self.context.metrics.messages_paged_in.add(loaded.deliveries.len());
        self.context
            .metrics
            .bytes_paged_in
            .add(body_bytes(loaded.deliveries.iter().map(|(delivery, _)| delivery)));
        let through = loaded.through;
        let arguments = self.arguments.load();
        let limit = self.delivery_limit_of(&arguments);
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.paging.succeeded(|retries| &mut retries.reads);
        // As for messages that the restart itself loads.
        let too_often =
            |delivery: &Delivery| limit.is_some_and(|limit| delivery.has_just_failed_too_often(limit));
        let before = state.ready.bytes();
        let dead = state.ready.loaded(plan, loaded.deliveries, through, too_often);
        let dead_bytes: u64 = dead.iter().map(|delivery| delivery.message.body_len() as u64).sum();
        let lost = before.saturating_sub(state.ready.bytes() + dead_bytes);
        state.paging.lost_bytes += lost;
        for delivery in dead {
            state.dead_letter(delivery, DeathReason::DeliveryLimit, &mut effects);
        }
        let waiting = state.take_waiting();
        let state = self.trim(state, &mut effects, now);
        self.run(state, effects, now);
        waiting.wake();
        if let Some(page_segments) = &plan.page_segments {
            page_segments.settle([0..=through]);
            if let Err(error) = page_segments.reap() {
                tracing::warn!(%error, "cannot delete obsolete queue segment");
            }
        }
    }

    /// Bytes of the bodies of unreadable messages that were dropped since the previous call.
    pub fn take_lost_bytes(&self) -> u64 {
        std::mem::take(&mut self.state.lock().paging.lost_bytes)
    }

    fn page_out<'q>(&'q self, mut state: StateGuard<'q>, extent: Extent, now: Timestamp) {
        let Some(store) = self.context.paging.store() else { return };
        for _ in 0..MAX_STEPS {
            if state.deleted || !self.should_page() || !state.ready.has_evictable(extent) {
                return;
            }
            match state.ready.page_out(extent, || Arc::new(store.transient_segments())) {
                PagedOut::Nothing => {
                    // Other messages need a write before they can leave memory.
                    if extent != Extent::Stored {
                        state.paging.stuck = state.ready.pageable();
                    }
                    return;
                }
                PagedOut::Freed(freed) => {
                    state.paging.stuck = 0;
                    self.look_at_paging(&mut state, now);
                    drop(state);
                    self.count_paged_out(&freed);
                }
                PagedOut::Write(to_write) => {
                    drop(state);
                    if !self.write_out(to_write, now) {
                        return;
                    }
                }
            }
            state = self.state.lock();
        }
    }

    /// Writes messages to disk; returns whether that succeeded.
    fn write_out(&self, to_write: ToWrite, now: Timestamp) -> bool {
        let stores = self.stored_messages();
        let deliveries = to_write.deliveries.iter().filter(|delivery| !stores.includes(&delivery.message));
        let space = self.context.paging.store().map_or(u64::MAX, |store| store.space_above_limit());
        if let Err(error) = persistence::write(&to_write.segments, space, deliveries) {
            let attempt = self.state.lock().paging.retries.get_or_insert_default().writes.failed(now);
            self.paging_failed("written", attempt, &error);
            return false;
        }
        let mut state = self.state.lock();
        state.paging.succeeded(|retries| &mut retries.writes);
        state.paging.stuck = 0;
        let freed = state.ready.written(to_write);
        self.look_at_paging(&mut state, now);
        drop(state);
        self.context.metrics.paging_writes.add(1);
        self.count_paged_out(&freed);
        true
    }

    fn count_paged_out(&self, freed: &[Delivery]) {
        self.context.metrics.messages_paged_out.add(freed.len());
        self.context.metrics.bytes_paged_out.add(body_bytes(freed.iter()));
    }

    /// Logs a failure if it is the first of several in a row, with none `before`.
    fn paging_failed(&self, what: &str, before: u32, error: &PagingError) {
        self.context.metrics.paging_failures.add(1);
        if before == 0 {
            let (queue, vhost) = (&*self.name, &*self.context.vhost);
            tracing::error!(queue, vhost, %error, "messages cannot be {what}; will retry");
        }
    }

    fn remove(&self, segments: &QueueSegments) {
        if let Err(error) = segments.remove() {
            // The next start deletes them.
            tracing::warn!(%error, "cannot delete segments of a deleted queue");
        }
    }
}

impl QueueState {
    /// Registers a waiter that is woken when there is a message in memory, or none at all.
    pub(super) fn wait_for_load(&mut self, waiter: &Arc<dyn Waiter>) {
        self.ready.want_load();
        self.wait_for_message(waiter);
    }

    /// As [`Self::wait_for_load`], while the first message in memory is behind dead letters.
    pub(super) fn wait_for_message(&mut self, waiter: &Arc<dyn Waiter>) {
        self.paging.waiting.add_once(waiter);
    }

    /// Removes and returns the waiters for a message, which no longer need to wait.
    pub(super) fn take_waiting(&mut self) -> WaitList {
        self.paging.waiting.take()
    }

    /// Whether messages have to be read from the disk, and no failed read waits for its retry.
    fn may_load(&self, now: Timestamp) -> bool {
        self.ready.needs_load() && self.paging.may_read(now)
    }

    /// The time at which a failed read or write is retried.
    pub(super) fn paging_retry(&self) -> Option<Timestamp> {
        let PagingRetries { reads, writes } = self.paging.retries.as_deref()?;
        reads.retry_at.into_iter().chain(writes.retry_at).min()
    }

    /// Allows retries that are due.
    pub(super) fn retry_paging(&mut self, now: Timestamp) {
        let Some(PagingRetries { reads, writes }) = self.paging.retries.as_deref_mut() else { return };
        for retry_at in [&mut reads.retry_at, &mut writes.retry_at] {
            *retry_at = retry_at.filter(|at| *at > now);
        }
    }

    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.can_leave() > Extent::Usual.least()
    }

    /// Bytes of memory that can be paged out, excluding those that the last attempt could not.
    #[inline]
    fn can_leave(&self) -> u64 {
        self.ready.pageable().saturating_sub(self.paging.stuck)
    }

    #[inline]
    fn counted(&self) -> Counted {
        let on_disk = self.ready.on_disk();
        Counted {
            resident: self.ready.resident(),
            paged_messages: on_disk.messages,
            paged_bytes: on_disk.bytes,
            to_page_out: if self.is_long() && self.paging.pauses_no_writes() { self.can_leave() } else { 0 },
        }
    }
}

impl PagingState {
    fn may_read(&self, now: Timestamp) -> bool {
        self.retries.as_ref().is_none_or(|retries| retries.reads.is_due(now))
    }

    fn may_write(&self, now: Timestamp) -> bool {
        self.retries.as_ref().is_none_or(|retries| retries.writes.is_due(now))
    }

    /// Whether no failed write waits for its retry.
    fn pauses_no_writes(&self) -> bool {
        self.retries.as_ref().is_none_or(|retries| retries.writes.retry_at.is_none())
    }

    fn failed_reads(&self) -> u32 {
        self.retries.as_ref().map_or(0, |retries| retries.reads.failures)
    }

    /// Ends the pause of reads or writes.
    fn succeeded(&mut self, which: impl Fn(&mut PagingRetries) -> &mut RetryState) {
        let Some(retries) = &mut self.retries else { return };
        *which(retries) = RetryState::default();
        if retries.reads.failures == 0 && retries.writes.failures == 0 {
            self.retries = None;
        }
    }
}

impl RetryState {
    /// Whether no failure waits for its retry.
    fn is_due(&self, now: Timestamp) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
    }

    /// Sets the time of the next retry; returns the number of earlier failures.
    fn failed(&mut self, now: Timestamp) -> u32 {
        let before = self.failures;
        self.failures = before.saturating_add(1);
        self.retry_at = Some(now.after(FIRST_PAUSE << before.min(MAX_DOUBLINGS)));
        before
    }
}

fn body_bytes<'d>(deliveries: impl Iterator<Item = &'d Delivery>) -> usize {
    deliveries.map(|delivery| delivery.message.body_len()).sum()
}

/// Steps of one queue before other queues get their turn.
const MAX_STEPS: usize = 64;

/// Failed reads after which missing messages count as lost.
const MISSING_ATTEMPTS: u32 = 3;

/// Milliseconds before the first retry.
const FIRST_PAUSE: u64 = 100;

/// Doublings of the pause between retries; the longest is about half a minute.
const MAX_DOUBLINGS: u32 = 8;
