//! Publisher confirms: the outcome of each publish, and when it may be sent.
//!
//! Confirms are sent in the order of publishing, so that `multiple` needs no lower end. Confirms of messages
//! that have to be on disk wait, and all later ones wait behind them; any other is written at once.

use std::collections::VecDeque;

use broker::{Flushed, Lsn};

/// The confirms of one channel.
#[derive(Debug, Default)]
pub(super) struct ChannelConfirms {
    /// Number of publishes, including those that have not been flushed to their queues.
    published: u64,
    /// Sequence number of the last flushed publish.
    last: u64,
    /// Sequence number of the last publish whose confirm was written.
    confirmed: u64,
    /// The waiting confirms, in order.
    waiting: VecDeque<WaitingConfirm>,
}

/// A run of publishes with the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) last: u64,
    /// Whether the publishes are nacked.
    pub(super) refused: bool,
}

#[derive(Debug)]
struct WaitingConfirm {
    run: Run,
    until: Lsn,
}

impl ChannelConfirms {
    /// Counts a publish, before it is flushed.
    pub(super) fn count_publish(&mut self) {
        self.published += 1;
    }

    /// The number of publishes whose confirm has not been written yet.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.published - self.confirmed
    }

    /// Adds flushed publishes. Confirms that need not wait, and follow none that wait, are passed to `write`.
    pub(super) fn add(&mut self, flushed: &Flushed, mut write: impl FnMut(Run)) {
        let first = self.last + 1;
        self.last += flushed.count;
        let until = flushed.until.max(self.until());
        runs(first, flushed, |run| match until {
            None => {
                self.confirmed = run.last;
                write(run);
            }
            Some(until) => self.wait(run, until),
        });
    }

    /// The log position that the last waiting confirm waits for.
    pub(super) fn until(&self) -> Option<Lsn> {
        self.waiting.back().map(|waiting| waiting.until)
    }

    /// Passes the confirms that are due with the log on disk up to `durable` to `write`, in runs as long as possible.
    pub(super) fn release(&mut self, durable: Lsn, mut write: impl FnMut(Run)) {
        let mut next: Option<Run> = None;
        while let Some(WaitingConfirm { run, .. }) =
            self.waiting.pop_front_if(|waiting| waiting.until <= durable)
        {
            self.confirmed = run.last;
            match &mut next {
                Some(next) if next.refused == run.refused => next.last = run.last,
                _ => {
                    next.into_iter().for_each(&mut write);
                    next = Some(run);
                }
            }
        }
        next.into_iter().for_each(&mut write);
        if self.waiting.is_empty() && self.waiting.capacity() > RETAINED_RUNS {
            self.waiting = VecDeque::new();
        }
    }

    fn wait(&mut self, run: Run, until: Lsn) {
        match self.waiting.back_mut() {
            Some(last) if last.until == until && last.run.refused == run.refused => last.run.last = run.last,
            _ => self.waiting.push_back(WaitingConfirm { run, until }),
        }
    }
}

/// The acks and nacks, in order, in runs as long as possible.
fn runs(first: u64, flushed: &Flushed, mut each: impl FnMut(Run)) {
    let mut refused = flushed.refused.iter().copied().peekable();
    let mut next = 0;
    while next < flushed.count {
        let start = next;
        let is_refused = refused.peek() == Some(&start);
        if is_refused {
            while refused.next_if_eq(&next).is_some() {
                next += 1;
            }
        } else {
            next = refused.peek().copied().unwrap_or(flushed.count);
        }
        each(Run { first: first + start, last: first + next - 1, refused: is_refused });
    }
}

/// Capacity for runs that a channel keeps when nothing waits: enough for the batches of one disk write.
const RETAINED_RUNS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn flushed(count: u64, refused: &[u64], until: Option<u64>) -> Flushed {
        Flushed { count, refused: refused.to_vec(), until: until.map(Lsn), ..Flushed::default() }
    }

    fn ack(first: u64, last: u64) -> Run {
        Run { first, last, refused: false }
    }

    fn nack(first: u64, last: u64) -> Run {
        Run { refused: true, ..ack(first, last) }
    }

    fn add(confirms: &mut ChannelConfirms, flushed: &Flushed) -> Vec<Run> {
        let mut written = Vec::new();
        (0..flushed.count).for_each(|_| confirms.count_publish());
        confirms.add(flushed, |run| written.push(run));
        written
    }

    fn release(confirms: &mut ChannelConfirms, durable: u64) -> Vec<Run> {
        let mut written = Vec::new();
        confirms.release(Lsn(durable), |run| written.push(run));
        written
    }

    #[test]
    fn messages_that_need_no_disk_write_are_confirmed_at_once() {
        let mut confirms = ChannelConfirms::default();
        let written = add(&mut confirms, &flushed(5, &[1, 2], None));
        assert_eq!(written, [ack(1, 1), nack(2, 3), ack(4, 5)]);
        assert_eq!(add(&mut confirms, &flushed(1, &[], None)), [ack(6, 6)]);
        assert_eq!(confirms.until(), None);
    }

    #[test]
    fn confirms_do_not_overtake_waiting_ones() {
        let mut confirms = ChannelConfirms::default();
        assert_eq!(add(&mut confirms, &flushed(2, &[], Some(10))), []);
        assert_eq!(add(&mut confirms, &flushed(1, &[], None)), []);
        assert_eq!(add(&mut confirms, &flushed(1, &[], Some(20))), []);
        assert_eq!(confirms.until(), Some(Lsn(20)));
        assert_eq!(release(&mut confirms, 9), []);
        assert_eq!(release(&mut confirms, 10), [ack(1, 3)]);
        assert_eq!(release(&mut confirms, 30), [ack(4, 4)]);
        assert_eq!(confirms.until(), None);
    }

    #[test]
    fn a_publish_is_unconfirmed_until_its_confirm_is_written() {
        let mut confirms = ChannelConfirms::default();
        confirms.count_publish();
        assert_eq!(confirms.unconfirmed(), 1, "it waits for its queues");
        confirms.add(&flushed(1, &[], None), |_| {});
        assert_eq!(confirms.unconfirmed(), 0);
        add(&mut confirms, &flushed(3, &[1], Some(10)));
        add(&mut confirms, &flushed(2, &[], Some(20)));
        assert_eq!(confirms.unconfirmed(), 5);
        release(&mut confirms, 10);
        assert_eq!(confirms.unconfirmed(), 2);
        release(&mut confirms, 20);
        assert_eq!(confirms.unconfirmed(), 0);
    }

    #[test]
    fn consecutive_acks_are_combined() {
        let mut confirms = ChannelConfirms::default();
        for until in 1..=9 {
            add(&mut confirms, &flushed(10, if until == 5 { &[0] } else { &[] }, Some(until)));
        }
        assert_eq!(release(&mut confirms, 9), [ack(1, 40), nack(41, 41), ack(42, 90)]);
    }
}
