//! Message totals of all queues and of each virtual host. With very many queues, summing them up for each
//! request would be too expensive, so the sums are cached.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, MessageCounts, Timestamp};
use parking_lot::Mutex;
use sync::pace::pace;

use super::snapshot::Snapshot;

/// Cache of the sums.
#[derive(Default)]
pub(super) struct Totals {
    last: Mutex<Option<StoredTotals>>,
}

struct StoredTotals {
    at: Instant,
    cost: Duration,
    sums: Arc<Sums>,
}

/// Sums of each virtual host by name.
#[derive(Debug, Default)]
pub(super) struct Sums(HashMap<Box<str>, Sum>);

/// Messages in the queues, and the counts of messages published, delivered and acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) ready: u64,
    pub(super) unacknowledged: u64,
    pub(super) counts: MessageCounts,
}

impl Totals {
    /// The sums, which may be slightly out of date.
    pub(super) fn get(&self, queues: &Snapshot, broker: &Broker, now: Timestamp) -> Arc<Sums> {
        self.get_at(Instant::now, || Sums::count(queues, broker, now))
    }

    fn get_at(&self, clock: impl Fn() -> Instant, count: impl FnOnce() -> Sums) -> Arc<Sums> {
        let mut last = self.last.lock();
        let at = clock();
        if let Some(taken) = &*last
            && at.saturating_duration_since(taken.at) < taken.cost * REST
        {
            return Arc::clone(&taken.sums);
        }
        let sums = Arc::new(count());
        *last =
            Some(StoredTotals { at, cost: clock().saturating_duration_since(at), sums: Arc::clone(&sums) });
        sums
    }
}

impl Sums {
    fn count(queues: &Snapshot, broker: &Broker, now: Timestamp) -> Self {
        let mut sums = HashMap::<Box<str>, Sum>::new();
        // Read first, so that a queue that is deleted in the meantime is not counted twice.
        for vhost in broker.vhosts() {
            sums.entry(vhost.name().into()).or_default().counts = vhost.counts_of_deleted_queues();
        }
        for listed in queues.get(broker).iter() {
            pace(COUNTED);
            let (view, counts) = listed.queue.view_counted(now);
            if view.ready == 0 && view.unacknowledged == 0 && counts.is_none() {
                continue;
            }
            let sum = match sums.get_mut(listed.vhost.name()) {
                Some(sum) => sum,
                None => sums.entry(listed.vhost.name().into()).or_default(),
            };
            sum.ready += view.ready;
            sum.unacknowledged += view.unacknowledged;
            sum.counts += counts.unwrap_or_default();
        }
        for vhost in broker.vhosts() {
            // Counts each message once, regardless of the number of queues it was routed to.
            sums.entry(vhost.name().into()).or_default().counts.publish = vhost.published(now);
        }
        Self(sums)
    }

    /// The sum of one virtual host.
    pub(super) fn of(&self, vhost: &str) -> Sum {
        self.0.get(vhost).copied().unwrap_or_default()
    }

    pub(super) fn of_all(&self) -> Sum {
        self.0.values().copied().sum()
    }
}

impl iter::Sum for Sum {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        let mut all = Self::default();
        for sum in sums {
            all.ready += sum.ready;
            all.unacknowledged += sum.unacknowledged;
            all.counts += sum.counts;
        }
        all
    }
}

/// The sums stay valid for this multiple of the time they took to compute: computing them never uses more than
/// a tenth of a processor.
const REST: u32 = 10;

/// Nanoseconds for looking at a queue.
const COUNTED: u32 = 100;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn totals_that_are_slow_to_count_are_not_counted_for_each_request() {
        let totals = Totals::default();
        let (start, now, counts) = (Instant::now(), Cell::new(0), Cell::new(0));
        let clock = || start + Duration::from_millis(now.get());
        let count = || {
            counts.set(counts.get() + 1);
            now.set(now.get() + 50);
            Sums::default()
        };
        for at in [0, 100, 200, 499] {
            now.set(at);
            totals.get_at(clock, count);
        }
        assert_eq!(counts.get(), 1);
        now.set(500);
        totals.get_at(clock, count);
        assert_eq!(counts.get(), 2, "half a second after what took a twentieth of one");
    }
}
