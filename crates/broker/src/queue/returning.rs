//! Cancellation of consumers, and deliveries that are requeued or rejected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sync::work;

use super::ready::ReturnedBatch;
use super::state::QueueState;
use super::{ConsumerId, DeathReason, Delivery, Effects, Queue, Returned, StateGuard};
use crate::time::Timestamp;

/// Deliveries that return, prepared as far as possible without the queue's lock: a client may have had very many.
struct Returning {
    /// Their number, including those that have failed too often.
    count: usize,
    messages: Back,
    /// Includes the dead letters of those that have failed too often.
    effects: Effects,
}

/// The messages that are ready again.
enum Back {
    Few(Vec<Delivery>),
    Many(ReturnedBatch),
}

impl Default for Returning {
    fn default() -> Self {
        Self { count: 0, messages: Back::Few(Vec::new()), effects: Effects::default() }
    }
}

/// A [requeue](Queue::requeue) of very many deliveries, or an [end of consumers](Queue::leave), that is prepared in several
/// steps. It is still one step of the queue: until it is [done](Self::finish), the deliveries are unacknowledged.
pub struct Requeue {
    queue: Arc<Queue>,
    returned: Returned,
    returning: Returning,
    /// Most deliveries that may be added.
    most: usize,
    /// Deliveries of several channels, by position, in a queue that keeps the order in which messages return: they are prepared
    /// once all have been added. `None` if they are prepared in the order in which they are added.
    unordered: Option<BTreeMap<u64, Delivery>>,
    leaving: Leaving,
}

/// Consumers that leave a queue together.
#[derive(Default)]
struct Leaving {
    /// Those which are still to be removed.
    rest: Vec<ConsumerId>,
    /// The single active one, once it was found. It is removed last: its successor would otherwise be served before its
    /// deliveries are back.
    active: Option<ConsumerId>,
    /// Any of those removed so far existed.
    has_left: bool,
}

impl Requeue {
    /// Begins to requeue deliveries, `most` or fewer.
    pub fn new(queue: &Arc<Queue>, returned: Returned, most: usize) -> Self {
        Self {
            queue: Arc::clone(queue),
            returned,
            returning: Returning::default(),
            most,
            unordered: None,
            leaving: Leaving::default(),
        }
    }

    /// Begins to remove consumers and to requeue their deliveries, `most` or fewer. If they are of `several` channels, they
    /// return in the order of their positions, otherwise in that in which they are added.
    pub fn of_leaving(queue: &Arc<Queue>, consumers: Vec<ConsumerId>, most: usize, several: bool) -> Self {
        let unordered = (several && queue.delivery_order().returned_first).then(BTreeMap::new);
        let leaving = Leaving { rest: consumers, ..Leaving::default() };
        Self { unordered, leaving, ..Self::new(queue, Returned::Failed, most) }
    }

    /// Adds deliveries, which follow all earlier ones in their order.
    pub fn add(&mut self, deliveries: Vec<Delivery>) {
        match &mut self.unordered {
            Some(unordered) => {
                work::charge(RETURN, deliveries.len());
                unordered.extend(deliveries.into_iter().map(|delivery| (delivery.position, delivery)));
            }
            None => self.queue.prepare(&mut self.returning, deliveries, self.returned, self.most),
        }
    }

    /// Takes the next step once all deliveries have been added; returns whether no more are needed before
    /// [`Self::finish`].
    pub fn proceed(&mut self, now: Timestamp) -> bool {
        if let Some(unordered) = &mut self.unordered {
            let next: Vec<_> = std::iter::from_fn(|| unordered.pop_first()).take(STEP).collect();
            let is_all = unordered.is_empty();
            let next = next.into_iter().map(|(_, delivery)| delivery).collect();
            self.queue.prepare(&mut self.returning, next, self.returned, self.most);
            if is_all {
                self.unordered = None;
            }
            return false;
        }
        self.queue.remove_some(&mut self.leaving, now)
    }

    /// Removes the last consumers, and returns the deliveries to their old positions.
    pub fn finish(mut self, now: Timestamp) {
        while !self.proceed(now) {}
        self.queue.finish_leaving(self.leaving, self.returning, now);
    }
}

impl Queue {
    /// Removes a consumer. Once this returns, the consumer is no longer called. An auto-delete queue is deleted with its
    /// last consumer. Unknown consumers are ignored.
    pub fn cancel(&self, consumer: ConsumerId, now: Timestamp) {
        self.leave(&[consumer], Vec::new(), now);
    }

    /// Removes consumers as [`Queue::cancel`] does, and returns deliveries as [`Queue::requeue`] does, in one step, at the
    /// end of a client or its channel. No consumer is served before all deliveries have returned, so that the next single
    /// active consumer continues in order. A queue that is deleted with its last consumer takes nothing back.
    pub fn leave(&self, consumers: &[ConsumerId], deliveries: Vec<Delivery>, now: Timestamp) {
        let mut leaving = Leaving { rest: consumers.to_vec(), ..Leaving::default() };
        while !self.remove_some(&mut leaving, now) {}
        self.finish_leaving(leaving, self.prepared(deliveries, Returned::Failed), now);
    }

    /// Returns deliveries to their old positions, marked as redelivered (reject, nack and recover with
    /// requeue), in one step. A quorum queue drops messages that have failed too often.
    pub fn requeue(&self, deliveries: Vec<Delivery>, returned: Returned, now: Timestamp) {
        self.finish_leaving(Leaving::default(), self.prepared(deliveries, returned), now);
    }

    /// Removes the consumers that are left, and puts back what returns, without serving any consumer in between.
    fn finish_leaving(&self, leaving: Leaving, returning: Returning, now: Timestamp) {
        let Leaving { rest, active, mut has_left } = leaving;
        work::charge(REMOVAL, rest.len());
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(returning.count as u64);
        for consumer in active.iter().chain(&rest) {
            has_left |= self.remove_consumer(&mut state, *consumer, now);
        }
        let is_abandoned = has_left && self.properties.auto_delete && state.consumers.is_empty();
        if !state.deleted && !is_abandoned {
            if has_left || returning.count > 0 {
                self.take_back(state, returning, now);
            }
            return;
        }
        if state.deleted {
            drop(state);
        } else {
            self.delete_locked(state);
        }
        self.discard(returning);
    }

    /// Frees the memory of messages that would have returned to a deleted queue.
    fn discard(&self, returning: Returning) {
        if let Back::Many(messages) = returning.messages {
            self.context.paging.free(messages.into_ready());
        }
    }

    /// Drops deliveries (reject and nack without requeue). They are sent to the dead-letter exchange if there
    /// is one.
    pub fn reject(&self, deliveries: Vec<Delivery>, returned: Returned, now: Timestamp) {
        let (count, failure) = (deliveries.len(), self.failure_of(returned));
        let mut effects = Effects::default();
        // Charged before the work, so that a long one does not block others.
        work::charge(REFUSAL, count);
        for mut delivery in deliveries {
            delivery.failures = delivery.failures.saturating_add(failure);
            effects.drop_delivery(delivery, DeathReason::Rejected, self.stored_messages());
        }
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(count as u64);
        if state.deleted {
            effects = Effects::default();
        }
        self.finish(state, effects, now);
    }

    /// Removes some consumers, without serving any; returns whether the others can be removed in one step.
    fn remove_some(&self, leaving: &mut Leaving, now: Timestamp) -> bool {
        let Leaving { rest, active, has_left } = leaving;
        if rest.len() <= STEP {
            return true;
        }
        work::charge(REMOVAL, STEP);
        let mut state = self.state.lock();
        for consumer in rest.drain(rest.len() - STEP..) {
            if state.consumers.is_single_active_consumer(consumer) {
                *active = Some(consumer);
            } else {
                *has_left |= self.remove_consumer(&mut state, consumer, now);
            }
        }
        false
    }

    /// Removes a consumer; returns whether it existed.
    fn remove_consumer(&self, state: &mut QueueState, consumer: ConsumerId, now: Timestamp) -> bool {
        if state.consumers.remove(consumer).is_none() {
            return false;
        }
        self.context.metrics.consumers.sub(1);
        if state.consumers.is_empty() {
            self.has_consumers.store(false, Ordering::Release);
            state.last_used = now;
        }
        true
    }

    fn prepared(&self, deliveries: Vec<Delivery>, returned: Returned) -> Returning {
        let (mut returning, most) = (Returning::default(), deliveries.len());
        self.prepare(&mut returning, deliveries, returned, most);
        returning
    }

    /// Adds deliveries to those on their way back, which will be `most` or fewer.
    fn prepare(&self, returning: &mut Returning, deliveries: Vec<Delivery>, returned: Returned, most: usize) {
        let Returning { count, messages, effects } = returning;
        *count += deliveries.len();
        work::charge(RETURN, deliveries.len());
        if self.is_deleted() {
            // Freed bit by bit.
            return;
        }
        let limit = self.delivery_limit_of(&self.arguments.load());
        let failure = self.failure_of(returned);
        let stores = self.stored_messages();
        let back = deliveries.into_iter().filter_map(|mut delivery| {
            let counts = returned != Returned::Unseen;
            delivery.deliveries = delivery.deliveries.saturating_add(counts.into());
            delivery.failures = delivery.failures.saturating_add(failure);
            if limit.is_some_and(|limit| u64::from(delivery.failures) > limit) {
                effects.drop_delivery(delivery, DeathReason::DeliveryLimit, stores);
                return None;
            }
            Some(delivery)
        });
        match messages {
            // In the allocation of the deliveries.
            Back::Few(few) if few.is_empty() => *few = back.collect(),
            Back::Few(few) => few.extend(back),
            Back::Many(many) => many.add(back),
        }
        if let Back::Few(few) = messages
            && few.len() > STEP
        {
            // Sorted, so that they can be put back at once.
            let order = self.delivery_order();
            let first = if order.returned_first { self.state.lock().ready.reserve_places(most) } else { 0 };
            let mut many = ReturnedBatch::new(order, stores, first);
            many.add(std::mem::take(few));
            *messages = Back::Many(many);
        }
    }

    /// Puts messages back, then checks the limits, and only then serves consumers.
    fn take_back(&self, mut state: StateGuard<'_>, returning: Returning, now: Timestamp) {
        let Returning { count, messages, mut effects } = returning;
        self.context.metrics.messages_requeued.add(count);
        match messages {
            Back::Few(messages) => messages.into_iter().for_each(|delivery| state.ready.put_back(delivery)),
            Back::Many(messages) => state.ready.put_back_all(messages),
        }
        if count > 0 && self.delivery_order().returned_first {
            // Such a queue delivers what it can before it checks its limits.
            state.pump_before_limits(now, &mut effects);
        }
        let (state, is_trimmed) = self.trim_some(state, &mut effects, now);
        if is_trimmed { self.run(state, effects, now) } else { self.finish(state, effects, now) }
    }

    /// The number of failures that this kind of return counts as.
    fn failure_of(&self, returned: Returned) -> u32 {
        let is_forgiven = match returned {
            Returned::Released => self.context.compatibility.requeue_ignores_delivery_limit(),
            Returned::Failed => false,
            Returned::Unseen => true,
        };
        u32::from(!is_forgiven)
    }
}

/// Consumers removed, or messages put back one by one, under one lock: well below a millisecond.
const STEP: usize = 512;

/// Nanoseconds charged for a consumer that is removed.
const REMOVAL: u32 = 200;

/// Nanoseconds charged for a returned message.
const RETURN: u32 = 100;

/// Nanoseconds charged for a message that is refused, without its dead letter.
const REFUSAL: u32 = 20;
