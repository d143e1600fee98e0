//! Positions as ranges: messages are mostly settled in order, so ranges merge.

use std::collections::BTreeMap;

use super::address::Range;

/// A set of positions.
#[derive(Debug, Default, Clone)]
pub(super) struct RangeSet {
    /// First to last position of each range.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds all positions of `range`.
    pub(super) fn insert(&mut self, range: Range) {
        let Range { mut first, mut last } = range;
        let before =
            self.ranges.range(..=last.saturating_add(1)).next_back().map(|(first, last)| (*first, *last));
        let mut touching = before;
        while let Some((other_first, other_last)) = touching {
            if other_last.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&other_first);
            first = first.min(other_first);
            last = last.max(other_last);
            touching = self.ranges.range(..=last).next_back().map(|(first, last)| (*first, *last));
        }
        self.ranges.insert(first, last);
    }

    pub(super) fn contains(&self, position: u64) -> bool {
        self.ranges.range(..=position).next_back().is_some_and(|(_, last)| *last >= position)
    }

    /// The ranges, ascending, with gaps between them.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range> {
        self.ranges.iter().map(|(&first, &last)| Range { first, last })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_range_set_agrees_with_a_set(ranges in prop::collection::vec((0u64..200, 0u64..20), 0..60)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (first, more) in ranges {
                set.insert(Range { first, last: first + more });
                model.extend(first..=first + more);
            }
            let found: Vec<_> = set.iter().flat_map(|range| range.first..=range.last).collect();
            prop_assert_eq!(found, model.iter().copied().collect::<Vec<_>>());
            prop_assert!((0..250).all(|position| set.contains(position) == model.contains(&position)));
            let ranges: Vec<_> = set.iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].last + 1 < pair[1].first));
        }
    }
}
