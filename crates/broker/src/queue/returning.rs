//! Cancellation of consumers, and deliveries that are requeued or rejected.

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

/// A [requeue](Queue::requeue) of very many deliveries, which are prepared in several steps. It is still one step of the queue:
/// until it is [done](Self::finish), they are unacknowledged.
pub struct Requeue {
    queue: Arc<Queue>,
    returned: Returned,
    returning: Returning,
    /// Most deliveries that may be added.
    most: usize,
}

impl Requeue {
    /// Begins to requeue deliveries, `most` or fewer.
    pub fn new(queue: &Arc<Queue>, returned: Returned, most: usize) -> Self {
        Self { queue: Arc::clone(queue), returned, returning: Returning::default(), most }
    }

    /// Adds deliveries, which follow all earlier ones in their order.
    pub fn add(&mut self, deliveries: Vec<Delivery>) {
        self.queue.prepare(&mut self.returning, deliveries, self.returned, self.most);
    }

    /// Returns the deliveries to their old positions.
    pub fn finish(self, now: Timestamp) {
        self.queue.requeue_prepared(self.returning, now);
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
        let (early, late) = consumers.split_at(consumers.len().saturating_sub(STEP));
        let (active, mut has_left) = self.remove_in_steps(early, now);
        let returning = self.prepared(deliveries, Returned::Failed);
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(returning.count as u64);
        for consumer in active.iter().chain(late) {
            has_left |= self.remove_consumer(&mut state, *consumer, now);
        }
        if state.deleted || (!has_left && returning.count == 0) {
            return;
        }
        if has_left && self.properties.auto_delete && state.consumers.is_empty() {
            self.delete_locked(state);
            return;
        }
        self.take_back(state, returning, now);
    }

    /// Returns deliveries to their old positions, marked as redelivered (reject, nack and recover with
    /// requeue), in one step. A quorum queue drops messages that have failed too often.
    pub fn requeue(&self, deliveries: Vec<Delivery>, returned: Returned, now: Timestamp) {
        self.requeue_prepared(self.prepared(deliveries, returned), now);
    }

    fn requeue_prepared(&self, returning: Returning, now: Timestamp) {
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(returning.count as u64);
        if !state.deleted {
            self.take_back(state, returning, now);
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

    /// Removes consumers, releasing the lock now and then, without serving any. The single active one stays, and is
    /// returned: its successor would otherwise be served before its deliveries are back. Also returns whether any consumer
    /// existed.
    fn remove_in_steps(&self, consumers: &[ConsumerId], now: Timestamp) -> (Option<ConsumerId>, bool) {
        let (mut active, mut has_left) = (None, false);
        for step in consumers.chunks(STEP) {
            let mut state = self.state.lock();
            for consumer in step {
                if state.consumers.is_single_active_consumer(*consumer) {
                    active = Some(*consumer);
                } else {
                    has_left |= self.remove_consumer(&mut state, *consumer, now);
                }
            }
        }
        (active, has_left)
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

/// Nanoseconds charged for a returned message.
const RETURN: u32 = 100;

/// Nanoseconds charged for a message that is refused, without its dead letter.
const REFUSAL: u32 = 20;
