//! Counters and their rates, for very many objects that are rarely displayed.
//!
//! A rate is the count of the last whole tick of five seconds, divided by its length. Nothing visits all counters when a
//! tick ends: the next thread that counts or reads detects it, and saves the count of the previous tick. An idle counter
//! therefore costs nothing, and its rate is zero after a whole tick without counts.

mod ticks;

use std::ops::{Add, AddAssign};

use sync::ShardedCounters;

use self::ticks::{Rated, SharedRated, TICK};
use crate::time::Timestamp;

/// The value of a counter, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// The count since the beginning.
    pub total: u64,
    /// The count in the last whole tick of five seconds.
    pub recent: u64,
}

impl Count {
    /// The rate per second.
    pub fn rate(self) -> f64 {
        self.recent as f64 * 1000.0 / TICK as f64
    }
}

impl Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { total: self.total + other.total, recent: self.recent + other.recent }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Counters of messages: of one queue, of one channel, or of a virtual host. The names are those of
/// RabbitMQ's `message_stats`, so not every counter applies to every object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageCounts {
    /// Published; for a queue: routed to it, whether or not it was full.
    pub publish: Count,
    /// Publishes that were confirmed.
    pub confirm: Count,
    /// Mandatory ones that were returned.
    pub return_unroutable: Count,
    /// Others that reached no queue.
    pub drop_unroutable: Count,
    /// Delivered to consumers that acknowledge.
    pub deliver: Count,
    /// Delivered to consumers that do not.
    pub deliver_no_ack: Count,
    /// Taken by `get`, with acknowledgement.
    pub get: Count,
    /// Taken by `get`, without acknowledgement.
    pub get_no_ack: Count,
    /// Calls of `get` on an empty queue.
    pub get_empty: Count,
    /// Deliveries and gets of messages that had been delivered before.
    pub redeliver: Count,
    /// Acknowledged by clients (`basic.ack`); deliveries and gets without acknowledgement do not count.
    pub ack: Count,
}

impl MessageCounts {
    /// All deliveries and gets.
    pub fn deliver_get(&self) -> Count {
        self.deliver + self.deliver_no_ack + self.get + self.get_no_ack
    }

    /// Adds the counters of messages that left a queue, or were sent to a channel, in the order of [`DequeueCounts`].
    fn add_leaving(&mut self, leaving: [Count; LEAVING]) {
        let [deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack] = leaving;
        self.deliver += deliver;
        self.deliver_no_ack += deliver_no_ack;
        self.get += get;
        self.get_no_ack += get_no_ack;
        self.get_empty += get_empty;
        self.redeliver += redeliver;
        self.ack += ack;
    }
}

impl AddAssign for MessageCounts {
    fn add_assign(&mut self, other: Self) {
        self.publish += other.publish;
        self.confirm += other.confirm;
        self.return_unroutable += other.return_unroutable;
        self.drop_unroutable += other.drop_unroutable;
        self.add_leaving([
            other.deliver,
            other.deliver_no_ack,
            other.get,
            other.get_no_ack,
            other.get_empty,
            other.redeliver,
            other.ack,
        ]);
    }
}

/// The increments of one step to the counters of messages leaving a queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct DequeueCounts {
    /// Delivered to consumers that acknowledge.
    pub deliver: usize,
    /// Delivered to consumers that do not.
    pub deliver_no_ack: usize,
    /// Taken by `get`, with acknowledgement.
    pub get: usize,
    /// Taken by `get`, without acknowledgement.
    pub get_no_ack: usize,
    /// Calls of `get` on an empty queue.
    pub get_empty: usize,
    /// Deliveries and gets of messages that had been delivered before.
    pub redeliver: usize,
    /// Acknowledged by clients (`basic.ack`).
    pub ack: usize,
}

const LEAVING: usize = 7;

impl DequeueCounts {
    /// The messages that one consumer took.
    pub fn delivered(taken: usize, no_ack: bool, redeliver: usize) -> Self {
        let (deliver, deliver_no_ack) = if no_ack { (0, taken) } else { (taken, 0) };
        Self { deliver, deliver_no_ack, redeliver, ..Self::default() }
    }

    /// One message taken by `get`.
    pub fn got(no_ack: bool, redelivered: bool) -> Self {
        let (get, get_no_ack) = if no_ack { (0, 1) } else { (1, 0) };
        Self { get, get_no_ack, redeliver: redelivered.into(), ..Self::default() }
    }

    /// A `get` on an empty queue.
    pub fn got_nothing() -> Self {
        Self { get_empty: 1, ..Self::default() }
    }

    /// The number of messages that were acknowledged.
    pub fn acked(ack: usize) -> Self {
        Self { ack, ..Self::default() }
    }
}

/// Counters of the messages that enter and leave a queue or, without the entering ones, are sent to a channel. The owner
/// locks them.
///
/// No memory is allocated before the first count, since there may be millions of idle ones.
#[derive(Debug, Default)]
pub struct ThroughputCounters(Option<Box<Rated<{ LEAVING + 1 }>>>);

impl ThroughputCounters {
    /// Adds to the counters at `now`.
    // Each caller counts one or two kinds: inlining removes the code for the others.
    #[inline(always)]
    pub fn add(&mut self, published: usize, leaving: DequeueCounts, now: Timestamp) {
        let DequeueCounts { deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack } = leaving;
        let counted = [deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack, published];
        let present = self.0.get_or_insert_default().present(now);
        for (present, counted) in present.iter_mut().zip(counted) {
            *present = present.wrapping_add(counted as u32);
        }
    }

    /// The final counts of a removed object.
    pub(crate) fn last_read(&self) -> Option<MessageCounts> {
        self.read(Timestamp(u64::MAX))
    }

    /// The counts as of `now`; `None` if nothing was ever counted.
    pub fn read(&self, now: Timestamp) -> Option<MessageCounts> {
        let [leaving @ .., publish] = self.0.as_ref()?.read(now);
        let mut counts = MessageCounts { publish, ..MessageCounts::default() };
        counts.add_leaving(leaving);
        Some(counts)
    }
}

/// Counters of publishes on a channel. Many threads may read while one counts.
#[derive(Debug, Default)]
pub struct Publishing(SharedRated<4>);

impl Publishing {
    /// Counts `count` messages that the client has published.
    pub fn published(&self, count: u64, now: Timestamp) {
        self.0.add([count, 0, 0, 0], now);
    }

    /// Counts `count` messages that were confirmed to the client.
    pub fn confirmed(&self, count: u64, now: Timestamp) {
        self.0.add([0, count, 0, 0], now);
    }

    /// Counts a message that reached no queue, and was returned or dropped.
    pub fn unroutable(&self, returned: bool, now: Timestamp) {
        self.0.add([0, 0, returned.into(), (!returned).into()], now);
    }

    /// Adds the counts as of `now` to `counts`.
    pub fn add_to(&self, counts: &mut MessageCounts, now: Timestamp) {
        let [publish, confirm, returned, dropped] = self.0.read(now);
        counts.publish += publish;
        counts.confirm += confirm;
        counts.return_unroutable += returned;
        counts.drop_unroutable += dropped;
    }
}

/// Counters of an exchange: messages published to it, and queue entries that resulted. All its publishers share them.
#[derive(Debug, Default)]
pub(crate) struct ExchangeFlow(SharedRated<2, ShardedCounters<2>>);

impl ExchangeFlow {
    pub(crate) fn add(&self, published: u64, enqueued: u64, now: Timestamp) {
        self.0.add([published, enqueued], now);
    }

    /// Messages published so far.
    pub(crate) fn published(&self) -> u64 {
        self.0.total(0)
    }

    /// Messages published and enqueued; `None` if nothing was ever published.
    pub(crate) fn read(&self, now: Timestamp) -> Option<(Count, Count)> {
        let [published, enqueued] = self.0.read(now);
        (published.total > 0).then_some((published, enqueued))
    }
}

#[cfg(test)]
mod tests {
    use super::ticks::tests::{at, count};
    use super::*;

    #[test]
    fn idle_throughput_counters_have_the_size_of_a_pointer() {
        assert_eq!(size_of::<ThroughputCounters>(), size_of::<usize>());
        assert_eq!(ThroughputCounters::default().read(at(0, 0)), None);
    }

    #[test]
    fn throughput_is_counted_by_kind() {
        let mut passing = ThroughputCounters::default();
        passing.add(10, DequeueCounts::delivered(6, false, 2), at(0, 0));
        passing.add(0, DequeueCounts::delivered(1, true, 0), at(0, 0));
        passing.add(0, DequeueCounts::got(false, true), at(0, 0));
        passing.add(0, DequeueCounts::got(true, false), at(0, 0));
        passing.add(0, DequeueCounts::got_nothing(), at(0, 0));
        passing.add(0, DequeueCounts::acked(5), at(0, 0));
        let counts = passing.read(at(1, 0)).unwrap();
        let all = |count: Count| (count.total == count.recent).then_some(count.total);
        let kinds = [counts.publish, counts.deliver, counts.deliver_no_ack, counts.get, counts.get_no_ack];
        assert_eq!(kinds.map(all), [10, 6, 1, 1, 1].map(Some));
        let kinds = [counts.get_empty, counts.redeliver, counts.ack, counts.deliver_get()];
        assert_eq!(kinds.map(all), [1, 3, 5, 9].map(Some));
    }

    #[test]
    fn publishes_are_counted_by_kind() {
        let publishing = Publishing::default();
        publishing.published(3, at(0, 0));
        publishing.confirmed(2, at(0, 0));
        publishing.unroutable(true, at(0, 0));
        publishing.unroutable(false, at(1, 0));
        let mut counts = MessageCounts::default();
        publishing.add_to(&mut counts, at(1, 0));
        assert_eq!((counts.publish, counts.confirm), (count(3, 3), count(2, 2)));
        assert_eq!((counts.return_unroutable, counts.drop_unroutable), (count(1, 1), count(1, 0)));
    }
}
