//! Counts the messages that are sent during a measurement, whenever they arrive.

use super::member::Role;
use crate::latency::Latencies;

/// Messages published and received. Times are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Tally {
    from: u64,
    /// Messages that are sent from then on do not count; 0 before the first measurement.
    until: u64,
    /// The members whose messages count; `None` for all.
    only: Option<Role>,
    pub(super) published: u64,
    pub(super) received: u64,
    /// From publish to delivery.
    pub(super) latencies: Latencies,
}

impl Tally {
    /// A measurement that begins now.
    pub(super) fn begin(now: u64, only: Option<Role>) -> Self {
        Self { from: now, until: u64::MAX, only, ..Self::default() }
    }

    /// Ends the measurement; messages that were sent before are still received.
    pub(super) fn end(&mut self, now: u64) {
        self.until = now;
    }

    /// Counts a message that is about to be sent; returns `now`, which it carries.
    pub(super) fn publish(&mut self, now: u64, by: Role) -> u64 {
        self.published += u64::from(self.counts(now, by));
        now
    }

    /// Counts the arrival of a message that was sent at `sent`.
    pub(super) fn receive(&mut self, sent: u64, now: u64, by: Role) {
        if self.counts(sent, by) {
            self.received += 1;
            self.latencies.record(now.saturating_sub(sent));
        }
    }

    fn counts(&self, sent: u64, by: Role) -> bool {
        (self.from..self.until).contains(&sent) && self.only.is_none_or(|only| only == by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_sent_outside_a_measurement_do_not_offset_a_loss() {
        let mut tally = Tally::begin(10, None);
        tally.receive(9, 11, Role::Ordinary);
        for sent in [10, 19] {
            assert_eq!(tally.publish(sent, Role::Ordinary), sent);
        }
        tally.end(20);
        tally.publish(20, Role::Ordinary);
        for sent in [19, 20] {
            tally.receive(sent, 25, Role::Ordinary);
        }
        assert_eq!((tally.published, tally.received), (2, 1), "one was lost");
        assert_eq!(tally.latencies.percentiles().unwrap().count, 1);
    }

    #[test]
    fn messages_of_ordinary_members_are_not_counted_with_those_of_bystanders() {
        let mut tally = Tally::begin(0, Some(Role::Bystander));
        for role in [Role::Ordinary, Role::Bystander] {
            let sent = tally.publish(1, role);
            tally.receive(sent, 2, role);
        }
        assert_eq!((tally.published, tally.received), (1, 1));
    }
}
