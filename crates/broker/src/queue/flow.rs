//! The flow of messages through a queue: in, to consumers, and out. Their way back is in [`super::returning`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sync::{MutexGuard, Rank, work};

use super::consumers::ConsumerEntry;
use super::credit::Load;
use super::state::QueueState;
use store::Waiter;
use store::journal::Lsn;

use super::{
    ConsumerId, ConsumerSpec, DeadLetter, DeathReason, Delivery, Effects, Fetched, Got, Queue, StateGuard,
    Step,
};
use crate::SessionId;
use crate::arguments::{Overflow, QueueArguments, QueueKind, check_consumer_priority};
use crate::error::BrokerError;
use crate::message::Message;
use crate::names::Resource;
use crate::persistence::{QueueAppend, QueueBatch};
use crate::rates::DequeueCounts;
use crate::time::Timestamp;

/// The outcome of [`Queue::append`].
#[derive(Default)]
pub(crate) struct Appended {
    /// The number of dead letters that it has queued for the caller to send.
    pub(crate) dead: usize,
    /// Another thread sends its queued dead letters. The caller has to wait for that thread ([`Queue::wait_for_dead_letters`]).
    pub(crate) lined_up: bool,
    /// The log position to wait for until the messages are on disk.
    pub(crate) until: Option<Lsn>,
    /// Messages arrive faster than they can leave memory.
    pub(crate) full: bool,
    /// The backlog grows though consumers could take more: their publisher has used up its credit
    /// ([`PublisherLoad`](super::PublisherLoad)).
    pub(crate) holds: bool,
}

/// A queue that holds a publisher, so that its consumers can catch up.
#[derive(Debug, Clone)]
pub struct ThrottledPublisher {
    queue: Arc<Queue>,
    /// Load that the publisher has added since it was last held.
    added: Load,
}

impl ThrottledPublisher {
    /// Wakes `waiter` when the publisher may continue, after 50 ms at the latest. Returns false, and wakes nobody, if it
    /// may continue now.
    pub fn wait(&self, waiter: &Arc<dyn Waiter>, now: Timestamp) -> bool {
        let Self { queue, added } = self;
        let mut state = queue.state.lock();
        let backlog = (state.load(), state.ready.len());
        let is_on_hold = !state.deleted && state.credit.hold(backlog, *added, now, waiter);
        queue.schedule(&mut state);
        drop(state);
        queue.context.metrics.publisher_holds.add(is_on_hold.into());
        is_on_hold
    }
}

impl PartialEq for ThrottledPublisher {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue) && self.added == other.added
    }
}

impl Eq for ThrottledPublisher {}

/// The sender of messages to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A client that publishes; its session, if it is known.
    Publisher(Option<SessionId>),
    Tracer,
    /// A queue of another broker, which keeps the messages that are refused here.
    Foreign,
    /// A queue that has dropped a message.
    DeadLetters {
        /// The number of further dead letters that may result from this one.
        budget: u32,
    },
}

impl Sender {
    fn budget(self) -> Option<u32> {
        match self {
            Self::Publisher(_) | Self::Tracer | Self::Foreign => None,
            Self::DeadLetters { budget } => Some(budget),
        }
    }
}

/// How a message is taken from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakeMode {
    /// It needs no acknowledgement.
    AutoAck,
    /// It is to be acknowledged.
    ManualAck,
    /// It is to be acknowledged, and the store does not record that it was delivered.
    Unrecorded,
}

impl TakeMode {
    fn of(no_ack: bool) -> Self {
        if no_ack { Self::AutoAck } else { Self::ManualAck }
    }
}

impl Queue {
    /// Registers a consumer. It starts out full, so that the session can write consume-ok before the first
    /// delivery: nothing is delivered until [`Queue::resume`].
    ///
    /// # Errors
    /// 403 `… in exclusive use`; 406 for a wrong `x-priority`; 404 when the queue has just been deleted.
    pub fn consume(&self, spec: ConsumerSpec<'_>) -> Result<ConsumerId, BrokerError> {
        let arguments = spec.arguments.decode();
        let priority = check_consumer_priority(&arguments, &self.name, &self.context.vhost)?;
        let mut state = self.state.lock();
        if state.deleted {
            return Err(BrokerError::no_queue(&self.name, &self.context.vhost));
        }
        let consumers = &mut state.consumers;
        // Quorum queues ignore the flag.
        let exclusive = spec.exclusive && self.kind() != QueueKind::Quorum;
        let alone = consumers.is_empty() && !consumers.is_single_active();
        if consumers.has_exclusive() || (exclusive && !alone) {
            let queue = Resource::Queue.describe(&self.name, &self.context.vhost);
            return Err(BrokerError::access(format!("{queue} in exclusive use")));
        }
        self.context.metrics.consumers.add(1);
        let entry =
            ConsumerEntry::new(spec.consumer, spec.session, spec.tag, spec.no_ack, exclusive, priority);
        self.has_consumers.store(true, Ordering::Release);
        Ok(consumers.insert(entry))
    }

    /// Records that the consumer has capacity, and serves it.
    pub fn resume(&self, consumer: ConsumerId, now: Timestamp) {
        let mut state = self.state.lock();
        if state.consumers.resume(consumer) && !state.ready.is_empty() {
            self.run(state, Effects::default(), now);
        }
    }

    /// Takes the next message. If it is on disk, or behind very many dead letters, `waiter` is woken when the caller should
    /// try again.
    pub fn fetch(&self, no_ack: bool, now: Timestamp, waiter: &Arc<dyn Waiter>) -> Fetched {
        Self::fetched(self.take_next(TakeMode::of(no_ack), now, Some(waiter)))
    }

    /// Like [`Queue::fetch`] with acknowledgement, but without a record of the delivery in the store: after a restart, this
    /// delivery does not count. For callers that take the same messages repeatedly and do not need the count. Otherwise the
    /// records would accumulate in memory while the disk fails.
    pub fn fetch_unrecorded(&self, now: Timestamp, waiter: &Arc<dyn Waiter>) -> Fetched {
        Self::fetched(self.take_next(TakeMode::Unrecorded, now, Some(waiter)))
    }

    fn fetched(taken: Option<Option<Got>>) -> Fetched {
        match taken {
            Some(got) => got.map_or(Fetched::Later, Fetched::Got),
            None => Fetched::Empty,
        }
    }

    /// Takes the next message; `None` if none is in memory. With paging, use [`Queue::fetch`] instead.
    pub fn get(&self, no_ack: bool, now: Timestamp) -> Option<Got> {
        self.take_next(TakeMode::of(no_ack), now, None).flatten()
    }

    /// `None` if the queue is empty, and `Some(None)` if the next message is on disk or behind dead letters.
    fn take_next(
        &self,
        mode: TakeMode,
        now: Timestamp,
        waiter: Option<&Arc<dyn Waiter>>,
    ) -> Option<Option<Got>> {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.last_used = now;
        while !state.drop_expired(now, &mut effects) {
            if let Some(waiter) = waiter.filter(|_| self.arguments.load().dead_lettering.is_some()) {
                self.schedule_dead_lettering(&mut state);
                state.wait_for_message(waiter);
                self.finish(state, effects, now);
                return Some(None);
            }
            self.finish(state, std::mem::take(&mut effects), now);
            state = self.state.lock();
        }
        if let Some(waiter) = waiter.filter(|_| state.is_behind_dead_letters() && !state.ready.is_empty()) {
            state.wait_for_message(waiter);
            self.finish(state, effects, now);
            return Some(None);
        }
        if state.ready.is_on_disk() {
            waiter.into_iter().for_each(|waiter| state.wait_for_load(waiter));
            self.finish(state, effects, now);
            return Some(None);
        }
        let got = state.ready.pop().map(|delivery| {
            // The new head may have expired too, and no longer counts as ready.
            state.drop_expired(now, &mut effects);
            Got { delivery, remaining: state.ready.len() as u64 }
        });
        match &got {
            None => {
                state.passing.add(0, DequeueCounts::got_nothing(), now);
                self.context.metrics.gets_empty.add(1);
            }
            Some(got) => {
                let no_ack = mode == TakeMode::AutoAck;
                state.unacked += u64::from(!no_ack);
                state.passing.add(0, DequeueCounts::got(no_ack, got.delivery.redelivered()), now);
                if mode != TakeMode::Unrecorded {
                    got.delivery.mark_taken(state.stores, no_ack, &mut effects.marks);
                }
                self.context.metrics.messages_got.add(1);
                self.context.metrics.messages_got_auto_ack.add(usize::from(no_ack));
                self.context.metrics.messages_redelivered.add(usize::from(got.delivery.redelivered()));
            }
        }
        self.finish(state, effects, now);
        got.map(Some)
    }

    /// Settles deliveries of this queue. Returns the log position up to which the log must be on disk so that
    /// they do not come back: the end of their own record; `None` if none of them is on disk.
    pub fn ack(&self, deliveries: Vec<Delivery>, now: Timestamp) -> Option<Lsn> {
        self.context.metrics.messages_acked.add(deliveries.len());
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(deliveries.len() as u64);
        if !deliveries.is_empty() && !state.deleted {
            state.passing.add(0, DequeueCounts::acked(deliveries.len()), now);
        }
        drop(state);
        self.settle_stored(deliveries.iter())
    }

    /// Drops all ready messages. Returns their number, and the log position to wait for so that they do not
    /// come back.
    pub fn purge(&self) -> (u64, Option<Lsn>) {
        let (messages, _, until) = self.purge_counted();
        (messages, until)
    }

    /// As [`Queue::purge`]; returns the bytes of the messages' bodies, too, after their number.
    pub fn purge_counted(&self) -> (u64, u64, Option<Lsn>) {
        // Locked until the record of the purge is in the log, so that a concurrent purge of an empty queue waits for
        // the record of the earlier purge.
        let purging = self.purging.lock();
        let mut state = self.state.lock();
        let purged = state.ready.take_all();
        let waiting = state.take_waiting();
        let released = state.credit.release_all();
        self.look_at_paging(&mut state, Timestamp::default());
        drop(state);
        let settled = self.settle_purged(&purged).or_else(|| self.stored().map(|stored| stored.end()));
        drop(purging);
        waiting.wake();
        released.wake();
        let (count, bytes) = (purged.len() as u64, purged.bytes());
        self.context.paging.free(purged);
        (count, bytes, settled)
    }

    /// Appends messages in order and serves the consumers. `refused` is called with the index in `messages`
    /// of each that a full queue does not take. `queue_batch` contains their locations in the store.
    pub(crate) fn append(
        &self,
        messages: impl Iterator<Item = Arc<Message>>,
        queue_batch: QueueBatch<'_>,
        now: Timestamp,
        sender: Sender,
        mut refused: impl FnMut(usize),
    ) -> Appended {
        let mut effects = Effects { budget: sender.budget(), ..Effects::default() };
        let mut keeping = queue_batch.begin(self);
        let mut state = self.state.lock();
        if state.deleted {
            drop(state);
            keeping.iter().for_each(|keeping| keeping.refuses_all());
            return Appended::default();
        }
        let (mut taken, mut refusals) = (0, 0);
        let arguments = self.arguments.load();
        let rejecting = arguments.overflow != Overflow::DropHead;
        let spill = self.should_page();
        // Only drops that a dead letter causes have a budget. Messages that were due to be dropped anyway are left to
        // the timer.
        effects.were_overdue = arguments.dead_lettering.is_some()
            && effects.budget.is_some()
            && state.has_overdue(&arguments, now);
        let limit =
            self.delivery_limit_of(&arguments).map_or(u32::MAX, |limit| limit.try_into().unwrap_or(u32::MAX));
        for (at, message) in messages.enumerate() {
            if rejecting && state.would_overflow(&message, &arguments) {
                serve_before_refusal(&mut state, sender, now, &mut effects);
                if state.would_overflow(&message, &arguments) {
                    refused(at);
                    refusals += 1;
                    keeping.iter().for_each(|keeping| keeping.refuses(at));
                    if arguments.overflow == Overflow::RejectPublishDlx && !matches!(sender, Sender::Foreign)
                    {
                        effects.dead_letter(message, DeathReason::MaxLength, 0, None);
                    }
                    continue;
                }
            }
            if state.drops_arrivals(&arguments, now, &mut effects) {
                keeping.iter().for_each(|keeping| keeping.refuses(at));
                taken += 1;
                continue;
            }
            let (failures, is_stored) =
                (message.broker_properties().failures, state.stores.includes(&message));
            let (position, expires) = state.push(message, &arguments, now, spill);
            if failures > 0 && is_stored {
                // A dead letter may have failed more often than this queue allows. It is dropped at its next failure, not by
                // the next restart.
                effects.marks.delivered(position, failures.min(limit));
            }
            if let Some(keeping) = &mut keeping {
                keeping.takes(at, position, expires);
            }
            taken += 1;
        }
        // Written before any settlement of the messages.
        let until = keeping.and_then(QueueAppend::write);
        // RabbitMQ counts messages routed to the queue, but neither dead letters nor traces.
        effects.published =
            if matches!(sender, Sender::Publisher(_) | Sender::Foreign) { taken + refusals } else { 0 };
        self.context.metrics.messages_enqueued.add(taken);
        self.context.metrics.messages_refused.add(refusals);
        if effects.were_overdue {
            self.schedule_dead_lettering(&mut state);
        } else {
            state = self.serve_arrivals(state, &arguments, taken, now, &mut effects);
        }
        let long = state.is_long();
        let holds = match sender {
            Sender::Publisher(session) => state.holds_publishers(session, now),
            Sender::Tracer | Sender::Foreign | Sender::DeadLetters { .. } => false,
        };
        let (dead, lined_up) = self.conclude(state, effects, now);
        let full = long && self.context.paging.is_behind();
        self.context.metrics.paging_pauses.add(full.into());
        Appended { dead, lined_up, until, full, holds }
    }

    /// Serves consumers with messages that have arrived, `taken` in number, and drops those that are above the limits or have
    /// expired. The lock is released now and then if there are very many.
    fn serve_arrivals<'q>(
        &'q self,
        mut state: StateGuard<'q>,
        arguments: &QueueArguments,
        taken: usize,
        now: Timestamp,
        effects: &mut Effects,
    ) -> StateGuard<'q> {
        state.pump_arrivals(now, effects);
        // Each new message may displace one. If many more exceed the limits, the limits are new.
        let dropped = effects.dead.len();
        while !state.trim(arguments, effects) {
            if arguments.dead_lettering.is_some() && effects.dead.len() - dropped > taken {
                self.schedule_dead_lettering(&mut state);
                break;
            }
            drop(state);
            state = self.state.lock();
        }
        state.drop_expired(now, effects);
        state
    }

    /// A hold for a publisher that has `added` messages without credit.
    pub(crate) fn hold(self: &Arc<Self>, added: Load) -> ThrottledPublisher {
        ThrottledPublisher { queue: Arc::clone(self), added }
    }

    /// Serves consumers, and completes the effects of that and `effects`. If very many messages have expired, the broker's
    /// timer drops most of them, and then serves the consumers.
    pub(super) fn run(&self, mut state: StateGuard<'_>, mut effects: Effects, now: Timestamp) {
        state.pump(now, &mut effects);
        self.finish(state, effects, now);
    }

    /// Drops messages from the head that exceed the length limits. The lock is released now and then if there
    /// are very many.
    pub(super) fn trim<'q>(
        &'q self,
        mut state: StateGuard<'q>,
        effects: &mut Effects,
        now: Timestamp,
    ) -> StateGuard<'q> {
        while !state.trim(&self.arguments.load(), effects) {
            self.finish(state, std::mem::take(effects), now);
            state = self.state.lock();
        }
        state
    }

    /// Like [`Queue::trim`], but if very many dead letters would result, leaves most of the messages to the broker's timer,
    /// which then serves the consumers. Returns whether nothing is left to the timer.
    pub(super) fn trim_some<'q>(
        &'q self,
        mut state: StateGuard<'q>,
        effects: &mut Effects,
        now: Timestamp,
    ) -> (StateGuard<'q>, bool) {
        let arguments = self.arguments.load();
        if arguments.dead_lettering.is_none() {
            return (self.trim(state, effects, now), true);
        }
        let is_done = state.trim(&arguments, effects);
        if !is_done {
            self.schedule_dead_lettering(&mut state);
        }
        (state, is_done)
    }

    /// Releases the lock and sends dead letters on.
    pub(super) fn finish(&self, state: StateGuard<'_>, effects: Effects, now: Timestamp) {
        let (dead, lined_up) = self.conclude(state, effects, now);
        self.send_dead_letters_in_turn(dead, lined_up, now);
    }

    /// Like [`Queue::finish`], for the broker's timer: sends as many dead letters as fit into the turn. The timer calls
    /// again for the others.
    pub(super) fn finish_in_turn(&self, state: StateGuard<'_>, effects: Effects, now: Timestamp) {
        let (dead, _) = self.conclude(state, effects, now);
        if dead > 0 {
            self.send_dead_letters(1, now);
        }
    }

    /// Sends the dead letters that a step has left to the caller, or waits for the thread that sends them. Dead letters that do
    /// not fit into the thread's turn are left to the broker's timer.
    pub(super) fn send_dead_letters_in_turn(&self, dead: usize, lined_up: bool, now: Timestamp) {
        if lined_up {
            self.wait_for_dead_letters(now);
        } else if dead > 0 {
            self.send_dead_letters(dead, now);
        }
    }

    /// Sends queued dead letters until the thread's turn ends, `at_least` this number if there are as many. Returns their
    /// number.
    pub(super) fn send_dead_letters(&self, at_least: usize, now: Timestamp) -> usize {
        if let Some(home) = self.context.home.upgrade() {
            return home.dead_letter(self, at_least, now);
        }
        // The virtual host is gone, so the dead letters are dropped.
        while !self.next_dead_letters(&Step::default(), usize::MAX).is_empty() {}
        0
    }

    /// Releases the lock and updates counters. Returns the number of queued dead letters that the caller has to send, and
    /// whether another thread sends them instead.
    fn conclude(&self, mut state: StateGuard<'_>, mut effects: Effects, now: Timestamp) -> (usize, bool) {
        self.look_at_paging(&mut state, now);
        // Redeliveries of returned messages do not reduce the backlog.
        let taken = effects.delivered.saturating_sub(effects.redelivered);
        let released = state.released_publishers(taken, now);
        self.schedule(&mut state);
        effects.share_budget();
        if effects.published > 0 || effects.delivered > 0 {
            state.passing.add(effects.published, effects.leaving(), now);
        }
        let Effects { dead, mut marks, delivered, delivered_auto_ack, redelivered, .. } = effects;
        let (mut own, mut lined_up, mut dropped) = (0, false, Vec::new());
        if !dead.is_empty() {
            let are_of_consumers = dead.iter().any(DeadLetter::is_rejected_by_consumer);
            if self.properties.capacity.is_some() {
                let over = dead.iter().filter(|dead| dead.reason == DeathReason::MaxLength).count();
                self.context.metrics.mqtt_messages_dropped.add(over);
            }
            if self.arguments.load().dead_lettering.is_none() {
                dropped = dead;
            } else if are_of_consumers && !self.context.paging.has_capacity() {
                // Consumers do not pause as publishers do: their dead letters would grow the store's backlog without bound.
                state.leave_dead_letters(dead);
                self.schedule_dead_lettering(&mut state);
            } else {
                let count = dead.len();
                lined_up = !state.line_up(dead);
                own = if lined_up { 0 } else { count };
                if are_of_consumers {
                    // One frame may reject very many messages. The timer sends the dead letters that do not fit into the
                    // turn, and consumers get no deliveries while there are many of these.
                    (own, lined_up) = (own.min(1), false);
                    if state.has_many_dead_letters() {
                        self.schedule_dead_lettering(&mut state);
                    }
                }
            }
        }
        drop(state);
        // Without the lock, since there may be very many.
        dropped.into_iter().filter_map(|dead| dead.stored).for_each(|position| marks.settled(position));
        released.wake();
        self.context.metrics.messages_delivered.add(delivered);
        self.context.metrics.messages_delivered_auto_ack.add(delivered_auto_ack);
        self.context.metrics.messages_redelivered.add(redelivered);
        self.persist(&marks);
        (own, lined_up)
    }

    /// Locked by the thread that sends the queue's dead letters.
    pub(crate) fn dead_letters_turn(&self) -> MutexGuard<'_, (), { Rank::DeadLettersTurn as u8 }> {
        self.dead_letters_turn.lock()
    }

    /// The next queued dead letters, `at_least` this number, for the thread that holds the turn and has already sent `sent`.
    /// Returns none if that thread has sent many: the rest is left to the next thread that drops messages, or to
    /// [`Queue::continue_dead_lettering`].
    pub(crate) fn next_dead_letters(&self, sent: &Step, at_least: usize) -> Vec<DeadLetter> {
        let mut state = self.state.lock();
        let next = state.next_dead_letters(sent, at_least);
        if state.has_dead_letters() {
            self.schedule_dead_lettering(&mut state);
        }
        next
    }

    /// Requeues dead letters that did not fit into the turn of the thread that took them.
    pub(crate) fn put_back_dead_letters(&self, letters: VecDeque<DeadLetter>) {
        self.state.lock().put_back_dead_letters(letters);
    }

    /// Whether more dead letters are queued than threads that drop messages may leave behind.
    pub(crate) fn has_many_dead_letters(&self) -> bool {
        self.state.lock().has_many_dead_letters()
    }

    /// Waits for the thread that is sending dead letters. Sends some itself if no thread will, or if many are queued: threads
    /// that drop messages must not run far ahead of the sending thread, which may only start in its next turn. Returns `false`
    /// if many are still queued when this thread's turn is over. Must not be called by a thread that holds the dead-letter turn
    /// of any queue.
    pub(crate) fn wait_for_dead_letters(&self, now: Timestamp) -> bool {
        loop {
            drop(self.dead_letters_turn.lock());
            let state = self.state.lock();
            let (is_left, are_many) = (state.has_dead_letters(), state.has_many_dead_letters());
            drop(state);
            let sent = if is_left || are_many { self.send_dead_letters(0, now) } else { 0 };
            if !are_many || sent == 0 {
                return true;
            }
            if work::is_turn_over() {
                return !self.has_many_dead_letters();
            }
        }
    }
}

/// Serves consumers before a message is refused. They may free capacity, as they would have if it had arrived separately.
fn serve_before_refusal(state: &mut QueueState, sender: Sender, now: Timestamp, effects: &mut Effects) {
    match sender {
        // Expired messages may free capacity as well, because a refused dead letter is lost.
        Sender::DeadLetters { .. } => state.pump_before_limits(now, effects),
        Sender::Publisher(_) | Sender::Tracer | Sender::Foreign => state.pump_arrivals(now, effects),
    }
}
