//! Tracks which messages of one producer have arrived, to detect losses and duplicates.
//!
//! Sequence numbers arrive almost in order. A window of bits tracks the newest ones; complete words leave it, and
//! incomplete words that fall behind it are stored separately, so memory grows with losses, not with messages.

use std::collections::{BTreeMap, VecDeque};

/// Words of 64 messages in the window: messages may be 16 million apart before their words are stored separately.
const WINDOW_WORDS: usize = 1 << 18;
/// Incomplete words stored separately, about 40 MiB. Beyond that the oldest gaps count as lost permanently.
const MAX_GAP_WORDS: usize = 1 << 20;

/// Arrivals of one producer's messages, numbered from 0.
#[derive(Debug, Default)]
pub(crate) struct DeliveryTracker {
    /// Word number of the window's front.
    base: u64,
    window: VecDeque<u64>,
    gaps: BTreeMap<u64, u64>,
    /// Distinct messages that arrived.
    received: u64,
    duplicated: u64,
    max_gaps: Option<usize>,
}

impl DeliveryTracker {
    /// Notes the arrival of `count` messages from `first` on.
    pub(crate) fn arrived(&mut self, first: u64, count: u64) {
        let (mut at, end) = (first, first + count);
        while at < end {
            let bit = at % 64;
            let take = (64 - bit).min(end - at);
            let mask = if take == 64 { u64::MAX } else { ((1 << take) - 1) << bit };
            self.mark(at / 64, mask);
            at += take;
        }
        self.retire();
    }

    /// Distinct messages that arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Arrivals beyond each message's first.
    pub(crate) fn duplicated(&self) -> u64 {
        self.duplicated
    }

    fn mark(&mut self, word: u64, mask: u64) {
        let slot = if word < self.base {
            match self.gaps.get_mut(&word) {
                Some(slot) => slot,
                None => {
                    self.duplicated += u64::from(mask.count_ones());
                    return;
                }
            }
        } else {
            let index = (word - self.base) as usize;
            // A number far ahead of the window (a broker that lost millions, or garbage) moves the window.
            if index >= 2 * WINDOW_WORDS {
                self.jump_to(word);
                return self.mark(word, mask);
            }
            if index >= self.window.len() {
                self.window.resize(index + 1, 0);
            }
            &mut self.window[index]
        };
        let again = *slot & mask;
        self.duplicated += u64::from(again.count_ones());
        self.received += u64::from((mask & !again).count_ones());
        *slot |= mask;
        if *slot == u64::MAX && word < self.base {
            self.gaps.remove(&word);
        }
    }

    /// Drops complete words, and stores incomplete ones that fell behind separately.
    fn retire(&mut self) {
        while let Some(&front) = self.window.front() {
            if front != u64::MAX && self.window.len() <= WINDOW_WORDS {
                return;
            }
            self.retire_front(front);
        }
    }

    fn retire_front(&mut self, front: u64) {
        self.window.pop_front();
        if front != u64::MAX {
            self.keep_gap(self.base, front);
        }
        self.base += 1;
    }

    fn jump_to(&mut self, word: u64) {
        while let Some(&front) = self.window.front() {
            self.retire_front(front);
        }
        let limit = self.max_gaps.unwrap_or(MAX_GAP_WORDS) as u64;
        for empty in self.base.max(word.saturating_sub(limit))..word {
            self.keep_gap(empty, 0);
        }
        self.base = word;
    }

    fn keep_gap(&mut self, word: u64, bits: u64) {
        self.gaps.insert(word, bits);
        if self.gaps.len() > self.max_gaps.unwrap_or(MAX_GAP_WORDS) {
            self.gaps.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(tracker: &DeliveryTracker) -> (u64, u64) {
        (tracker.received(), tracker.duplicated())
    }

    #[test]
    fn messages_in_order_leave_nothing_behind() {
        let mut tracker = DeliveryTracker::default();
        for batch in 0..1000 {
            tracker.arrived(batch * 77, 77);
        }
        assert_eq!(counts(&tracker), (77_000, 0));
        assert!(tracker.window.len() <= 1 && tracker.gaps.is_empty());
    }

    #[test]
    fn repeats_are_counted_wherever_they_fall() {
        let mut tracker = DeliveryTracker::default();
        tracker.arrived(0, 1000);
        tracker.arrived(990, 20); // ten are old
        tracker.arrived(3, 1); // long retired
        tracker.arrived(2000, 1);
        tracker.arrived(2000, 1); // still in the window
        assert_eq!(counts(&tracker), (1011, 12));
    }

    #[test]
    fn interleaved_consumers_are_no_loss() {
        let mut tracker = DeliveryTracker::default();
        for n in 0..10_000 {
            tracker.arrived(n * 2 + 1, 1);
            tracker.arrived(n * 2, 1);
        }
        assert_eq!(counts(&tracker), (20_000, 0));
        assert!(tracker.window.len() <= 1);
    }

    #[test]
    fn a_message_millions_late_is_neither_lost_nor_a_duplicate() {
        let mut tracker = DeliveryTracker::default();
        let n = WINDOW_WORDS as u64 * 64 * 2;
        tracker.arrived(1, n);
        assert_eq!(tracker.gaps.len(), 1);
        tracker.arrived(0, 1);
        tracker.arrived(0, 1);
        assert_eq!(counts(&tracker), (n + 1, 1));
        assert!(tracker.gaps.is_empty());
    }

    #[test]
    fn a_jump_far_ahead_keeps_the_skipped_messages_open() {
        let mut tracker = DeliveryTracker::default();
        tracker.arrived(5, 1);
        let far = WINDOW_WORDS as u64 * 64 * 3;
        tracker.arrived(far, 1);
        tracker.arrived(6, 1);
        tracker.arrived(1000, 1);
        assert_eq!(counts(&tracker), (4, 0));
    }

    #[test]
    fn memory_for_gaps_is_bounded() {
        let mut tracker = DeliveryTracker { max_gaps: Some(10), ..DeliveryTracker::default() };
        tracker.arrived(u64::MAX >> 24, 1);
        assert_eq!(tracker.gaps.len(), 10);
        assert_eq!(counts(&tracker), (1, 0));
    }
}
