//! The store as the broker sees it: definitions, and the messages of durable queues.
//!
//! [`Store::open`] recovers the contents of a data directory; [`Rounds::start`] starts the writing thread. Each round
//! commits the definitions before it syncs the journal: a message in a new queue is never on disk before the queue is.

mod brake;
mod check;
mod error;
mod inventory;
mod merge;
mod mover_thread;
mod on_disk;
mod queue_storage;
mod read;
mod recovered;
mod retire;
mod rounds;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use check::{CheckReport, check, repair};
pub use error::StoreError;
pub use on_disk::{AnswerQueue, DiskPoint};
pub use recovered::{Recovered, RecoveredQueue, StoredLocation};
pub use retire::Retirement;
pub use rounds::{Rounds, RunningStore};
pub use settings::StoreSettings;

use crate::catalogue::{Catalogue, Ticket};
use crate::disk::Disk;
use crate::journal::{
    self, Entry, Failing, Journal, Lsn, MessageRef, OpenError, QueueId, Range, RoundGuard, Transfer,
};
use crate::pages::{Pages, QueueSegments, Stored};
use crate::waiters::Waiter;
use brake::Brake;
use inventory::{Inventory, InventoryWriter};
use queue_storage::{QueueStorage, StoredQueues};
use retire::Mover;
use rounds::Definitions;

/// An open data directory. Its methods are thread-safe, and none of them blocks on the disk.
pub struct Store {
    journal: Arc<Journal>,
    stored_queues: Arc<StoredQueues>,
    catalogue: Arc<Catalogue>,
    brake: Arc<Brake>,
}

/// The part of the store for one durable queue, owned by that queue.
pub struct StoredQueue {
    stored_queues: Arc<StoredQueues>,
    catalogue: Arc<Catalogue>,
    storage: Arc<QueueStorage>,
}

/// Result of appending a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The message's location, for [`Entry`].
    pub message: MessageRef,
    /// Too much is pending, to be written or to be moved from the journal: the publisher has to pause, see
    /// [`Store::wait_for_capacity`].
    pub full: bool,
}

impl Store {
    /// Opens the store on a disk. Nothing is written before the first round, except to the file of the definitions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: impl Into<StoreSettings>,
    ) -> Result<(Arc<Self>, Rounds, Recovered), StoreError> {
        let settings = settings.into();
        let mut catalogue = Catalogue::open(disk.clone())?;
        catalogue.set_pending_limit(settings.journal.pending_limit);
        let catalogue = Arc::new(catalogue);
        let hooks = Box::new(Definitions::new(catalogue.clone()));
        let mut inventory = Inventory::read(&catalogue)?;
        let (report, opened) = match journal::open(disk.clone(), settings.journal, hooks) {
            Ok((committer, mut recovered)) => {
                (std::mem::take(&mut recovered.report), Some((committer, recovered)))
            }
            Err(OpenError::Damaged(report)) => (*report, None),
            Err(error) => return Err(error.into()),
        };
        // The inventory lists files whose absence the journal alone would not detect.
        let report = inventory.compare_journal(report);
        let Some((committer, recovered)) = opened.filter(|_| report.problems.is_empty()) else {
            return Err(OpenError::Damaged(Box::new(report)).into());
        };
        if let Some(journal::Torn { file, offset, bytes, records }) = &report.torn {
            tracing::warn!(file, offset, bytes, records, "truncated torn journal after a crash");
        }
        let journal = committer.journal().clone();
        let notified = journal.clone();
        // A round commits changes of the definitions even if there is no message to write.
        catalogue.on_change(Box::new(move || notified.demand_round()));
        let pages = Pages::with_segments_of(disk, settings.open_files, settings.queue_segment_size);
        let (stored_queues, found) = merge::merge(journal.clone(), pages, recovered, &inventory)?;
        let brake = Arc::new(Brake::new(settings.journal_segments));
        let unlisted = stored_queues.with_segments().into_iter().flat_map(|storage| {
            let found = storage.segments().map(QueueSegments::files_on_disk).unwrap_or_default();
            inventory.list_segments(storage.log.id().0, found)
        });
        let unlisted = unlisted.collect();
        // Retirement moves messages from the journal to segments, and maintains the inventory.
        let inventory_writer = InventoryWriter::new(catalogue.clone(), inventory, unlisted);
        let mover = Mover::new(stored_queues.clone(), brake.clone(), inventory_writer, &settings);
        let rounds = Rounds::new(committer, mover, catalogue.clone());
        let recovered = Recovered::new(stored_queues.clone(), found);
        // The definitions may be new, or come from a backup: a queue must not inherit the messages of a lost one.
        recovered.queues().for_each(|queue| catalogue.reserve_ids(queue.id.0));
        Ok((Arc::new(Self { journal, stored_queues, catalogue, brake }), rounds, recovered))
    }

    /// The definitions, which each round commits before the journal's records.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Appends a message, given in parts, whether or not there is capacity. Pass it to [`StoredQueue::enqueue`] with `last`
    /// set once, or else to [`Store::release`].
    ///
    /// # Panics
    /// If the message has 4 GiB or more.
    pub fn append(&self, parts: &[&[u8]]) -> Appended {
        let (message, full) = self.journal.append_regardless(parts);
        Appended { message, full: full || self.brake.is_on() }
    }

    /// Drops the reference to a message that enters no (further) queue.
    pub fn release(&self, message: MessageRef) {
        self.journal.release(message);
    }

    /// A queue's part of the store, empty for a new queue.
    pub fn queue(&self, id: QueueId) -> StoredQueue {
        StoredQueue {
            stored_queues: self.stored_queues.clone(),
            catalogue: self.catalogue.clone(),
            storage: self.stored_queues.get(id),
        }
    }

    /// Segments for messages that are paged out of memory and do not survive a restart.
    pub fn transient_segments(&self) -> QueueSegments {
        self.stored_queues.transient_segments()
    }

    /// Drops the messages of a deleted queue. The deletion must be on disk.
    pub fn forget(&self, id: QueueId) {
        self.stored_queues.forget(id);
    }

    /// Orders definitions and messages on disk. All messages appended while the guard is held are written in one round, and
    /// changes to definitions made meanwhile are on disk before it writes, possibly since the previous round. A crash may
    /// leave the definitions without the messages, but not the opposite. Hold it briefly, and never twice in one thread
    /// (ARCHITECTURE.md, "Lock order").
    pub fn begin_ordered_round(&self) -> RoundGuard<'_> {
        self.journal.begin_ordered_round()
    }

    /// End of the log of messages when it was opened: anything beyond this that was expected on disk has been lost.
    pub fn opened_at(&self) -> Lsn {
        self.journal.opened_at()
    }

    /// LSN to wait for until everything appended so far is on disk.
    pub fn end(&self) -> Lsn {
        self.journal.end()
    }

    /// LSN up to which everything is on disk.
    pub fn durable(&self) -> Lsn {
        self.journal.durable()
    }

    /// Wakes `waiter` once everything up to `lsn` is on disk, at once if it already is; and starts a round.
    pub fn wait(&self, lsn: Lsn, waiter: Arc<dyn Waiter>) {
        self.journal.wait(lsn, waiter);
    }

    /// Whether publishers may continue.
    pub fn has_capacity(&self) -> bool {
        self.journal.has_capacity() && !self.brake.is_on() && self.catalogue.has_capacity()
    }

    /// Wakes `waiter` when it should check again whether publishers [may continue](Self::has_capacity); at once if they
    /// may.
    pub fn wait_for_capacity(&self, waiter: Arc<dyn Waiter>) {
        let waiter = self.brake.wait(waiter).and_then(|waiter| self.catalogue.wait_for_capacity(waiter));
        if let Some(waiter) = waiter {
            self.journal.wait_for_capacity(waiter);
        }
    }

    /// When and why writing failed; `None` while writing works. Nothing is confirmed meanwhile.
    pub fn failing(&self) -> Option<Failing> {
        self.journal.failing()
    }

    /// Whether publishers must wait: either all writes fail, so nothing is confirmed, or the disk is full and
    /// acknowledgements use the space reserved for them.
    pub fn needs_space(&self) -> bool {
        self.journal.needs_space()
    }

    /// Sets how many bytes of the disk must stay free: the store prepares and retains no segment that leaves less, and
    /// frees dispensable space early. It still writes messages that it has accepted.
    pub fn set_disk_free_limit(&self, bytes: u64) {
        self.journal.set_disk_free_limit(bytes);
    }

    /// Bytes of disk that may be used without going below the [limit](Self::set_disk_free_limit).
    pub fn space_above_limit(&self) -> u64 {
        self.journal.space_above_limit()
    }

    /// The journal, for its counters.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }
}

impl StoredQueue {
    /// The number that the catalogue has assigned to the queue.
    pub fn id(&self) -> QueueId {
        self.storage.log.id()
    }

    /// Adds messages to the queue, at ascending positions above all earlier ones. Call it under the queue's own lock.
    /// Returns the LSN to [wait](Store::wait) for.
    pub fn enqueue(&self, entries: &[Entry]) -> Lsn {
        self.stored_queues.journal.enqueue(&self.storage.log, entries)
    }

    /// [Enqueues](Self::enqueue) messages that leave another queue for this one. After a crash they are here only if the
    /// record of [`StoredQueue::transfer`] is on disk, which must be called for that queue.
    pub fn enqueue_in_transfer(&self, entries: &[Entry], transfer: &mut Transfer) -> Lsn {
        self.stored_queues.journal.enqueue_in_transfer(&self.storage.log, entries, transfer)
    }

    /// Removes messages that the transfer has [put](Self::enqueue_in_transfer) into other queues. After a crash they are in
    /// one queue or the other, never in both. Call it even for a deleted queue: a transfer must be completed.
    pub fn transfer(&self, ranges: &[Range], transfer: &Transfer) -> Lsn {
        self.storage.transfer(&self.stored_queues.journal, ranges, transfer)
    }

    /// Drops a message that does not enter the queue after all, and that no other queue needs.
    pub fn release(&self, message: MessageRef) {
        self.stored_queues.journal.release(message);
    }

    /// Removes messages from the queue permanently. Returns the LSN to [wait](Store::wait) for if they must not come back
    /// after a crash.
    pub fn settle(&self, ranges: &[Range]) -> Lsn {
        self.storage.settle(&self.stored_queues.journal, ranges)
    }

    /// LSN to [wait](Store::wait) for until everything appended so far, also by other queues, is on disk.
    pub fn end(&self) -> Lsn {
        self.stored_queues.journal.end()
    }

    /// Records that messages were delivered, each `count` times by now. The record is written within some milliseconds.
    pub fn delivered(&self, ranges: &[Range], count: u32) {
        self.storage.delivered(&self.stored_queues.journal, ranges, count);
    }

    /// Live messages from a position on, in order: up to `max_messages` and `max_bytes` of payloads, but at least one.
    /// Blocks on the disk: do not call it under a lock.
    ///
    /// # Errors
    /// A message that cannot be read.
    pub fn read(&self, from: u64, max_messages: usize, max_bytes: usize) -> Result<Vec<Stored>, StoreError> {
        read::read(&self.storage, &self.stored_queues.journal, from, max_messages, max_bytes)
    }

    /// Drops the messages of a deleted queue once its deletion, queued in the catalogue before this call, is on disk.
    pub fn forget(&self) {
        let forget = Forget { stored_queues: self.stored_queues.clone(), id: self.id() };
        self.catalogue.wait(self.deleted(), Arc::new(forget));
    }

    fn deleted(&self) -> Ticket {
        self.catalogue.last_noted()
    }
}

struct Forget {
    stored_queues: Arc<StoredQueues>,
    id: QueueId,
}

impl Waiter for Forget {
    fn wake(&self) {
        self.stored_queues.forget(self.id);
    }
}
