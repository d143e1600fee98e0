//! Settles deliveries with their queues, over as many turns as that takes.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Requeue, Returned, Timestamp};
use hashbrown::HashMap;
use sync::work;

use super::departure::by_queue;
use super::inner::UsedCredit;
use super::{Deliveries, Unsettled};

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

    /// Whether the queue is to have the deliveries back before their credit is given back: a consumer with some credit left
    /// would otherwise get newer messages before them.
    pub(super) fn keeps_credit(self) -> bool {
        matches!(self, Self::Requeue(_))
    }

    /// Settles deliveries of a channel with their queues, and [resumes](Deliveries::resume) its consumers. Returns the rest of
    /// very many, for which the turn was not enough.
    #[must_use]
    pub(crate) fn apply(
        self,
        deliveries: &Arc<Deliveries>,
        unsettled: Vec<(u64, Unsettled)>,
        now: Timestamp,
    ) -> Option<Settlement> {
        let used = if self.keeps_credit() { UsedCredit::by(&unsettled) } else { UsedCredit::default() };
        if unsettled.len() <= AT_ONCE {
            self.apply_all(unsettled, now);
            deliveries.give_back(&used);
            deliveries.resume(now);
            return None;
        }
        Settlement::new(self, deliveries, unsettled, used).proceed(now)
    }

    /// Settles deliveries. Requeues use one call per queue, which delivers messages again only once it has all of them;
    /// other settlements use one call per run of deliveries of the same queue.
    pub(crate) fn apply_all(self, unsettled: Vec<(u64, Unsettled)>, now: Timestamp) {
        // Charged in advance, so that a long settlement ends the turn. One settlement is included in its frame's cost.
        work::charge(SETTLEMENT, unsettled.len().saturating_sub(1));
        match self {
            Self::Ack => acknowledge(unsettled, now),
            Self::Requeue(returned) => {
                let by_queue = by_queue(unsettled.into_iter().map(|(_, entry)| entry));
                by_queue.into_iter().for_each(|(queue, back)| queue.requeue(back, returned, now));
            }
            Self::Reject(returned) => {
                let by_queue = by_queue(unsettled.into_iter().map(|(_, entry)| entry));
                by_queue.into_iter().for_each(|(queue, refused)| queue.reject(refused, returned, now));
            }
        }
    }
}

/// A settlement that takes more than a turn.
pub(crate) struct Settlement {
    how: DeliverySettlement,
    /// Those of the channel.
    deliveries: Arc<Deliveries>,
    /// The credit to be given back at the end.
    used: UsedCredit,
    rest: std::vec::IntoIter<(u64, Unsettled)>,
    /// Deliveries to requeue, by queue: each queue gets all of them at once.
    requeues: VecDeque<Requeue>,
    /// Indices in `requeues`, by queue id.
    by_id: HashMap<u64, usize>,
}

impl Settlement {
    fn new(
        how: DeliverySettlement,
        deliveries: &Arc<Deliveries>,
        unsettled: Vec<(u64, Unsettled)>,
        used: UsedCredit,
    ) -> Self {
        Self {
            how,
            deliveries: Arc::clone(deliveries),
            used,
            rest: unsettled.into_iter(),
            requeues: VecDeque::new(),
            by_id: HashMap::new(),
        }
    }

    /// Settles deliveries until the turn is over; returns the rest. After the last it gives back credit, and
    /// [resumes](Deliveries::resume) the channel's consumers.
    #[must_use]
    pub(crate) fn proceed(mut self, now: Timestamp) -> Option<Self> {
        self.settle_some(now);
        if self.rest.len() > 0 || !self.requeues.is_empty() {
            return Some(self);
        }
        self.deliveries.give_back(&self.used);
        self.deliveries.resume(now);
        None
    }

    fn settle_some(&mut self, now: Timestamp) {
        while self.rest.len() > 0 {
            let most = self.rest.len();
            let step: Vec<_> = self.rest.by_ref().take(AT_ONCE).collect();
            match self.how {
                DeliverySettlement::Requeue(returned) => self.prepare(step, returned, most),
                how => how.apply_all(step, now),
            }
            if work::is_turn_over() {
                return;
            }
        }
        while let Some(requeue) = self.requeues.pop_front() {
            requeue.finish(now);
            if work::is_turn_over() {
                return;
            }
        }
    }

    fn prepare(&mut self, step: Vec<(u64, Unsettled)>, returned: Returned, most: usize) {
        work::charge(SETTLEMENT, step.len());
        for (queue, deliveries) in by_queue(step.into_iter().map(|(_, entry)| entry)) {
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
pub(super) const AT_ONCE: usize = 128;

/// Nanoseconds charged for a settlement that its frame's cost does not include: one of several by one method, or one in a
/// transaction.
pub(crate) const SETTLEMENT: u32 = 200;
