//! Changes to a queue's stored messages that are not written yet.

use smallvec::SmallVec;
use store::StoredQueue;
use store::journal::{Lsn, Range};

/// Positions of messages that have left a queue or were delivered.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    settled: Ranges,
    /// Grouped by the number of deliveries so far, which is usually the same for all.
    delivered: SmallVec<[(u32, Ranges); 1]>,
}

type Ranges = SmallVec<[Range; 2]>;

impl Marks {
    /// Records that the message has left the queue permanently.
    pub(crate) fn settled(&mut self, position: u64) {
        add(&mut self.settled, position);
    }

    /// Records that all messages from the first to the last position have left the queue permanently.
    pub(crate) fn settled_range(&mut self, first: u64, last: u64) {
        self.settled.push(Range { first, last });
    }

    /// Records that the message has been delivered `count` times so far.
    pub(crate) fn delivered(&mut self, position: u64, count: u32) {
        match self.delivered.iter_mut().find(|(other, _)| *other == count) {
            Some((_, ranges)) => add(ranges, position),
            None => self.delivered.push((count, SmallVec::from_slice(&[Range::one(position)]))),
        }
    }

    /// Writes the records to the log. If messages have left, returns the position to wait for.
    pub(crate) fn write(&self, stored: &StoredQueue) -> Option<Lsn> {
        for (count, ranges) in &self.delivered {
            stored.delivered(ranges, *count);
        }
        (!self.settled.is_empty()).then(|| stored.settle(&self.settled))
    }
}

fn add(ranges: &mut Ranges, position: u64) {
    match ranges.last_mut() {
        Some(last) if last.last + 1 == position => last.last = position,
        _ => ranges.push(Range::one(position)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let mut marks = Marks::default();
        [3, 4, 5, 9, 8].into_iter().for_each(|position| marks.settled(position));
        let range = |first, last| Range { first, last };
        assert_eq!(marks.settled[..], [range(3, 5), range(9, 9), range(8, 8)]);
        [(1, 1), (2, 1), (3, 2), (4, 1)].into_iter().for_each(|(at, count)| marks.delivered(at, count));
        assert_eq!(marks.delivered[0], (1, Ranges::from_slice(&[range(1, 2), range(4, 4)])));
        assert_eq!(marks.delivered[1], (2, Ranges::from_slice(&[range(3, 3)])));
    }
}
