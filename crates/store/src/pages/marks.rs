//! Delivery counts of messages that are higher than in their records.

/// Runs of positions with the same delivery count. Messages are mostly delivered in order, so runs are few.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// First, last (inclusive) and count; ascending.
    runs: Vec<(u64, u64, u32)>,
}

impl Marks {
    /// Sets the delivery count of the positions from `from` to `to`, inclusive.
    pub(super) fn set(&mut self, from: u64, to: u64, count: u32) {
        let mut at = self.clear(from, to);
        let (mut from, mut to) = (from, to);
        if at > 0 && self.runs[at - 1].1 + 1 == from && self.runs[at - 1].2 == count {
            at -= 1;
            from = self.runs.remove(at).0;
        }
        if let Some(next) =
            self.runs.get(at).filter(|next| Some(next.0) == to.checked_add(1) && next.2 == count)
        {
            to = next.1;
            self.runs.remove(at);
        }
        self.runs.insert(at, (from, to, count));
    }

    /// Removes the positions from `from` to `to`, inclusive, and returns the index at which a run for them belongs.
    pub(super) fn clear(&mut self, from: u64, to: u64) -> usize {
        let start = self.runs.partition_point(|run| run.1 < from);
        let end = self.runs.partition_point(|run| run.0 <= to);
        if start >= end {
            return start;
        }
        let (first, last) = (self.runs[start], self.runs[end - 1]);
        let left = (first.0 < from).then(|| (first.0, from - 1, first.2));
        let right = (last.1 > to).then(|| (to + 1, last.1, last.2));
        self.runs.splice(start..end, left.into_iter().chain(right));
        start + usize::from(left.is_some())
    }

    pub(super) fn get(&self, position: u64) -> Option<u32> {
        let run = self.runs.get(self.runs.partition_point(|run| run.1 < position))?;
        (run.0 <= position).then_some(run.2)
    }

    pub(super) fn runs(&self) -> &[(u64, u64, u32)] {
        &self.runs
    }

    pub(super) fn memory(&self) -> usize {
        self.runs.capacity() * size_of::<(u64, u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_count_set_is_read(
            steps in prop::collection::vec((0_u64..60, 0_u64..10, prop::option::of(1_u32..4)), 0..60),
        ) {
            let (mut marks, mut model) = (Marks::default(), BTreeMap::new());
            for (from, width, count) in steps {
                match count {
                    Some(count) => marks.set(from, from + width, count),
                    None => { marks.clear(from, from + width); }
                }
                for position in from..=from + width {
                    match count {
                        Some(count) => { model.insert(position, count); }
                        None => { model.remove(&position); }
                    }
                }
            }
            for position in 0..75 {
                prop_assert_eq!(marks.get(position), model.get(&position).copied());
            }
            prop_assert!(marks.runs().windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }

    #[test]
    fn deliveries_in_order_are_one_run() {
        let mut marks = Marks::default();
        (0..1000).for_each(|position| marks.set(position, position, 1));
        assert_eq!(marks.runs(), [(0, 999, 1)]);
    }
}
