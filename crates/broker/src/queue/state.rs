//! The state protected by a queue's lock, and the steps that are taken under it.

use std::collections::VecDeque;
use std::sync::Arc;

use sync::work;

use super::Queue;
use super::consumers::QueueConsumers;
use super::credit::{Load, PublisherCredit, Released};
use super::delivery::{ConsumerCapacity, Delivery, NEVER, Offer};
use super::paging::PagingState;
use super::ready::ReadyStore;
use super::stored::StoredMessages;
use crate::SessionId;
use crate::arguments::{Overflow, QueueArguments, QueueKind};
use crate::compatibility::DeliveryOrder;
use crate::message::Message;
use crate::persistence::Marks;
use crate::rates::{DequeueCounts, ThroughputCounters};
use crate::time::Timestamp;

pub(super) struct QueueState {
    pub(super) ready: ReadyStore,
    pub(super) consumers: QueueConsumers,
    /// The number of deliveries not settled by their sessions.
    pub(super) unacked: u64,
    pub(super) deleted: bool,
    /// The time at which the queue was last declared, read by `get`, or lost its last consumer (`x-expires`).
    pub(super) last_used: Timestamp,
    /// The time of the queue's entry in the broker's list of deadlines.
    pub(super) scheduled: Option<Timestamp>,
    /// The time of the last call of [`QueueState::drop_expired`] that left expired messages; `None` if there are none.
    pub(super) sweeping: Option<Timestamp>,
    /// Whether it is among the broker's queues with dead letters to send ([`Queue::continue_dead_lettering`]).
    pub(super) awaits_capacity: bool,
    /// Which messages are also in the store.
    pub(super) stores: StoredMessages,
    pub(super) next_position: u64,
    pub(super) paging: PagingState,
    /// Throttles publishers while the backlog grows.
    pub(super) credit: PublisherCredit,
    /// Set while dead letters are being sent. Boxed: a queue is small, and rarely has any.
    letters: Option<Box<DeadLetterLine>>,
    /// Counters of messages that entered and left.
    pub(super) passing: ThroughputCounters,
}

/// Dead letters that wait for those dropped before them.
#[derive(Default)]
struct DeadLetterLine {
    /// They stay here until a thread that has the [turn](Queue::dead_letters_turn) takes them.
    waiting: VecDeque<DeadLetter>,
    /// Bytes of their bodies.
    bytes: u64,
    /// Whether a thread is sending dead letters, or will after its current work. If there is none, the next thread that
    /// drops messages sends them, or the broker's timer.
    has_sender: bool,
    /// Whether some of them are messages that consumers rejected.
    of_consumers: bool,
    /// The queue itself if it is deleted: it is no longer in the topology, and its dead letters have yet to be sent.
    of_deleted: Option<Arc<Queue>>,
}

impl DeadLetterLine {
    /// Takes the next dead letters to send: a [`Step`] of them, or `at_least` this number.
    fn take(&mut self, at_least: usize) -> Vec<DeadLetter> {
        self.has_sender = true;
        self.of_deleted = None;
        let mut step = Step::default();
        let is_next = |(at, letter): &(usize, &DeadLetter)| {
            let goes_on = step.goes_on();
            step.add(&letter.message);
            *at < at_least || goes_on
        };
        let letters: Vec<_> = match self.waiting.iter().enumerate().take_while(is_next).count() {
            // There may be very many, so avoid a copy.
            count if count == self.waiting.len() => std::mem::take(&mut self.waiting).into(),
            count => self.waiting.drain(..count).collect(),
        };
        self.bytes -= bytes_of(&letters);
        letters
    }

    fn add(&mut self, letters: Vec<DeadLetter>) {
        self.bytes += bytes_of(&letters);
        self.of_consumers |= letters.iter().any(DeadLetter::is_rejected_by_consumer);
        // There may be very many, so avoid a copy.
        match self.waiting.is_empty() {
            true => self.waiting = letters.into(),
            false => self.waiting.extend(letters),
        }
    }
}

/// Bytes of their bodies.
fn bytes_of(letters: &[DeadLetter]) -> u64 {
    letters.iter().map(|letter| letter.message.body_len() as u64).sum()
}

/// A message that a queue has dropped and that may go to a dead-letter exchange.
#[derive(Debug)]
pub(crate) struct DeadLetter {
    pub(crate) message: Arc<Message>,
    pub(crate) reason: DeathReason,
    /// The number of its failed deliveries.
    pub(crate) failures: u32,
    /// The position of a stored message, which is settled once the letter has been sent.
    pub(crate) stored: Option<u64>,
    /// Maximum number of dead letters that may result from it, itself included.
    pub(crate) budget: u32,
}

impl DeadLetter {
    /// Whether a consumer rejected the message.
    pub(super) fn is_rejected_by_consumer(&self) -> bool {
        matches!(self.reason, DeathReason::Rejected | DeathReason::DeliveryLimit)
    }
}

/// Maximum number of dead letters that one dropped message may cause through further queues. Cycles are cut, but if
/// full queues all dead-letter to each other, the number of paths through them is still factorial in the number of
/// queues.
const MAX_DEAD_LETTERS_OF_A_CAUSE: u32 = 1_000;

/// The reason why a message was dropped, as in the header `x-death`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeathReason {
    Rejected,
    Expired,
    MaxLength,
    DeliveryLimit,
}

/// Effects of a step to be completed, or counted, once the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) dead: Vec<DeadLetter>,
    /// The most dead letters that may result from all of `dead` that this step caused, if it appended a dead letter.
    pub(super) budget: Option<u32>,
    /// Whether messages were already due to be dropped before the step: then it did not cause expiries.
    pub(super) were_overdue: bool,
    /// The number of messages from publishers.
    pub(super) published: usize,
    pub(super) delivered: usize,
    pub(super) delivered_auto_ack: usize,
    pub(super) redelivered: usize,
    /// Changes to stored messages, to be written.
    pub(super) marks: Marks,
}

impl Effects {
    pub(super) fn dead_letter(
        &mut self,
        message: Arc<Message>,
        reason: DeathReason,
        failures: u32,
        stored: Option<u64>,
    ) {
        self.dead.push(DeadLetter { message, reason, failures, stored, budget: MAX_DEAD_LETTERS_OF_A_CAUSE });
    }

    /// Adds a dropped message, with its position in the store if the queue stores it.
    pub(super) fn drop_delivery(&mut self, delivery: Delivery, reason: DeathReason, stores: StoredMessages) {
        let Delivery { message, position, failures, .. } = delivery;
        let stored = stores.includes(&message).then_some(position);
        self.dead_letter(message, reason, failures, stored);
    }

    /// The deliveries, for counters.
    pub(super) fn leaving(&self) -> DequeueCounts {
        let (deliver_no_ack, redeliver) = (self.delivered_auto_ack, self.redelivered);
        DequeueCounts {
            deliver: self.delivered - deliver_no_ack,
            deliver_no_ack,
            redeliver,
            ..DequeueCounts::default()
        }
    }

    /// Splits the budget evenly between the dead letters that the step caused.
    pub(super) fn share_budget(&mut self) {
        let Some(budget) = self.budget else { return };
        let is_caused = |dead: &DeadLetter| !(self.were_overdue && dead.reason == DeathReason::Expired);
        let caused = self.dead.iter().filter(|dead| is_caused(dead)).count();
        let share = budget / u32::try_from(caused).unwrap_or(u32::MAX).max(1);
        self.dead.iter_mut().filter(|dead| is_caused(dead)).for_each(|dead| dead.budget = share);
    }
}

impl QueueState {
    pub(super) fn new(arguments: &QueueArguments, order: DeliveryOrder, stores: StoredMessages) -> Self {
        Self {
            ready: ReadyStore::new(order, stores),
            consumers: QueueConsumers::new(arguments.single_active_consumer),
            unacked: 0,
            deleted: false,
            last_used: Timestamp::default(),
            scheduled: None,
            sweeping: None,
            awaits_capacity: false,
            stores,
            next_position: 0,
            paging: PagingState::default(),
            credit: PublisherCredit::default(),
            letters: None,
            passing: ThroughputCounters::default(),
        }
    }

    /// The size of the backlog.
    pub(super) fn load(&self) -> Load {
        Load::of(self.ready.len(), self.ready.bytes())
    }

    /// Whether a publisher of this session has used up its credit: the backlog grows although consumers could take more.
    pub(super) fn holds_publishers(&mut self, session: Option<SessionId>, now: Timestamp) -> bool {
        let load = self.load();
        let Self { credit, consumers, .. } = self;
        // A session that consumes what it publishes would be held together with its own acknowledgements.
        !consumers.is_empty()
            && credit.charge_backlog(load, now, || consumers.sample_lag(now))
            && session.is_none_or(|session| !consumers.are_of(session))
    }

    /// The held publishers that may continue, after consumers have taken this number of messages.
    #[inline]
    pub(super) fn released_publishers(&mut self, taken: usize, now: Timestamp) -> Released {
        if self.credit.is_unused() {
            return Released::default();
        }
        if self.consumers.is_empty() {
            return self.credit.release_all();
        }
        self.credit.released(self.load(), taken, now)
    }

    /// Adds a message at the end; with `spill` it may be on disk only. Returns its position and its expiry.
    pub(super) fn push(
        &mut self,
        message: Arc<Message>,
        arguments: &QueueArguments,
        now: Timestamp,
        spill: bool,
    ) -> (u64, u64) {
        let ttl = match (arguments.message_ttl, message.broker_properties().expiration) {
            (Some(queue), Some(own)) => Some(queue.min(own)),
            (queue, own) => queue.or(own),
        };
        let expires = ttl.map_or(NEVER, |ttl| now.after(ttl).0);
        let position = self.next_position;
        self.next_position += 1;
        let failures = message.broker_properties().failures;
        self.ready.push(Delivery { position, expires, message, deliveries: 0, failures }, spill);
        (position, expires)
    }

    /// Adds a dropped message to the dead letters.
    pub(super) fn dead_letter(&self, delivery: Delivery, reason: DeathReason, effects: &mut Effects) {
        effects.drop_delivery(delivery, reason, self.stores);
    }

    /// Queues dead letters, so that they leave in the order in which they were dropped, whichever thread dropped them.
    /// Returns whether the caller has to send dead letters, or another thread will.
    pub(super) fn line_up(&mut self, letters: Vec<DeadLetter>) -> bool {
        let line = self.letters.get_or_insert_default();
        line.add(letters);
        !std::mem::replace(&mut line.has_sender, true)
    }

    /// Queues dead letters for [`Queue::continue_dead_lettering`], unless a thread is already sending.
    pub(super) fn leave_dead_letters(&mut self, letters: Vec<DeadLetter>) {
        self.letters.get_or_insert_default().add(letters);
    }

    /// Requeues letters that the thread with the turn has taken and not sent.
    pub(super) fn put_back_dead_letters(&mut self, letters: VecDeque<DeadLetter>) {
        let line = self.letters.get_or_insert_default();
        for letter in letters.into_iter().rev() {
            line.bytes += letter.message.body_len() as u64;
            line.waiting.push_front(letter);
        }
    }

    /// The next dead letters, `at_least` this number, for the thread that has the turn and has already sent `sent`. If
    /// there are none, later dead letters need not wait any more. A thread that has sent many gets none;
    /// [`QueueState::has_dead_letters`] returns whether some are left.
    pub(super) fn next_dead_letters(&mut self, sent: &Step, at_least: usize) -> Vec<DeadLetter> {
        match &mut self.letters {
            Some(line) if line.waiting.is_empty() => self.letters = None,
            Some(line) if !sent.goes_on() => line.has_sender = false,
            Some(line) => return line.take(at_least),
            None => {}
        }
        Vec::new()
    }

    /// Whether there are dead letters that no thread is sending.
    pub(super) fn has_dead_letters(&self) -> bool {
        self.letters.as_ref().is_some_and(|line| !line.has_sender)
    }

    /// Whether many or large dead letters wait for store capacity or, if consumers rejected the messages, for the timer.
    /// Consumers get nothing until they are sent: consumers that reject everything would otherwise load a whole long queue
    /// into memory.
    pub(super) fn is_behind_dead_letters(&self) -> bool {
        let Some(line) = self.letters.as_ref().filter(|_| self.awaits_capacity) else { return false };
        (line.of_consumers || !line.has_sender)
            && (line.waiting.len() > MAX_WAITING_DEAD_LETTERS || line.bytes > MAX_WAITING_BYTES)
    }

    /// Whether more dead letters wait than threads that drop messages may leave.
    pub(super) fn has_many_dead_letters(&self) -> bool {
        self.letters.as_ref().is_some_and(|line| line.waiting.len() > MAX_WAITING_DEAD_LETTERS)
    }

    /// Keeps a deleted queue alive until its dead letters that no thread is sending are sent.
    pub(super) fn keep_for_dead_letters(&mut self, queue: Option<Arc<Queue>>) {
        if let Some(line) = self.letters.as_mut().filter(|line| !line.has_sender) {
            line.of_deleted = queue;
        }
    }

    /// The time at which the next message expires. A head that is being loaded is checked once it is in memory.
    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        if self.ready.needs_load() { None } else { self.ready.next_expiry().map(Timestamp) }
    }

    /// Whether one more message would exceed a length limit.
    pub(super) fn would_overflow(&self, message: &Message, arguments: &QueueArguments) -> bool {
        let bytes = self.ready.bytes() + message.body_len() as u64;
        arguments.max_length.is_some_and(|max| self.ready.len() as u64 + 1 > max)
            || arguments.max_length_bytes.is_some_and(|max| bytes > max)
    }

    /// Whether the next message is dropped on arrival. With a TTL of 0 it may only go to a consumer at once, and none takes it
    /// if others wait already. Messages that become dead letters when they expire, and those of quorum queues, wait behind the
    /// others instead, to expire at the head (RabbitMQ, `rabbit_amqqueue_process:deliver_or_enqueue/3`).
    pub(super) fn drops_arrivals(
        &mut self,
        arguments: &QueueArguments,
        now: Timestamp,
        effects: &mut Effects,
    ) -> bool {
        let may_drop = arguments.message_ttl == Some(0)
            && arguments.dead_lettering.is_none()
            && arguments.kind == QueueKind::Classic;
        if !may_drop || self.ready.is_empty() {
            return false;
        }
        // Consumers may take the others, as they would have if these had come alone.
        self.pump_arrivals(now, effects);
        !self.ready.is_empty()
    }

    /// Drops messages from the head until the length limits are met, at most a [`Step`] of them; returns whether no more in
    /// memory have to be dropped. Only ready messages count (RabbitMQ, "Queue Length Limit").
    #[must_use]
    pub(super) fn trim(&mut self, arguments: &QueueArguments, effects: &mut Effects) -> bool {
        let mut step = Step::default();
        while step.goes_on() {
            if !self.is_too_long(arguments) {
                return true;
            }
            let Some(delivery) = self.ready.pop() else { return true };
            step.add(&delivery.message);
            self.dead_letter(delivery, DeathReason::MaxLength, effects);
        }
        !self.is_too_long(arguments)
    }

    fn is_too_long(&self, arguments: &QueueArguments) -> bool {
        arguments.overflow == Overflow::DropHead
            && (arguments.max_length.is_some_and(|max| self.ready.len() as u64 > max)
                || arguments.max_length_bytes.is_some_and(|max| self.ready.bytes() > max))
    }

    /// Whether messages at the head have expired, or exceed new length limits.
    pub(super) fn has_overdue(&self, arguments: &QueueArguments, now: Timestamp) -> bool {
        self.sweeping.is_some()
            || self.next_expiry().is_some_and(|expiry| expiry <= now)
            || self.is_too_long(arguments)
    }

    /// Drops expired messages at the head, at most a [`Step`] of them; returns whether none are left. If
    /// some are, [`Queue::schedule`](super::Queue) handles them, unless the caller does.
    pub(super) fn drop_expired(&mut self, now: Timestamp, effects: &mut Effects) -> bool {
        let mut step = Step::default();
        while step.goes_on() {
            let Some(delivery) = self.ready.pop_expired(now.0) else {
                self.sweeping = self.sweeping.filter(|_| now == ALWAYS_UNEXPIRED);
                return true;
            };
            step.add(&delivery.message);
            self.dead_letter(delivery, DeathReason::Expired, effects);
        }
        self.sweeping = Some(now);
        false
    }

    /// [Serves consumers](Self::pump) with messages that arrived at `now`: a message that a consumer can take at once has
    /// not expired, however short its TTL. While older messages have expired, `now` applies, so that these are not delivered.
    pub(super) fn pump_arrivals(&mut self, now: Timestamp, effects: &mut Effects) {
        let expired_by = if self.sweeping.is_some() { now } else { ALWAYS_UNEXPIRED };
        self.serve(expired_by, now, true, effects);
    }

    /// [Serves consumers](Self::pump) before checking length limits: a message that a consumer with capacity can take does
    /// not exceed them.
    pub(super) fn pump_before_limits(&mut self, now: Timestamp, effects: &mut Effects) {
        self.serve(now, now, true, effects);
    }

    /// Delivers messages to consumers as long as there are both messages and consumers with capacity: to those of the
    /// highest priority first, in turn, one message each; a single one takes any number up to [`MAX_TURN`].
    ///
    /// Messages that have expired by `now` are dropped when they come to the head; if there are very many,
    /// this ends early and returns false.
    pub(super) fn pump(&mut self, now: Timestamp, effects: &mut Effects) -> bool {
        self.serve(now, now, false, effects)
    }

    fn serve(
        &mut self,
        expired_by: Timestamp,
        now: Timestamp,
        is_urgent: bool,
        effects: &mut Effects,
    ) -> bool {
        loop {
            if !self.drop_expired(expired_by, effects) {
                return false;
            }
            if self.ready.is_empty() || self.is_behind_dead_letters() {
                return true;
            }
            let Some((slot, ready_consumers)) = self.consumers.next() else { return true };
            if self.ready.front().is_none() {
                self.ready.want_load();
                return true;
            }
            let entry = self.consumers.get(slot);
            let fewer_than_consumers = self.ready.len() < ready_consumers;
            let allowance = if ready_consumers == 1 { MAX_TURN } else { 1 };
            let mut offer = Offer {
                ready: &mut self.ready,
                expired_by: expired_by.0,
                now,
                is_urgent: is_urgent || fewer_than_consumers,
                allowance,
                taken: 0,
                redelivered: 0,
                no_ack: entry.no_ack,
                stores: self.stores,
                marks: &mut effects.marks,
            };
            let capacity = entry.consumer.accept(&mut offer);
            let (taken, redelivered) = (offer.taken, offer.redelivered);
            work::charge(OFFER, 1);
            work::charge(DELIVERY, taken);
            match entry.no_ack {
                true => effects.delivered_auto_ack += taken,
                false => self.unacked += taken as u64,
            }
            effects.delivered += taken;
            effects.redelivered += redelivered;
            self.consumers.served(slot, if taken == 0 { ConsumerCapacity::Full } else { capacity });
        }
    }
}

/// A time before every expiry, for messages that have just arrived.
const ALWAYS_UNEXPIRED: Timestamp = Timestamp(0);

/// The messages dropped under one lock because of expiry or length limits, or the dead letters that one thread sends before
/// it leaves the rest to others and returns to its own work.
#[derive(Default)]
pub(crate) struct Step {
    messages: usize,
    bytes: u64,
}

impl Step {
    pub(crate) fn add(&mut self, message: &Message) {
        self.messages += 1;
        self.bytes += message.body_len() as u64;
    }

    /// Ends the step early, since the thread's turn is over.
    pub(crate) fn end(&mut self) {
        self.messages = MESSAGES_AT_ONCE;
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.messages < MESSAGES_AT_ONCE && self.bytes < BYTES_AT_ONCE
    }
}

/// Most messages of a [`Step`]: to drop them takes well below a millisecond, to send them about one.
const MESSAGES_AT_ONCE: usize = 512;

/// Bytes of bodies at which a [`Step`] ends: dead letters may be written to the journal, and this is a small part of its
/// limit.
const BYTES_AT_ONCE: u64 = 4 << 20;

/// Dead letters of one queue that may wait while threads continue to drop messages there.
const MAX_WAITING_DEAD_LETTERS: usize = 8 * MESSAGES_AT_ONCE;

/// Bytes of bodies of one queue's dead letters that may wait for capacity while consumers get more.
const MAX_WAITING_BYTES: u64 = 8 * BYTES_AT_ONCE;

/// Nanoseconds charged for offering messages to a consumer, and for each message that it takes.
const OFFER: u32 = 60;
const DELIVERY: u32 = 60;

/// The most messages that one call of a consumer may take, so that the consumer's own lock is released regularly.
const MAX_TURN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;

    #[test]
    fn an_idle_queue_is_small() {
        // With the two counters of its `Arc`, one of the allocator's size classes.
        assert!(size_of::<Queue>() <= 512 - 2 * size_of::<usize>(), "{}", size_of::<Queue>());
        assert!(size_of::<QueueState>() <= 304, "{}", size_of::<QueueState>());
    }
}
