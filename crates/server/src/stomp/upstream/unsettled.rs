//! Deliveries that have not been acknowledged upstream. Delivery tags belong to the channel, which all subscriptions share.

use std::collections::BTreeMap;

/// The unacknowledged deliveries of a connection, by delivery tag.
#[derive(Debug, Default)]
pub(super) struct UnsettledDeliveries {
    /// The subscriptions that wait for an ACK, by delivery tag.
    of_clients: BTreeMap<u64, u64>,
    /// Tags, ascending, of deliveries that need no ACK of the client and are to be acknowledged upstream.
    done: Vec<u64>,
}

/// One acknowledgement that is to be sent upstream, for a delivery or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SettledRun {
    pub(super) delivery_tag: u64,
    /// Whether all unacknowledged deliveries before it are meant, too.
    pub(super) multiple: bool,
}

impl UnsettledDeliveries {
    /// A delivery that the client has to acknowledge.
    pub(super) fn add(&mut self, delivery_tag: u64, subscription: u64) {
        self.of_clients.insert(delivery_tag, subscription);
    }

    /// A delivery that needs no ACK.
    pub(super) fn add_done(&mut self, delivery_tag: u64) {
        self.done.push(delivery_tag);
    }

    /// Takes the deliveries of a subscription that an ACK or NACK covers; `None` if it has no such delivery.
    pub(super) fn take(
        &mut self,
        delivery_tag: u64,
        subscription: u64,
        cumulative: bool,
    ) -> Option<Vec<u64>> {
        if self.of_clients.get(&delivery_tag) != Some(&subscription) {
            return None;
        }
        if !cumulative {
            self.of_clients.remove(&delivery_tag);
            return Some(vec![delivery_tag]);
        }
        let covered = self.of_clients.extract_if(..=delivery_tag, |_, of| *of == subscription);
        Some(covered.map(|(tag, _)| tag).collect())
    }

    /// Takes all deliveries of a subscription that ends.
    pub(super) fn take_all(&mut self, subscription: u64) -> Vec<u64> {
        self.of_clients.extract_if(.., |_, of| *of == subscription).map(|(tag, _)| tag).collect()
    }

    /// Returns deliveries that were taken.
    pub(super) fn restore(&mut self, tags: &[u64], subscription: u64) {
        self.of_clients.extend(tags.iter().map(|tag| (*tag, subscription)));
    }

    /// How to settle deliveries that were taken, in ascending order: those before all others at once. `taken` are further
    /// ones that were taken and are not settled yet.
    pub(super) fn runs(&self, tags: &[u64], taken: impl Iterator<Item = u64>) -> Vec<SettledRun> {
        let others =
            [self.of_clients.first_key_value().map(|(tag, _)| *tag), self.done.first().copied(), taken.min()];
        let first_other = others.into_iter().flatten().min().unwrap_or(u64::MAX);
        let before = tags.partition_point(|tag| *tag < first_other);
        let (together, single) = tags.split_at(before);
        let together =
            together.last().map(|last| SettledRun { delivery_tag: *last, multiple: together.len() > 1 });
        let single = single.iter().map(|tag| SettledRun { delivery_tag: *tag, multiple: false });
        together.into_iter().chain(single).collect()
    }

    /// Takes the deliveries that are to be acknowledged without the client.
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
        assert_eq!(all.runs(&[1, 3], std::iter::empty()), [run(1, false), run(3, false)]);
        all.restore(&[1, 3], 7);
        assert_eq!(all.take_all(7), [1, 3, 4]);
        assert_eq!(all.take_all(8), [2]);
    }

    #[test]
    fn what_comes_before_all_others_is_settled_at_once() {
        let mut all = UnsettledDeliveries::default();
        [1, 2, 3, 5].into_iter().for_each(|tag| all.add_done(tag));
        all.add(4, 7);
        let done = all.take_done();
        assert_eq!(all.runs(&done, std::iter::empty()), [run(3, true), run(5, false)]);
        assert_eq!(
            all.runs(&done, [2].into_iter()),
            [run(1, false), run(2, false), run(3, false), run(5, false)]
        );
        assert_eq!(all.take(4, 7, true), Some(vec![4]));
        assert_eq!(all.runs(&[4], std::iter::empty()), [run(4, false)]);
    }
}
