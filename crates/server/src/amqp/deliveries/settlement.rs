//! Settles deliveries with their queues, over as many turns as that takes.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Requeue, Returned, Timestamp};
use hashbrown::HashMap;
use sync::work;

use super::Unsettled;
use super::departure::by_queue;

/// The outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliverySettlement {
    Ack,
    Requeue(Returned),
    Reject(Returned),
}

impl DeliverySettlement {
    pub(crate) fn refusal(requeue: bool, returned: Returned) -> Self {
        if requeue { Self::Requeue(returned) } else { Self::Reject(returned) }
    }

    /// Settles deliveries with their queues. Returns the rest if that takes more than the turn.
    #[must_use]
    pub(crate) fn apply(self, unsettled: Vec<(u64, Unsettled)>, now: Timestamp) -> Option<Settlement> {
        if unsettled.len() <= AT_ONCE {
            self.apply_all(unsettled, now);
            return None;
        }
        let mut settlement = Settlement::new(self, unsettled);
        (!settlement.proceed(now)).then_some(settlement)
    }

    /// Settles deliveries. Requeues use one call per queue, which delivers messages again only once it has all of them;
    /// other settlements use one call per run of deliveries of the same queue.
    pub(crate) fn apply_all(self, unsettled: Vec<(u64, Unsettled)>, now: Timestamp) {
        // Charged in advance, so that a long settlement ends the turn. One settlement is included in its frame's cost.
        work::charge(SETTLEMENT, unsettled.len().saturating_sub(1));
        match self {
            Self::Ack => acknowledge(unsettled, now),
            Self::Requeue(returned) => {
                by_queue(unsettled).for_each(|(queue, back)| queue.requeue(back, returned, now));
            }
            Self::Reject(returned) => {
                by_queue(unsettled).for_each(|(queue, refused)| queue.reject(refused, returned, now));
            }
        }
    }
}

/// A settlement that takes more than a turn.
pub(crate) struct Settlement {
    how: DeliverySettlement,
    rest: std::vec::IntoIter<(u64, Unsettled)>,
    /// Deliveries to requeue, by queue: each queue gets all of them at once.
    requeues: VecDeque<Requeue>,
    /// Indices in `requeues`, by queue id.
    by_id: HashMap<u64, usize>,
}

impl Settlement {
    fn new(how: DeliverySettlement, unsettled: Vec<(u64, Unsettled)>) -> Self {
        Self { how, rest: unsettled.into_iter(), requeues: VecDeque::new(), by_id: HashMap::new() }
    }

    /// Settles deliveries until the turn is over; returns whether all are settled.
    pub(crate) fn proceed(&mut self, now: Timestamp) -> bool {
        while self.rest.len() > 0 {
            let most = self.rest.len();
            let step: Vec<_> = self.rest.by_ref().take(AT_ONCE).collect();
            match self.how {
                DeliverySettlement::Requeue(returned) => self.prepare(step, returned, most),
                how => how.apply_all(step, now),
            }
            if work::is_turn_over() {
                return self.rest.len() == 0 && self.requeues.is_empty();
            }
        }
        while let Some(requeue) = self.requeues.pop_front() {
            requeue.finish(now);
            if work::is_turn_over() {
                return self.requeues.is_empty();
            }
        }
        true
    }

    fn prepare(&mut self, step: Vec<(u64, Unsettled)>, returned: Returned, most: usize) {
        work::charge(SETTLEMENT, step.len());
        for (queue, deliveries) in by_queue(step) {
            let at = *self.by_id.entry(queue.id()).or_insert_with(|| {
                self.requeues.push_back(Requeue::new(&queue, returned, most));
                self.requeues.len() - 1
            });
            self.requeues[at].add(deliveries);
        }
    }
}

fn acknowledge(unsettled: Vec<(u64, Unsettled)>, now: Timestamp) {
    let mut rest = unsettled.into_iter().map(|(_, entry)| entry).peekable();
    while let Some(first) = rest.next() {
        let queue = first.queue;
        let mut run = vec![first.delivery];
        while let Some(entry) = rest.next_if(|entry| Arc::ptr_eq(&entry.queue, &queue)) {
            run.push(entry.delivery);
        }
        queue.ack(run, now);
    }
}

/// Deliveries that are settled before the turn is checked.
const AT_ONCE: usize = 128;

/// Nanoseconds charged for a settlement that its frame's cost does not include: one of several by one method, or one in a
/// transaction.
pub(crate) const SETTLEMENT: u32 = 200;
