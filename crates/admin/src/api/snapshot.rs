//! The queues in order, remembered until one comes or goes, so that a page of a long list costs that page.

use std::sync::Arc;

use broker::{Broker, Queue, VirtualHost};
use parking_lot::Mutex;

/// A queue and its virtual host.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) vhost: Arc<VirtualHost>,
    pub(super) queue: Arc<Queue>,
}

impl Listed {
    /// What lists are sorted by.
    pub(super) fn key(&self) -> (&str, &str) {
        (self.vhost.name(), self.queue.name())
    }
}

/// All queues by virtual host and name, as they were at one time.
#[derive(Default)]
pub(super) struct Snapshot {
    last: Mutex<Option<Taken>>,
}

struct Taken {
    stamp: u64,
    queues: Arc<[Listed]>,
    /// How often it was taken anew.
    #[cfg(test)]
    walks: u64,
}

impl Snapshot {
    /// All queues in order. They are walked through only if one has come or gone since the last time.
    pub(super) fn get(&self, broker: &Broker) -> Arc<[Listed]> {
        let mut last = self.last.lock();
        // Before the walk: what comes during it makes for another one.
        let stamp = stamp(broker);
        if let Some(taken) = &*last
            && taken.stamp == stamp
        {
            return Arc::clone(&taken.queues);
        }
        let mut queues = Vec::new();
        for vhost in broker.vhosts() {
            let all = vhost.all_queues();
            queues.extend(all.into_iter().map(|queue| Listed { vhost: Arc::clone(&vhost), queue }));
        }
        queues.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
        let queues: Arc<[Listed]> = queues.into();
        *last = Some(Taken {
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

/// Another number after a queue has come or gone.
fn stamp(broker: &Broker) -> u64 {
    let metrics = broker.metrics();
    metrics.queues_created.get().wrapping_add(metrics.queues_deleted.get())
}

/// Those of one virtual host, which stand together.
pub(super) fn of_vhost<'q>(queues: &'q [Listed], vhost: &str) -> &'q [Listed] {
    let start = queues.partition_point(|listed| listed.vhost.name() < vhost);
    let end = queues.partition_point(|listed| listed.vhost.name() <= vhost);
    &queues[start..end]
}
