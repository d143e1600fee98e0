//! The sorted queues, cached until one is created or deleted, so that a page of a long list costs no more than
//! that page.

use std::sync::Arc;

use broker::{Broker, Queue, VirtualHost};
use parking_lot::Mutex;
use sync::pace::pace;

/// A queue and its virtual host.
#[derive(Clone)]
pub(super) struct CollectedItem {
    pub(super) vhost: Arc<VirtualHost>,
    pub(super) queue: Arc<Queue>,
}

impl CollectedItem {
    /// The sort key of lists.
    pub(super) fn key(&self) -> (&str, &str) {
        (self.vhost.name(), self.queue.name())
    }
}

/// Cache of all queues, sorted by virtual host and name.
#[derive(Default)]
pub(super) struct Snapshot {
    last: Mutex<Option<StoredSnapshot>>,
}

struct StoredSnapshot {
    stamp: u64,
    queues: Arc<[CollectedItem]>,
    /// Number of times all queues have been enumerated.
    #[cfg(test)]
    walks: u64,
}

impl Snapshot {
    /// All queues in order. They are walked only if one has been created or deleted since the last call.
    pub(super) fn get(&self, broker: &Broker) -> Arc<[CollectedItem]> {
        let mut last = self.last.lock();
        // Read before the walk, so that a change during it causes another walk.
        let stamp = stamp(broker);
        if let Some(taken) = &*last
            && taken.stamp == stamp
        {
            return Arc::clone(&taken.queues);
        }
        let mut queues = Vec::new();
        for vhost in broker.vhosts() {
            let all = vhost.all_queues();
            queues.extend(all.into_iter().map(|queue| CollectedItem { vhost: Arc::clone(&vhost), queue }));
        }
        queues.sort_unstable_by(|one, other| {
            pace(COMPARED);
            one.key().cmp(&other.key())
        });
        let queues: Arc<[CollectedItem]> = queues.into();
        *last = Some(StoredSnapshot {
            stamp,
            queues: Arc::clone(&queues),
            #[cfg(test)]
            walks: last.as_ref().map_or(0, |last| last.walks) + 1,
        });
        queues
    }

    #[cfg(test)]
    pub(super) fn walks(&self) -> u64 {
        self.last.lock().as_ref().map_or(0, |last| last.walks)
    }
}

/// Nanoseconds for comparing two queues.
const COMPARED: u32 = 50;

/// A number that changes whenever a queue is created or deleted.
fn stamp(broker: &Broker) -> u64 {
    let metrics = broker.metrics();
    metrics.queues_created.get().wrapping_add(metrics.queues_deleted.get())
}

/// The queues of one virtual host, which are adjacent.
pub(super) fn of_vhost<'q>(queues: &'q [CollectedItem], vhost: &str) -> &'q [CollectedItem] {
    let start = queues.partition_point(|listed| listed.vhost.name() < vhost);
    let end = queues.partition_point(|listed| listed.vhost.name() <= vhost);
    &queues[start..end]
}
