//! The store's state of each queue: a part in the journal and a part in its own segments, which are updated together.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sync::{Mutex, Rank};

use super::mover_thread::MoverNotifier;
use crate::journal::{Journal, Lsn, QueueId, QueueLog, Range, Transfer};
use crate::pages::{Durability, Pages, QueueSegments};

/// All queues of the store.
pub(super) struct StoredQueues {
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Pages,
    known: Mutex<HashMap<QueueId, Arc<QueueStorage>>, { Rank::StoredQueues as u8 }>,
    /// Number of the next transient queue segments.
    next_transient: AtomicU64,
    /// Deleted queues that still have files.
    forgotten: Mutex<Vec<Arc<QueueStorage>>, { Rank::Leaf as u8 }>,
    /// Notified when files can be removed.
    pub(super) notifier: Arc<MoverNotifier>,
}

/// A queue's messages on disk.
pub(super) struct QueueStorage {
    pub(super) log: Arc<QueueLog>,
    /// Unset for most queues, which never have segments.
    segments: OnceLock<Box<QueueSegments>>,
    /// Locked while an event updates first the journal and then the segments: after taking it, the segments reflect every
    /// record in the journal.
    order: Mutex<(), { Rank::QueueEvents as u8 }>,
    forgotten: AtomicBool,
    /// The first message at the segment location that was last read and found damaged, and how often that happened in a
    /// row.
    damaged: Mutex<Option<Box<(u64, u32)>>, { Rank::Leaf as u8 }>,
}

impl StoredQueues {
    pub(super) fn new(journal: Arc<Journal>, pages: Pages) -> Self {
        let (known, forgotten) = (Mutex::default(), Mutex::default());
        Self { journal, pages, known, next_transient: AtomicU64::new(0), forgotten, notifier: Arc::default() }
    }

    /// The queue with that number, which is empty if it is new.
    pub(super) fn get(&self, id: QueueId) -> Arc<QueueStorage> {
        let new = || Arc::new(QueueStorage::new(self.journal.queue(id)));
        self.known.lock().entry(id).or_insert_with(new).clone()
    }

    pub(super) fn find(&self, id: QueueId) -> Option<Arc<QueueStorage>> {
        self.known.lock().get(&id).cloned()
    }

    /// The queues that have segments.
    pub(super) fn with_segments(&self) -> Vec<Arc<QueueStorage>> {
        self.known.lock().values().filter(|storage| storage.segments().is_some()).cloned().collect()
    }

    /// Drops a deleted queue, whose deletion must be on disk. The mover's next step removes its files.
    pub(super) fn forget(&self, id: QueueId) {
        self.journal.forget(id);
        let Some(storage) = self.known.lock().remove(&id) else { return };
        storage.forgotten.store(true, Ordering::SeqCst);
        if storage.segments().is_some() {
            self.forgotten.lock().push(storage);
            self.notifier.notify();
        }
    }

    /// Adds a queue that was found after a restart.
    pub(super) fn add(&self, log: Arc<QueueLog>, segments: Option<QueueSegments>) -> Arc<QueueStorage> {
        let id = log.id();
        let storage = Arc::new(QueueStorage::new(log));
        if let Some(segments) = segments {
            storage.segments.get_or_init(|| Box::new(segments));
        }
        self.known.lock().insert(id, storage.clone());
        storage
    }

    /// The queue's segments for appending, created if it has none.
    pub(super) fn segments<'s>(&self, storage: &'s QueueStorage) -> &'s QueueSegments {
        let new = || Box::new(self.pages.queue(Durability::Durable, storage.log.id().0));
        storage.segments.get_or_init(new)
    }

    pub(super) fn transient_segments(&self) -> QueueSegments {
        self.pages.queue(Durability::Transient, self.next_transient.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes the deleted queues whose files must be removed.
    pub(super) fn take_forgotten(&self) -> Vec<Arc<QueueStorage>> {
        std::mem::take(&mut *self.forgotten.lock())
    }

    /// Puts back queues whose files could not be removed yet.
    pub(super) fn put_forgotten_back(&self, stored_queues: Vec<Arc<QueueStorage>>) {
        self.forgotten.lock().extend(stored_queues);
    }
}

impl QueueStorage {
    fn new(log: Arc<QueueLog>) -> Self {
        let (segments, order, forgotten, damaged) = Default::default();
        Self { log, segments, order, forgotten, damaged }
    }

    /// Records that the location of the message at `position` was read and found damaged; returns how often that happened
    /// in a row.
    pub(super) fn found_damaged(&self, position: u64) -> u32 {
        let mut damaged = self.damaged.lock();
        let damaged = damaged.get_or_insert_default();
        damaged.1 = if damaged.0 == position { damaged.1 + 1 } else { 1 };
        damaged.0 = position;
        damaged.1
    }

    pub(super) fn segments(&self) -> Option<&QueueSegments> {
        self.segments.get().map(|segments| &**segments)
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::SeqCst)
    }

    pub(super) fn settle(&self, journal: &Journal, ranges: &[Range]) -> Lsn {
        let _order = self.order.lock();
        let lsn = journal.settle(&self.log, ranges);
        if let Some(segments) = self.segments() {
            segments.settle(ranges.iter().map(inclusive));
        }
        lsn
    }

    pub(super) fn transfer(&self, journal: &Journal, ranges: &[Range], transfer: &Transfer) -> Lsn {
        let _order = self.order.lock();
        let lsn = journal.transfer(&self.log, ranges, transfer);
        if let Some(segments) = self.segments() {
            segments.settle(ranges.iter().map(inclusive));
        }
        lsn
    }

    pub(super) fn delivered(&self, journal: &Journal, ranges: &[Range], count: u32) {
        let _order = self.order.lock();
        journal.delivered(&self.log, ranges, count);
        if let Some(segments) = self.segments() {
            segments.mark_delivered(ranges.iter().map(inclusive), count);
        }
    }

    /// Removes messages from the journal whose copies in the segments are on disk; `messages` contains the delivery counts
    /// of the copies. Events since the copy are repeated in the segments.
    pub(super) fn moved(&self, journal: &Journal, messages: &[(u64, u32)]) {
        let Some(segments) = self.segments() else { return };
        for chunk in messages.chunks(CHUNK) {
            let _order = self.order.lock();
            for &(position, count) in chunk {
                if let Some(now) = self.log.get(position).filter(|now| now.deliveries != count) {
                    segments.mark_delivered([position..=position], now.deliveries);
                }
            }
            let settled = journal.moved(&self.log, chunk.iter().map(|(position, _)| *position));
            segments.settle(settled.into_iter().map(|position| position..=position));
        }
    }

    /// Waits until the segments reflect the events that are being written to the journal.
    pub(super) fn catch_up(&self) {
        drop(self.order.lock());
    }
}

pub(super) fn inclusive(range: &Range) -> RangeInclusive<u64> {
    range.first..=range.last
}

/// Messages moved under one lock, which the queue's publishers and consumers wait for: some microseconds.
const CHUNK: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_queue_takes_little() {
        // With the two counters of an `Arc`, at most one of the allocator's size classes.
        assert!(size_of::<QueueStorage>() <= 64 - 16, "{}", size_of::<QueueStorage>());
        assert!(size_of::<QueueLog>() <= 80 - 16, "{}", size_of::<QueueLog>());
    }
}
