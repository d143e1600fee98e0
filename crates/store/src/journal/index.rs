//! Index of a queue's messages in the journal: sixteen bytes for each.

use std::collections::VecDeque;

use super::address::{Entry, MAX_POSITION, MessageRef, Range};

/// The messages of a queue whose only copy is in the journal, in order of their positions.
#[derive(Debug, Default)]
pub(super) struct JournalIndex {
    slots: VecDeque<Slot>,
    /// Number of settled slots not yet removed.
    settled: usize,
    /// Position and expiry time of the messages that expire, in order of position; most queues have none. Boxed, since
    /// there may be very many idle queues.
    #[expect(clippy::box_collection, reason = "most queues never have any")]
    expiries: Option<Box<VecDeque<(u64, u64)>>>,
}

/// A message that the journal holds for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveMessage {
    /// Its position in the queue.
    pub position: u64,
    /// Its position in the log.
    pub message: MessageRef,
    /// When it expires, in milliseconds since 1970; 0 for never.
    pub expires: u64,
    /// Number of deliveries recorded in the journal, up to 4095.
    pub deliveries: u32,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The position in the lower bits, the delivery count above it.
    key: u64,
    /// 0 once settled.
    message: u64,
}

impl Slot {
    fn position(self) -> u64 {
        self.key % MAX_POSITION
    }

    fn deliveries(self) -> u32 {
        (self.key / MAX_POSITION) as u32
    }
}

impl JournalIndex {
    /// Adds a message. A position that is not above all others is inserted in order, or ignored if it is taken.
    pub(super) fn push(&mut self, entry: &Entry) -> bool {
        let slot = Slot { key: entry.position, message: entry.message.to_u64() };
        let at = match self.slots.back() {
            Some(last) if last.position() >= entry.position => match self.find(entry.position) {
                Ok(_) => return false,
                Err(at) => at,
            },
            _ => self.slots.len(),
        };
        if at == self.slots.len() {
            self.slots.push_back(slot)
        } else {
            self.slots.insert(at, slot)
        }
        if entry.expires != 0 {
            let expiries = self.expiries.get_or_insert_default();
            let at = expiries.partition_point(|(position, _)| *position < entry.position);
            expiries.insert(at, (entry.position, entry.expires));
        }
        true
    }

    /// Settles positions, and calls `each` with the messages among them.
    pub(super) fn settle(&mut self, range: Range, mut each: impl FnMut(MessageRef)) {
        let from = match self.slots.front() {
            None => return,
            Some(first) if first.position() >= range.first => 0,
            Some(_) => self.find(range.first).unwrap_or_else(|at| at),
        };
        for slot in self.slots.range_mut(from..) {
            if slot.position() > range.last {
                break;
            }
            if slot.message != 0 {
                each(MessageRef::from_u64(slot.message));
                slot.message = 0;
                self.settled += 1;
            }
        }
        self.compact();
    }

    /// Raises delivery counts to `count`.
    pub(super) fn delivered(&mut self, range: Range, count: u32) {
        let from = self.find(range.first).unwrap_or_else(|at| at);
        for slot in self.slots.range_mut(from..) {
            if slot.position() > range.last {
                break;
            }
            let count = slot.deliveries().max(count.min(MAX_DELIVERIES));
            slot.key = slot.position() + u64::from(count) * MAX_POSITION;
        }
    }

    /// The message at a position.
    pub(super) fn get(&self, position: u64) -> Option<LiveMessage> {
        let slot = self.slots[self.find(position).ok()?];
        self.live(slot)
    }

    /// Live messages from a position on, in order.
    pub(super) fn from(&self, position: u64) -> impl Iterator<Item = LiveMessage> {
        let from = self.find(position).unwrap_or_else(|at| at);
        self.slots.range(from..).filter_map(|slot| self.live(*slot))
    }

    /// How many messages there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.settled
    }

    fn live(&self, slot: Slot) -> Option<LiveMessage> {
        let position = slot.position();
        let expires = self.expiries.as_ref().and_then(|expiries| {
            let at = expiries.binary_search_by_key(&position, |(position, _)| *position).ok()?;
            Some(expiries[at].1)
        });
        (slot.message != 0).then(|| LiveMessage {
            position,
            message: MessageRef::from_u64(slot.message),
            expires: expires.unwrap_or(0),
            deliveries: slot.deliveries(),
        })
    }

    fn find(&self, position: u64) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&position, |slot| slot.position())
    }

    /// Removes settled slots: at the front at once, elsewhere when they are half of all.
    fn compact(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.message == 0) {
            self.slots.pop_front();
            self.settled -= 1;
        }
        if self.settled > MIN_COMPACTED && self.settled > self.slots.len() / 2 {
            self.slots.retain(|slot| slot.message != 0);
            self.settled = 0;
            self.compact_expiries();
        }
        let first = self.slots.front().map_or(u64::MAX, |slot| slot.position());
        if let Some(expiries) = &mut self.expiries {
            while expiries.front().is_some_and(|(position, _)| *position < first) {
                expiries.pop_front();
            }
            if expiries.is_empty() && expiries.capacity() > RETAINED_EXPIRIES {
                self.expiries = None;
            }
        }
        if self.slots.is_empty() && self.slots.capacity() > RETAINED_CAPACITY {
            self.slots.shrink_to(RETAINED_CAPACITY);
        }
    }

    /// Removes the expiry times of messages that are gone, which would otherwise pile up behind a message that stays at the
    /// front.
    fn compact_expiries(&mut self) {
        let Some(expiries) = &mut self.expiries else { return };
        let mut left = self.slots.iter().map(|slot| slot.position()).peekable();
        expiries.retain(|(position, _)| {
            while left.next_if(|left| left < position).is_some() {}
            left.peek() == Some(position)
        });
    }
}

/// Delivery counts saturate here: they have twelve bits.
const MAX_DELIVERIES: u32 = 4095;
/// With fewer settled slots than this, moving the live ones is not worthwhile.
const MIN_COMPACTED: usize = 64;
/// Number of slots whose memory an empty queue retains, 64 KiB.
const RETAINED_CAPACITY: usize = 4096;
/// Number of expiry times whose memory a queue without any retains, 1 KiB.
const RETAINED_EXPIRIES: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entry(position: u64) -> Entry {
        let expires = if position.is_multiple_of(3) { position + 5 } else { 0 };
        Entry { position, message: MessageRef::from_u64(position + 1), expires, last: true }
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_an_ordered_map(steps in prop::collection::vec((0u8..4, 0u64..400, 0u64..300), 0..300)) {
            let (mut index, mut model, mut next) = (JournalIndex::default(), BTreeMap::new(), 0);
            for (what, at, more) in steps {
                let range = Range { first: at, last: at + more };
                match what {
                    0 | 1 => for _ in 0..more % 50 {
                        index.push(&entry(next));
                        model.insert(next, 0);
                        next += 1 + at % 2;
                    },
                    2 => {
                        let mut settled = Vec::new();
                        index.settle(range, |message| settled.push(message.to_u64() - 1));
                        let expected: Vec<_> = model.range(at..=range.last).map(|(position, _)| *position).collect();
                        model.retain(|position, _| !(at..=range.last).contains(position));
                        prop_assert_eq!(settled, expected);
                    }
                    _ => {
                        index.delivered(range, more as u32 % 7);
                        for (_, count) in model.range_mut(at..=range.last) {
                            *count = (more as u32 % 7).max(*count);
                        }
                    }
                }
            }
            let live: Vec<_> = index.from(0).map(|live| (live.position, live.deliveries)).collect();
            prop_assert_eq!(&live, &model.iter().map(|(position, count)| (*position, *count)).collect::<Vec<_>>());
            prop_assert_eq!(index.len(), live.len());
            for (position, _) in live {
                let found = index.get(position).unwrap();
                prop_assert_eq!((found.expires, found.message), (entry(position).expires, entry(position).message));
            }
        }
    }

    #[test]
    fn a_message_that_stays_in_front_retains_no_expiry_times_of_removed_ones() {
        let mut index = JournalIndex::default();
        index.push(&entry(0));
        for position in 1..100_000 {
            index.push(&entry(position));
            index.settle(Range { first: position, last: position }, |_| ());
        }
        assert!(index.slots.len() <= 2 * MIN_COMPACTED);
        assert!(index.expiries.as_ref().unwrap().len() <= 2 * MIN_COMPACTED);
        index.settle(Range { first: 0, last: 0 }, |_| ());
        assert_eq!(index.len(), 0);
        assert!(index.expiries.is_none_or(|expiries| expiries.capacity() <= RETAINED_EXPIRIES));
    }
}
