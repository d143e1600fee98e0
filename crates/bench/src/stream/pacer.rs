//! Decides when messages are due. Time is an argument: nanoseconds since the round began.
//!
//! At a fixed rate every message has its time, whether the system under test keeps up or not. A message that
//! could not be sent then carries the time that it was *due*, so that a stall counts against every message
//! that it delayed, not only against the one that was caught in it (coordinated omission).

use super::schedule::Schedule;

/// The times at which one producer's messages are due.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// `None` means as fast as possible.
    schedule: Option<Schedule>,
    start: u64,
    issued: u64,
}

impl Pacer {
    /// Follows a schedule from `start` on; `None` means as fast as possible.
    pub(crate) fn new(schedule: Option<Schedule>, start: u64) -> Self {
        Self { schedule, start, issued: 0 }
    }

    /// Fills `stamps` with the times of the messages to send at `now`, at most `limit`, and removes them from the schedule.
    #[inline]
    pub(crate) fn take_due(&mut self, now: u64, limit: usize, stamps: &mut Vec<u64>) {
        stamps.clear();
        match self.schedule {
            None => stamps.resize(limit, now),
            Some(_) => {
                while stamps.len() < limit {
                    let due = self.next_due();
                    if due > now {
                        break;
                    }
                    stamps.push(due);
                    self.issued += 1;
                }
            }
        }
    }

    /// When the next message is due; 0 without a schedule.
    pub(crate) fn next_due(&self) -> u64 {
        // Computed from the start each time, so that rounding errors do not add up.
        self.schedule
            .as_ref()
            .map_or(0, |schedule| self.start + (schedule.due(self.issued) * 1e9).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latencies;

    const MS: u64 = 1_000_000;

    /// A server that answers in 1 ms, except for one pause from second 5 to second 6, on a virtual clock.
    fn run(rate: f64, corrected: bool) -> crate::latency::Percentiles {
        let mut pacer = Pacer::new(Some(rate.to_string().parse().unwrap()), 0);
        let mut latencies = Latencies::new();
        let (mut now, mut stamps) = (0, Vec::new());
        while now < 10_000 * MS {
            now = now.max(pacer.next_due());
            pacer.take_due(now, 1, &mut stamps);
            let sent = if corrected { stamps[0] } else { now };
            let begins = if (5_000 * MS..6_000 * MS).contains(&now) { 6_000 * MS } else { now };
            now = begins + MS;
            latencies.record(now - sent);
        }
        latencies.percentiles().unwrap()
    }

    #[test]
    fn a_stall_counts_against_every_message_that_it_delayed() {
        // 100 messages a second for 10 seconds, one second of stall: a tenth of all messages was due in it.
        let honest = run(100.0, true);
        let naive = run(100.0, false);
        assert!(naive.p99 < 0.002, "the naive measurement sees a single slow message: {naive:?}");
        assert!(honest.p99 > 0.85, "{honest:?}");
        assert!(honest.p90 > 0.05 && honest.p50 < 0.002, "{honest:?}");
        assert!((0.99..1.1).contains(&honest.max));
        assert_eq!(honest.count, naive.count, "the backlog is caught up with, nothing is skipped");
    }

    #[test]
    fn messages_are_due_evenly_and_never_drift() {
        let mut pacer = Pacer::new(Some("3".parse().unwrap()), 7);
        let mut stamps = Vec::new();
        pacer.take_due(7 + 1_000_000_000, 100, &mut stamps);
        assert_eq!(stamps, [7, 7 + 333_333_333, 7 + 666_666_667, 7 + 1_000_000_000]);
        pacer.take_due(8 + 1_000_000_000, 100, &mut stamps);
        assert!(stamps.is_empty());
        pacer.take_due(u64::MAX >> 12, 3_000_000, &mut stamps);
        assert_eq!(stamps.last(), Some(&(7 + 1_000_001_000_000_000)), "a million seconds later");
    }

    #[test]
    fn without_a_rate_everything_is_due_now() {
        let mut stamps = Vec::new();
        Pacer::new(None, 0).take_due(5, 3, &mut stamps);
        assert_eq!(stamps, [5, 5, 5]);
    }
}
