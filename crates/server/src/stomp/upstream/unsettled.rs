//! Deliveries that have not been settled upstream. Delivery tags are the channel's, which all subscriptions share.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use sync::work;

/// Nanoseconds charged for settling a delivery, which is looked up in the sets.
const SETTLE: u32 = 150;

/// The unsettled deliveries of a connection, by delivery tag.
#[derive(Debug, Default)]
pub(super) struct UnsettledDeliveries {
    /// Deliveries that the client has to acknowledge, by subscription.
    of_clients: HashMap<u64, BTreeSet<u64>>,
    /// All deliveries unacknowledged upstream, including those whose settlement a transaction keeps.
    outstanding: BTreeSet<u64>,
    /// Tags, ascending, of deliveries that the client does not have to acknowledge, to be acknowledged upstream.
    done: Vec<u64>,
}

/// One acknowledgement to send upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SettledRun {
    pub(super) delivery_tag: u64,
    /// Whether it includes all earlier unacknowledged deliveries.
    pub(super) multiple: bool,
}

impl UnsettledDeliveries {
    /// Adds a delivery that the client has to acknowledge.
    pub(super) fn add(&mut self, delivery_tag: u64, subscription: u64) {
        self.outstanding.insert(delivery_tag);
        self.of_clients.entry(subscription).or_default().insert(delivery_tag);
    }

    /// Adds a delivery that the client does not have to acknowledge.
    pub(super) fn add_done(&mut self, delivery_tag: u64) {
        self.outstanding.insert(delivery_tag);
        self.done.push(delivery_tag);
    }

    /// Takes the deliveries of a subscription that an ACK or NACK covers; `None` if it has no such delivery.
    pub(super) fn take(
        &mut self,
        delivery_tag: u64,
        subscription: u64,
        cumulative: bool,
    ) -> Option<Vec<u64>> {
        let own = self.of_clients.get_mut(&subscription).filter(|own| own.contains(&delivery_tag))?;
        if !cumulative {
            own.remove(&delivery_tag);
            return Some(vec![delivery_tag]);
        }
        let later = own.split_off(&(delivery_tag + 1));
        Some(std::mem::replace(own, later).into_iter().collect())
    }

    /// Takes all deliveries of a subscription that ends.
    pub(super) fn take_all(&mut self, subscription: u64) -> Vec<u64> {
        self.of_clients.remove(&subscription).into_iter().flatten().collect()
    }

    /// Puts back deliveries that were taken.
    pub(super) fn restore(&mut self, tags: &[u64], subscription: u64) {
        self.of_clients.entry(subscription).or_default().extend(tags);
    }

    /// Settles deliveries that were taken, in ascending order. Returns the acknowledgements to send: one `multiple` for
    /// those before all other outstanding deliveries, and one for each of the rest.
    pub(super) fn settle(&mut self, tags: &[u64]) -> Vec<SettledRun> {
        work::charge(SETTLE, tags.len());
        tags.iter().for_each(|tag| _ = self.outstanding.remove(tag));
        let first_other = self.outstanding.first().copied().unwrap_or(u64::MAX);
        let before = tags.partition_point(|tag| *tag < first_other);
        let (begin_ordered_round, single) = tags.split_at(before);
        let begin_ordered_round = begin_ordered_round
            .last()
            .map(|last| SettledRun { delivery_tag: *last, multiple: begin_ordered_round.len() > 1 });
        let single = single.iter().map(|tag| SettledRun { delivery_tag: *tag, multiple: false });
        begin_ordered_round.into_iter().chain(single).collect()
    }

    /// Takes the deliveries that are acknowledged without the client.
    pub(super) fn take_done(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(delivery_tag: u64, multiple: bool) -> SettledRun {
        SettledRun { delivery_tag, multiple }
    }

    #[test]
    fn an_acknowledgement_of_all_before_it_is_about_one_subscription() {
        let mut all = UnsettledDeliveries::default();
        [(1, 7), (2, 8), (3, 7), (4, 7)].into_iter().for_each(|(tag, of)| all.add(tag, of));
        assert_eq!(all.take(2, 7, true), None, "another subscription's");
        assert_eq!(all.take(3, 7, true), Some(vec![1, 3]));
        assert_eq!(all.take(3, 7, false), None, "settled before");
        all.restore(&[1, 3], 7);
        assert_eq!(all.take(3, 7, true), Some(vec![1, 3]));
        assert_eq!(all.settle(&[1, 3]), [run(1, false), run(3, false)]);
        assert_eq!(all.take_all(7), [4]);
        assert_eq!(all.take_all(8), [2]);
        assert_eq!(all.settle(&[2, 4]), [run(4, true)]);
    }

    #[test]
    fn leading_deliveries_are_settled_together_unless_a_transaction_holds_one() {
        let mut all = UnsettledDeliveries::default();
        [1, 2, 3, 5].into_iter().for_each(|tag| all.add_done(tag));
        all.add(4, 7);
        assert_eq!(all.take(4, 7, false), Some(vec![4]), "held");
        let done = all.take_done();
        assert_eq!(all.settle(&done), [run(3, true), run(5, false)]);
        [6, 7].into_iter().for_each(|tag| all.add_done(tag));
        let done = all.take_done();
        assert_eq!(all.settle(&done), [run(6, false), run(7, false)]);
        assert_eq!(all.settle(&[4]), [run(4, false)]);
        all.add_done(8);
        all.add_done(9);
        let done = all.take_done();
        assert_eq!(all.settle(&done), [run(9, true)]);
    }
}
