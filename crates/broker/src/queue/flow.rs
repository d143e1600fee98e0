//! What goes through a queue: messages in, to consumers, and back again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sync::MutexGuard;

use super::consumers::ConsumerEntry;
use store::Waiter;
use store::journal::Lsn;

use super::state::QueueState;
use super::{ConsumerId, ConsumerSpec, DeadLetter, DeathReason, Delivery, Effects, Fetched, Got, Queue};
use crate::arguments::{Overflow, QueueKind, check_consumer_priority};
use crate::error::BrokerError;
use crate::message::Message;
use crate::names::Resource;
use crate::persistence::{Keeping, Kept};
use crate::rates::Leaving;
use crate::time::Timestamp;

/// What [`Queue::append`] leads to.
#[derive(Default)]
pub(crate) struct Appended {
    /// Dead letters that the caller takes care of.
    pub(crate) dead: Vec<DeadLetter>,
    /// There are others, which somebody else takes care of: a caller with nothing left to send on waits for that
    /// ([`Queue::wait_for_letters`]).
    pub(crate) lined_up: bool,
    /// What to wait for until the messages are on disk.
    pub(crate) until: Option<Lsn>,
    /// More comes than can leave memory.
    pub(crate) full: bool,
}

/// Who gives messages to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Publisher,
    Tracer,
    /// A queue that has dropped a message.
    DeadLetters {
        /// How many more letters may come of it.
        budget: u32,
    },
}

impl Sender {
    fn budget(self) -> Option<u32> {
        match self {
            Self::Publisher | Self::Tracer => None,
            Self::DeadLetters { budget } => Some(budget),
        }
    }
}

impl Queue {
    /// Registers a consumer. It starts out full, so that the session can write consume-ok before the first delivery:
    /// nothing is delivered until [`Queue::resume`].
    ///
    /// # Errors
    /// 403 `… in exclusive use`; 406 for a wrong `x-priority`; 404 when the queue has just been deleted.
    pub fn consume(&self, spec: ConsumerSpec<'_>) -> Result<ConsumerId, BrokerError> {
        let arguments = spec.arguments.decode();
        let priority = check_consumer_priority(&arguments, &self.name, &self.vhost)?;
        let mut state = self.state.lock();
        if state.deleted {
            return Err(BrokerError::no_queue(&self.name, &self.vhost));
        }
        let consumers = &mut state.consumers;
        // Quorum queues take no notice of the flag.
        let exclusive = spec.exclusive && self.kind() != QueueKind::Quorum;
        let alone = consumers.is_empty() && !consumers.is_single_active();
        if consumers.has_exclusive() || (exclusive && !alone) {
            let queue = Resource::Queue.describe(&self.name, &self.vhost);
            return Err(BrokerError::access(format!("{queue} in exclusive use")));
        }
        self.metrics.consumers.add(1);
        let entry =
            ConsumerEntry::new(spec.consumer, spec.session, spec.tag, spec.no_ack, exclusive, priority);
        self.has_consumers.store(true, Ordering::Release);
        Ok(consumers.insert(entry))
    }

    /// Removes a consumer. Once this returns, it is not called any more. An auto-delete queue goes with its last
    /// consumer. Unknown consumers are ignored.
    pub fn cancel(&self, consumer: ConsumerId, now: Timestamp) {
        let mut state = self.state.lock();
        if state.consumers.remove(consumer).is_none() {
            return;
        }
        self.metrics.consumers.sub(1);
        if state.consumers.is_empty() {
            self.has_consumers.store(false, Ordering::Release);
            state.last_used = now;
            if self.properties.auto_delete && !state.deleted {
                self.delete_locked(state);
                return;
            }
        }
        // A consumer that has waited for its turn to be the single active one may be next.
        self.run(state, Effects::default(), now);
    }

    /// The consumer has room, again or for the first time.
    pub fn resume(&self, consumer: ConsumerId, now: Timestamp) {
        let mut state = self.state.lock();
        if state.consumers.resume(consumer) && !state.ready.is_empty() {
            self.run(state, Effects::default(), now);
        }
    }

    /// Takes the next message. If it is on disk `waiter` is woken when it is worth to ask again.
    pub fn fetch(&self, no_ack: bool, now: Timestamp, waiter: &Arc<dyn Waiter>) -> Fetched {
        match self.take_next(no_ack, now, Some(waiter)) {
            Some(got) => got.map_or(Fetched::Later, Fetched::Got),
            None => Fetched::Empty,
        }
    }

    /// Takes the next message; `None` when there is none in memory: a broker that pages is asked by [`Queue::fetch`].
    pub fn get(&self, no_ack: bool, now: Timestamp) -> Option<Got> {
        self.take_next(no_ack, now, None).flatten()
    }

    /// `None` when there is none, and nothing inside when it is on disk.
    fn take_next(
        &self,
        no_ack: bool,
        now: Timestamp,
        waiter: Option<&Arc<dyn Waiter>>,
    ) -> Option<Option<Got>> {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.last_used = now;
        while !state.drop_expired(now, &mut effects) {
            self.finish(state, std::mem::take(&mut effects), now);
            state = self.state.lock();
        }
        if state.ready.is_cold() {
            waiter.into_iter().for_each(|waiter| state.wait_for_load(waiter));
            self.finish(state, effects, now);
            return Some(None);
        }
        let got = state.ready.pop().map(|delivery| {
            // What comes to the head may have expired, too, and is not there for anybody any more.
            state.drop_expired(now, &mut effects);
            Got { delivery, remaining: state.ready.len() as u64 }
        });
        match &got {
            None => {
                state.passing.add(0, Leaving::got_nothing(), now);
                self.metrics.gets_empty.add(1);
            }
            Some(got) => {
                state.unacked += u64::from(!no_ack);
                state.passing.add(0, Leaving::got(no_ack, got.delivery.redelivered()), now);
                if let Some(marks) = state.marks(&mut effects) {
                    got.delivery.mark_taken(no_ack, marks);
                }
                self.metrics.messages_got.add(1);
                self.metrics.messages_got_auto_ack.add(usize::from(no_ack));
                self.metrics.messages_redelivered.add(usize::from(got.delivery.redelivered()));
            }
        }
        self.finish(state, effects, now);
        got.map(Some)
    }

    /// Settles deliveries of this queue. Returns how far the log of messages must get so that they do not come back: the end of
    /// the very record; `None` if none of them is on disk.
    pub fn ack(&self, deliveries: Vec<Delivery>, now: Timestamp) -> Option<Lsn> {
        self.metrics.messages_acked.add(deliveries.len());
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(deliveries.len() as u64);
        if !deliveries.is_empty() && !state.deleted {
            state.passing.add(0, Leaving::acked(deliveries.len()), now);
        }
        drop(state);
        self.settle_stored(deliveries.iter())
    }

    /// Puts deliveries back to where they were, marked as redelivered (reject, nack and recover with requeue, the end
    /// of a channel). A quorum queue drops what has come back too often.
    pub fn requeue(&self, deliveries: Vec<Delivery>, now: Timestamp) {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(deliveries.len() as u64);
        if state.deleted {
            return;
        }
        self.metrics.messages_requeued.add(deliveries.len());
        let arguments = self.arguments.load();
        for mut delivery in deliveries {
            delivery.deliveries = delivery.deliveries.saturating_add(1);
            let limit = arguments.delivery_limit.filter(|_| arguments.kind == QueueKind::Quorum);
            if limit.is_some_and(|limit| u64::from(delivery.deliveries) > limit) {
                state.bury(delivery, DeathReason::DeliveryLimit, &mut effects);
            } else {
                state.ready.put_back(delivery);
            }
        }
        let state = self.trim(state, &mut effects, now);
        self.run(state, effects, now);
    }

    /// Drops deliveries (reject and nack without requeue). They go to the dead-letter exchange if there is one.
    pub fn reject(&self, deliveries: Vec<Delivery>, now: Timestamp) {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(deliveries.len() as u64);
        if !state.deleted {
            for delivery in deliveries {
                state.bury(delivery, DeathReason::Rejected, &mut effects);
            }
        }
        self.finish(state, effects, now);
    }

    /// Drops all ready messages, and returns how many there were, and what to wait for so that they do not come back.
    pub fn purge(&self) -> (u64, Option<Lsn>) {
        let mut state = self.state.lock();
        let purged = state.ready.take_all();
        let waiting = state.take_waiting();
        self.look_at_paging(&mut state, Timestamp::default());
        drop(state);
        waiting.iter().for_each(|waiter| waiter.wake());
        (purged.len() as u64, self.settle_purged(&purged))
    }

    /// Appends messages in order and serves the consumers. `refused` is told the place in `messages` of each that a
    /// full queue does not take. `kept` tells which of them are in the store.
    pub(crate) fn append(
        &self,
        messages: impl Iterator<Item = Arc<Message>>,
        kept: Kept<'_>,
        now: Timestamp,
        sender: Sender,
        mut refused: impl FnMut(usize),
    ) -> Appended {
        let mut effects = Effects { budget: sender.budget(), ..Effects::default() };
        let mut keeping = kept.begin(self.stored());
        let mut state = self.state.lock();
        if state.deleted {
            drop(state);
            keeping.iter().for_each(|keeping| keeping.refuses_all());
            return Appended::default();
        }
        let (mut taken, mut refusals) = (0, 0);
        let arguments = self.arguments.load();
        let rejecting = arguments.overflow != Overflow::DropHead;
        let spill = self.lets_go();
        for (at, message) in messages.enumerate() {
            if rejecting && state.would_overflow(&message, &arguments) {
                // Consumers may make room, as they would have had the message come alone.
                state.pump_arrivals(now, &mut effects);
                if state.would_overflow(&message, &arguments) {
                    refused(at);
                    refusals += 1;
                    keeping.iter().for_each(|keeping| keeping.refuses(at));
                    if arguments.overflow == Overflow::RejectPublishDlx {
                        effects.bury(message, DeathReason::MaxLength, None);
                    }
                    continue;
                }
            }
            let (position, expires) = state.push(message, &arguments, now, spill);
            if let Some(keeping) = &mut keeping {
                keeping.takes(at, position, expires);
            }
            taken += 1;
        }
        // Before anybody can settle them.
        let until = keeping.and_then(Keeping::write);
        // RabbitMQ counts what was routed here, and neither dead letters nor what is told to the firehose.
        effects.published = if sender == Sender::Publisher { taken + refusals } else { 0 };
        self.metrics.messages_enqueued.add(taken);
        self.metrics.messages_refused.add(refusals);
        state.pump_arrivals(now, &mut effects);
        while !state.trim(&arguments, &mut effects) {
            drop(state);
            state = self.state.lock();
        }
        state.drop_expired(now, &mut effects);
        let long = state.is_long();
        let (dead, lined_up) = self.conclude(state, effects, now);
        let full = long && self.paging.is_behind();
        self.metrics.paging_pauses.add(full.into());
        Appended { dead, lined_up, until, full }
    }

    /// Serves consumers and does what that, and `effects`, lead to. The lock is released now and then when very many
    /// messages have expired.
    pub(super) fn run<'q>(
        &'q self,
        mut state: MutexGuard<'q, QueueState>,
        mut effects: Effects,
        now: Timestamp,
    ) {
        while !state.pump(now, &mut effects) {
            self.finish(state, std::mem::take(&mut effects), now);
            state = self.state.lock();
        }
        self.finish(state, effects, now);
    }

    /// Drops messages from the head that are too many. The lock is released now and then when they are very many.
    pub(super) fn trim<'q>(
        &'q self,
        mut state: MutexGuard<'q, QueueState>,
        effects: &mut Effects,
        now: Timestamp,
    ) -> MutexGuard<'q, QueueState> {
        while !state.trim(&self.arguments.load(), effects) {
            self.finish(state, std::mem::take(effects), now);
            state = self.state.lock();
        }
        state
    }

    /// Releases the lock and sends dead letters on.
    pub(super) fn finish(&self, state: MutexGuard<'_, QueueState>, effects: Effects, now: Timestamp) {
        let (dead, lined_up) = self.conclude(state, effects, now);
        if lined_up {
            self.wait_for_letters();
        } else if !dead.is_empty()
            && let Some(home) = self.home.upgrade()
        {
            home.dead_letter(self, dead, now);
        }
    }

    /// Releases the lock, counts, and returns the dead letters that have somewhere to go, for the caller to send on, or
    /// whether they stand in line behind others.
    fn conclude(
        &self,
        mut state: MutexGuard<'_, QueueState>,
        mut effects: Effects,
        now: Timestamp,
    ) -> (Vec<DeadLetter>, bool) {
        self.look_at_paging(&mut state, now);
        self.schedule(&mut state);
        effects.share_budget();
        if effects.published > 0 || effects.delivered > 0 {
            state.passing.add(effects.published, effects.leaving(), now);
        }
        let Effects { mut dead, mut marks, delivered, delivered_auto_ack, redelivered, .. } = effects;
        let mut lined_up = false;
        if !dead.is_empty() {
            if self.arguments.load().dead_lettering.is_none() {
                dead.drain(..).filter_map(|dead| dead.stored).for_each(|position| marks.settled(position));
            } else {
                dead = state.line_up(dead);
                lined_up = dead.is_empty();
            }
        }
        drop(state);
        self.metrics.messages_delivered.add(delivered);
        self.metrics.messages_delivered_auto_ack.add(delivered_auto_ack);
        self.metrics.messages_redelivered.add(redelivered);
        self.write_down(&marks);
        (dead, lined_up)
    }

    /// Held by whoever sends the queue's dead letters on.
    pub(crate) fn letters_turn(&self) -> MutexGuard<'_, ()> {
        self.letters_turn.lock()
    }

    /// What has lined up behind the letters that the caller has sent on.
    pub(crate) fn next_letters(&self) -> Vec<DeadLetter> {
        self.state.lock().next_letters()
    }

    /// Waits until letters that stand in line have probably been sent on: whoever drops messages shall not run ahead of
    /// the one who sends them. Never called by one who still has letters of any queue to send.
    pub(crate) fn wait_for_letters(&self) {
        drop(self.letters_turn.lock());
    }
}
