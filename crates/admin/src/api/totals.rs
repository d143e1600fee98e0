//! What all queues hold together, and those of each virtual host: sums of many small looks, which with very many queues
//! are not taken for each request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Broker;
use parking_lot::Mutex;

use super::snapshot::Snapshot;

/// The sums, as they were at one time.
#[derive(Default)]
pub(super) struct Totals {
    last: Mutex<Option<Taken>>,
}

struct Taken {
    at: Instant,
    cost: Duration,
    sums: Arc<Sums>,
}

/// What the queues of each virtual host hold. Those without messages are left out.
#[derive(Debug, Default)]
pub(super) struct Sums(HashMap<Box<str>, Sum>);

/// Messages in some queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) ready: u64,
    pub(super) unacknowledged: u64,
}

impl Totals {
    /// The sums, as of a short time ago at most.
    pub(super) fn get(&self, queues: &Snapshot, broker: &Broker) -> Arc<Sums> {
        self.get_at(Instant::now, || Sums::count(queues, broker))
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
        *last = Some(Taken { at, cost: clock().saturating_duration_since(at), sums: Arc::clone(&sums) });
        sums
    }
}

impl Sums {
    fn count(queues: &Snapshot, broker: &Broker) -> Self {
        let mut sums = HashMap::<Box<str>, Sum>::new();
        for listed in queues.get(broker).iter() {
            let view = listed.queue.view();
            if view.ready == 0 && view.unacknowledged == 0 {
                continue;
            }
            let sum = match sums.get_mut(listed.vhost.name()) {
                Some(sum) => sum,
                None => sums.entry(listed.vhost.name().into()).or_default(),
            };
            sum.ready += view.ready;
            sum.unacknowledged += view.unacknowledged;
        }
        Self(sums)
    }

    /// Of one virtual host.
    pub(super) fn of(&self, vhost: &str) -> Sum {
        self.0.get(vhost).copied().unwrap_or_default()
    }

    pub(super) fn of_all(&self) -> Sum {
        self.0.values().fold(Sum::default(), |all, sum| Sum {
            ready: all.ready + sum.ready,
            unacknowledged: all.unacknowledged + sum.unacknowledged,
        })
    }
}

/// Sums are taken anew after so many times as long as it took last: never more than a tenth of a processor's time.
const REST: u32 = 10;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_took_long_to_count_is_not_counted_for_each_request() {
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
