//! The confirms of a channel's published messages.

use std::collections::VecDeque;

/// The confirms of one channel, whose messages are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct PublisherConfirms {
    /// Number of messages before `waiting`, all of which are confirmed or refused.
    settled: u64,
    /// The later messages, each with its confirm if it has one.
    waiting: VecDeque<Option<Confirmed>>,
}

/// The broker's confirm of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    Acked,
    /// A queue was full, or failed.
    Nacked,
}

impl PublisherConfirms {
    /// Called for each message that is published; returns its number.
    pub(crate) fn published(&mut self) -> u64 {
        self.waiting.push_back(None);
        self.last()
    }

    /// Handles basic.ack or basic.nack, and passes the messages that are now settled without a gap to `each`, in order.
    pub(crate) fn settle(
        &mut self,
        number: u64,
        multiple: bool,
        verdict: Confirmed,
        mut each: impl FnMut(u64, Confirmed),
    ) {
        let last = self.last();
        let number = if multiple && number == 0 { last } else { number };
        if (self.settled + 1..=last).contains(&number) {
            // Fits in a `usize`: at most the number of waiting messages.
            let end = (number - self.settled) as usize;
            let first = if multiple { 0 } else { end - 1 };
            self.waiting.range_mut(first..end).for_each(|of| _ = of.get_or_insert(verdict));
        }
        while let Some(Some(verdict)) = self.waiting.front().copied() {
            self.waiting.pop_front();
            self.settled += 1;
            each(self.settled, verdict);
        }
    }

    /// Number of the last published message.
    pub(crate) fn last(&self) -> u64 {
        self.settled + self.waiting.len() as u64
    }

    /// The confirms so far of messages that have not been reported, in order.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = Option<Confirmed>> {
        self.waiting.iter().copied()
    }

    /// Number up to which all messages are settled.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::Confirmed::{Acked, Nacked};
    use super::*;

    #[test]
    fn messages_are_reported_in_their_order_however_they_are_confirmed() {
        let mut confirms = PublisherConfirms::default();
        assert_eq!([(), (), (), (), ()].map(|()| confirms.published()), [1, 2, 3, 4, 5]);
        let mut reported = Vec::new();
        let mut settle = |number, multiple, verdict| {
            confirms.settle(number, multiple, verdict, |number, verdict| reported.push((number, verdict)));
            std::mem::take(&mut reported)
        };
        assert_eq!(settle(3, false, Nacked), []);
        assert_eq!(settle(1, false, Acked), [(1, Acked)]);
        assert_eq!(settle(4, true, Acked), [(2, Acked), (3, Nacked), (4, Acked)]);
        assert_eq!(settle(4, true, Acked), [], "confirmed before");
        assert_eq!(settle(9, true, Acked), [], "was never published");
        assert_eq!(settle(5, false, Acked), [(5, Acked)]);
        assert_eq!(confirms.settled(), confirms.last());
        assert_eq!((confirms.published(), confirms.settled()), (6, 5));
    }

    #[test]
    fn zero_and_multiple_mean_all() {
        let mut confirms = PublisherConfirms::default();
        confirms.published();
        confirms.published();
        let mut settled = 0;
        confirms.settle(0, true, Acked, |number, _| settled = number);
        assert_eq!(settled, 2);
    }
}
