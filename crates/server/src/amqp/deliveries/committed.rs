//! The settlements of a transaction that is being committed, which take as many turns as they need.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Lsn, Store, Timestamp};
use sync::work;

use super::{Deliveries, DeliverySettlement, SETTLEMENT, Settlement, Unsettled};

/// Deliveries that a client has settled in a transaction. Until commit they count against its prefetch.
pub(crate) struct HeldSettlement {
    pub(crate) how: DeliverySettlement,
    /// The deliveries that these were [held](Deliveries::hold) from.
    pub(crate) deliveries: Arc<Deliveries>,
    pub(crate) unsettled: Vec<(u64, Unsettled)>,
}

/// The settlements of a transaction whose commit has begun.
pub(crate) struct CommittedSettlements<S> {
    /// Those which have not been carried out yet.
    remaining: VecDeque<S>,
    /// The rest of one for which a turn was not enough.
    settling: Option<Settlement>,
    /// Whether there were any at commit.
    any: bool,
}

impl<S: Into<HeldSettlement>> CommittedSettlements<S> {
    pub(crate) fn new(settlements: Vec<S>) -> Self {
        Self { any: !settlements.is_empty(), remaining: settlements.into(), settling: None }
    }

    /// Carries settlements out until the turn is over; returns whether all are done.
    pub(crate) fn proceed(&mut self, now: Timestamp) -> bool {
        loop {
            self.settling = if let Some(settling) = self.settling.take() {
                settling.proceed(now)
            } else {
                let Some(next) = self.remaining.pop_front() else { return true };
                let HeldSettlement { how, deliveries, unsettled } = next.into();
                deliveries.release(&unsettled, how, now);
                work::charge(SETTLEMENT, 1);
                how.apply(&deliveries, unsettled, now)
            };
            if work::is_turn_over() {
                return self.settling.is_none() && self.remaining.is_empty();
            }
        }
    }

    /// The log position to wait for until settlements that are done are on disk; `None` if there were none.
    pub(crate) fn until(&self, store: Option<&Arc<Store>>) -> Option<Lsn> {
        store.filter(|_| self.any).map(|store| store.end())
    }

    /// Takes out the deliveries of a commit that has failed before the first settlement.
    pub(crate) fn take_unsettled(&mut self) -> impl Iterator<Item = Vec<(u64, Unsettled)>> {
        self.remaining.drain(..).map(|held| held.into().unsettled)
    }
}
