//! The settlement of deliveries with their queues, which takes as many turns as it needs.

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

    /// Settles deliveries with their queues. Returns the rest of very many, for which the turn was not enough.
    #[must_use]
    pub(crate) fn apply(self, unsettled: Vec<(u64, Unsettled)>, now: Timestamp) -> Option<Settlement> {
        if unsettled.len() <= AT_ONCE {
            self.apply_all(unsettled, now);
            return None;
        }
        Settlement::new(self, unsettled).proceed(now)
    }

    /// Settles deliveries: those that return with one call for each queue, which delivers them again only once it has all of
    /// them, and others with one call for each run of deliveries of the same queue.
    pub(crate) fn apply_all(self, unsettled: Vec<(u64, Unsettled)>, now: Timestamp) {
        // Before it is done, so that others are looked after meanwhile if that is long. One is part of its frame's cost.
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

/// Very many deliveries that are being settled in the same way.
pub(crate) struct Settlement {
    how: DeliverySettlement,
    rest: std::vec::IntoIter<(u64, Unsettled)>,
    /// Those that return, by queue: each queue has all of them at once.
    requeues: VecDeque<Requeue>,
    /// Indices in `requeues`, by the queues' ids.
    by_id: HashMap<u64, usize>,
}

impl Settlement {
    fn new(how: DeliverySettlement, unsettled: Vec<(u64, Unsettled)>) -> Self {
        Self { how, rest: unsettled.into_iter(), requeues: VecDeque::new(), by_id: HashMap::new() }
    }

    /// Settles deliveries until the turn is over; returns the rest.
    #[must_use]
    pub(crate) fn proceed(mut self, now: Timestamp) -> Option<Self> {
        while self.rest.len() > 0 {
            let most = self.rest.len();
            let step: Vec<_> = self.rest.by_ref().take(AT_ONCE).collect();
            match self.how {
                DeliverySettlement::Requeue(returned) => self.prepare(step, returned, most),
                how => how.apply_all(step, now),
            }
            if work::is_turn_over() {
                return self.unfinished();
            }
        }
        while let Some(requeue) = self.requeues.pop_front() {
            requeue.finish(now);
            if work::is_turn_over() {
                break;
            }
        }
        self.unfinished()
    }

    fn unfinished(self) -> Option<Self> {
        (self.rest.len() > 0 || !self.requeues.is_empty()).then_some(self)
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

/// Deliveries that are settled in one step.
const AT_ONCE: usize = 128;

/// Nanoseconds charged for a settlement that is no part of its frame's cost: of a delivery that is settled together with
/// others, or of one in a transaction.
pub(crate) const SETTLEMENT: u32 = 200;
