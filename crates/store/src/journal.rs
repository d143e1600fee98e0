//! The journal: one append-only log for the messages of all durable queues, and for the events that affect them.
//!
//! - Appending ([`Journal::append`], [`Journal::enqueue`], [`Journal::settle`], [`Journal::delivered`]) copies into
//!   memory and returns at once. A [`Committer`] writes the pending records, syncs, and wakes every caller that
//!   [waits](Journal::wait): everything appended during one sync is in the next group. A session that is the only
//!   waiter runs a round itself while the disk is fast ([`RoundsInTurns`]).
//! - An LSN is a number of bytes since the log began. The log lies in segment files; the oldest is retired once its
//!   messages are settled or live elsewhere, and its file is overwritten.
//! - After a failed write or sync, nothing of the group counts as written, and all of it goes to a new file. That file
//!   starts at the LSN up to which the old one is known to be good. Where files overlap, the later one counts.
//! - [`open`] reads it all back. A torn end is cut off; damage before it is an error, or discarded by [`repair`].
//!
//! Neither a queue's index nor the pending records are locked during disk operations (ARCHITECTURE.md, "Lock order"). An
//! enqueue record is appended under the lock of the queue that it is for, so a queue's positions ascend.

mod address;
mod commit;
mod in_turn;
mod index;
mod pending;
mod promise;
mod ranges;
mod reader;
mod record;
mod recovery;
mod retire;
mod scan;
mod segment;
mod space;
mod spares;
#[cfg(test)]
mod tests;
mod thread;
mod varint;
mod writer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use smallvec::SmallVec;
use sync::work::Deferred;
use sync::{Condvar, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard};

pub use address::{Entry, Lsn, MessageRef, QueueId, Range};
pub use commit::{CommitOutcome, Committer, Hooks};
pub use in_turn::RoundsInTurns;
pub use index::LiveMessage;
pub(crate) use promise::JournalFiles;
pub use reader::{JournalReader, ReadError};
pub use recovery::{JournalQueue, OpenError, RecoveredJournal, check, open, repair};
pub use retire::{JournalSegment, RetireError};
pub use scan::{JournalReport, Problem, Torn};
pub(crate) use segment::has_segments;
pub use thread::{RoundLoop, RunningJournal};

use crate::waiters::{Waiter, Waiters};
use index::JournalIndex;
use pending::PendingRecords;
use record::{JournalRecordKind, put_ranges, put_transfer};
use segment::SharedFile;
use space::Space;
use spares::{Preallocation, Spares};
use writer::LogFiles;

/// A guard of the records that wait for the committer.
type PendingGuard<'a> = MutexGuard<'a, PendingRecords, { Rank::JournalRecords as u8 }>;

/// Holds records together in one round, see [`Journal::begin_ordered_round`].
pub type RoundGuard<'a> = RwLockReadGuard<'a, (), { Rank::JournalRounds as u8 }>;

/// A journal. Its methods are thread-safe; a [`Committer`] does the writing.
pub struct Journal {
    settings: JournalSettings,
    incarnation: u64,
    /// End of the log when it was opened.
    opened_at: Lsn,
    /// Locked for writing while a round takes the pending records, see [`Journal::begin_ordered_round`].
    rounds: RwLock<(), { Rank::JournalRounds as u8 }>,
    pending: Mutex<PendingRecords, { Rank::JournalRecords as u8 }>,
    /// The committer waits on this for work.
    work: Condvar,
    waiters: Waiters,
    durable: AtomicU64,
    files: Arc<LogFiles>,
    spares: Arc<Spares>,
    space: Arc<Space>,
    queues: Mutex<HashMap<QueueId, Arc<QueueLog>>, { Rank::Leaf as u8 }>,
    failing: Mutex<Option<Failing>, { Rank::Leaf as u8 }>,
    figures: JournalCounters,
    /// The round that a session runs itself, once the committer has been started.
    in_turn: OnceLock<Arc<dyn Deferred>>,
    /// Woken when the log has started another segment.
    new_segment: OnceLock<Arc<dyn Waiter>>,
}

/// The journal's state of a queue, referenced by the queue.
pub struct QueueLog {
    id: QueueId,
    index: Mutex<JournalIndex, { Rank::QueueIndex as u8 }>,
}

/// Messages that move from one queue to others, from the first [`Journal::enqueue_in_transfer`] to [`Journal::transfer`].
#[derive(Debug, Default)]
pub struct Transfer {
    /// The records of the messages that enter.
    enqueued: SmallVec<[Lsn; 4]>,
}

/// Sizes of the journal, in bytes on disk and in memory.
#[derive(Debug, Clone, Copy)]
pub struct JournalSettings {
    /// Bytes of a segment file.
    pub segment_size: u64,
    /// No message is accepted while more bytes than this are pending. The same limit applies to definitions.
    pub pending_limit: usize,
    /// Conditions under which a session runs a round itself.
    pub in_turn: RoundsInTurns,
}

/// Writing the log has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Time of the first failure.
    pub since: SystemTime,
    /// The file system's last error.
    pub error: String,
    /// Whether the last error was that the disk is full.
    pub full: bool,
    /// Number of failed attempts to write.
    pub attempts: u64,
}

/// Too many bytes are pending: see [`Journal::wait_for_capacity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Counters since the start.
#[derive(Debug, Default)]
pub struct JournalCounters {
    /// Groups that were written and synced.
    pub rounds: AtomicU64,
    /// Bytes that were written.
    pub bytes: AtomicU64,
    /// Attempts to write or sync that failed.
    pub failures: AtomicU64,
    /// Messages lost because they were unreadable when their segment was retired.
    pub unreadable: AtomicU64,
    /// Average duration of recent syncs, in nanoseconds.
    sync_time: AtomicU64,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self { segment_size: SEGMENT_SIZE, pending_limit: PENDING_LIMIT, in_turn: RoundsInTurns::default() }
    }
}

impl JournalCounters {
    /// Moving average of the time to write and sync a round, in which one round has a weight of an eighth.
    fn sync_time(&self) -> Duration {
        Duration::from_nanos(self.sync_time.load(Ordering::Relaxed))
    }

    /// Counts a round that took this time to write and sync.
    fn count_sync(&self, took: Duration) {
        let (before, took) = (self.sync_time.load(Ordering::Relaxed), took.as_nanos() as u64);
        self.sync_time.store(before - before / SYNCS_AVERAGED + took / SYNCS_AVERAGED, Ordering::Relaxed);
    }
}

impl Transfer {
    /// Whether no queue with persistent messages has received any.
    pub fn is_empty(&self) -> bool {
        self.enqueued.is_empty()
    }
}

impl Journal {
    /// Appends a message, given in parts. Its segment stays until the message has reached its queues: the caller must
    /// pass the message to [`Journal::enqueue`] with `last` set once, or else to [`Journal::release`].
    ///
    /// [`Full`] if too many bytes are pending; nothing was appended.
    ///
    /// # Panics
    /// If the message has 4 GiB or more.
    pub fn append(&self, parts: &[&[u8]]) -> Result<MessageRef, Full> {
        if self.has_capacity() { Ok(self.append_regardless(parts).0) } else { Err(Full) }
    }

    /// [Appends](Journal::append) a message even if too many bytes are pending, and returns whether they are. For callers
    /// that already have a message and can neither retain it nor make its sender wait.
    ///
    /// # Panics
    /// If the message has 4 GiB or more.
    pub(crate) fn append_regardless(&self, parts: &[&[u8]]) -> (MessageRef, bool) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(u32::try_from(len).is_ok(), "a message of 4 GiB");
        let mut hasher = crc32fast::Hasher::new();
        parts.iter().for_each(|part| hasher.update(part));
        let crc = hasher.finalize();
        let mut pending = self.pending.lock();
        let lsn = pending.put_message(parts, len, crc);
        let full = pending.bytes() > self.pending_limit();
        self.nudge(pending);
        (MessageRef::from_u64(lsn), full)
    }

    /// Whether [`Journal::append`] accepts messages.
    pub fn has_capacity(&self) -> bool {
        self.pending.lock().bytes() <= self.pending_limit()
    }

    /// Adds messages to a queue, at ascending positions above all earlier ones. Call it under the queue's own lock. Returns
    /// the LSN to [wait](Journal::wait) for; the messages themselves are on disk then too.
    pub fn enqueue(&self, queue: &QueueLog, entries: &[Entry]) -> Lsn {
        let mut index = queue.index.lock();
        let mut pending = self.pending.lock();
        pending.put_enqueue(JournalRecordKind::Enqueue, queue.id, entries);
        let lsn = self.nudge(pending);
        for entry in entries {
            index.push(entry);
        }
        lsn
    }

    /// [Enqueues](Journal::enqueue) messages that leave another queue for this one. After a crash they are here only if the
    /// record of [`Journal::transfer`] with the same transfer is on disk. It must be called.
    pub fn enqueue_in_transfer(&self, queue: &QueueLog, entries: &[Entry], transfer: &mut Transfer) -> Lsn {
        let mut index = queue.index.lock();
        let mut pending = self.pending.lock();
        let record = pending.put_enqueue(JournalRecordKind::EnqueueInTransfer, queue.id, entries);
        // Until the transfer's last record is appended, so that this one is not retired earlier.
        pending.add_live(record);
        transfer.enqueued.push(Lsn(record));
        let lsn = self.nudge(pending);
        for entry in entries {
            index.push(entry);
        }
        lsn
    }

    /// [Settles](Journal::settle) the messages that leave a queue with a transfer, and completes it: after a crash either
    /// all of it has happened or none of it.
    pub fn transfer(&self, queue: &QueueLog, ranges: &[Range], transfer: &Transfer) -> Lsn {
        let messages = queue.take_settled(ranges);
        let mut pending = self.pending.lock();
        let lsn = pending.end();
        let enqueued = &transfer.enqueued;
        pending
            .put(JournalRecordKind::Transfer, |buffer| put_transfer(buffer, lsn, enqueued, queue.id, ranges));
        enqueued.iter().for_each(|record| pending.drop_live(record.0));
        messages.iter().for_each(|message| pending.drop_live(message.to_u64()));
        self.nudge(pending)
    }

    /// Drops the reference to a message that enters no (further) queue.
    pub fn release(&self, message: MessageRef) {
        self.pending.lock().drop_live(message.to_u64());
    }

    /// Removes messages from a queue permanently. Unknown positions (messages that are stored elsewhere, or not persistent)
    /// do no harm, and are reported in [`RecoveredJournal`] if the journal still has the record.
    pub fn settle(&self, queue: &QueueLog, ranges: &[Range]) -> Lsn {
        let messages = queue.take_settled(ranges);
        let mut pending = self.pending.lock();
        pending.put(JournalRecordKind::Settle, |buffer| put_ranges(buffer, queue.id, None, ranges));
        messages.iter().for_each(|message| pending.drop_live(message.to_u64()));
        self.nudge(pending)
    }

    /// Records that messages of a queue were delivered, each `count` times by now.
    pub fn delivered(&self, queue: &QueueLog, ranges: &[Range], count: u32) -> Lsn {
        let mut index = queue.index.lock();
        ranges.iter().for_each(|range| index.delivered(*range, count));
        drop(index);
        let mut pending = self.pending.lock();
        pending.put(JournalRecordKind::Delivered, |buffer| put_ranges(buffer, queue.id, Some(count), ranges));
        self.nudge(pending)
    }

    /// Wakes `waiter` once the log is on disk up to `lsn`, at once if it already is. Starts a round now, or at the end of
    /// this thread's turn if this waiter is the only one.
    pub fn wait(&self, lsn: Lsn, waiter: Arc<dyn Waiter>) {
        self.waiters.wait(lsn.0, Arc::clone(&waiter));
        let mut pending = self.pending.lock();
        if pending.waits(lsn.0) && !self.defer_round(&mut pending, &waiter) {
            self.demand(pending);
        }
    }

    /// Requests a round as soon as possible, to run its hook even if nothing was appended.
    pub(crate) fn demand_round(&self) {
        self.demand(self.pending.lock());
    }

    /// While the guard is held no round takes the pending records, so all records appended under it go to the same round.
    /// Changes queued for [`Hooks::before_sync`] under it are durable before any of these records is written: in that round
    /// at the latest, or already in the previous one if that had taken its records. A crash may thus leave the changes
    /// without the records, or with only the first of them, and never a record without the changes. Hold it briefly, and
    /// never twice in one thread.
    pub fn begin_ordered_round(&self) -> RoundGuard<'_> {
        self.rounds.read()
    }

    /// End of the log when it was opened: anything beyond this that was expected on disk has been lost.
    pub fn opened_at(&self) -> Lsn {
        self.opened_at
    }

    /// LSN of the next record: wait for it to wait for everything appended so far.
    pub fn end(&self) -> Lsn {
        Lsn(self.pending.lock().end())
    }

    /// Wakes `waiter` when [`Journal::append`] accepts messages again; at once if it does.
    pub fn wait_for_capacity(&self, waiter: Arc<dyn Waiter>) {
        let mut pending = self.pending.lock();
        if pending.bytes() > self.pending_limit() {
            pending.for_capacity.add(waiter);
            return;
        }
        drop(pending);
        waiter.wake();
    }

    /// The journal's state of a queue: empty if the queue is new.
    pub fn queue(&self, id: QueueId) -> Arc<QueueLog> {
        let new = || Arc::new(QueueLog { id, index: Mutex::default() });
        self.queues.lock().entry(id).or_insert_with(new).clone()
    }

    /// Drops a queue whose deletion is on disk: its messages are no longer needed. Writes nothing.
    pub fn forget(&self, id: QueueId) {
        let Some(queue) = self.queues.lock().remove(&id) else { return };
        let index = std::mem::take(&mut *queue.index.lock());
        let mut messages = index.from(0).map(|live| live.message.to_u64()).peekable();
        // In steps, since the lock blocks all publishers.
        while messages.peek().is_some() {
            let mut pending = self.pending.lock();
            messages.by_ref().take(FORGOTTEN_AT_ONCE).for_each(|message| pending.drop_live(message));
        }
    }

    /// Reads messages in the order of the log, `read_ahead` bytes at a time.
    pub fn reader(&self, read_ahead: usize) -> JournalReader<'_> {
        JournalReader::new(self, read_ahead)
    }

    /// Reads one message.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&self, message: MessageRef) -> Result<Vec<u8>, ReadError> {
        self.reader(READ_AHEAD).read(message).map(<[u8]>::to_vec)
    }

    /// Bytes that wait to be written.
    pub fn pending_bytes(&self) -> usize {
        self.pending.lock().bytes()
    }

    /// Counters since the start.
    pub fn figures(&self) -> &JournalCounters {
        &self.figures
    }

    /// Prepares a spare segment file, if there is none; the threads of [`Committer::start`] do so by themselves. Returns
    /// `false` if there was one.
    ///
    /// # Errors
    /// The file system's error.
    pub fn prepare_segment(&self) -> std::io::Result<bool> {
        self.spares.prepare(Preallocation::Zeros)
    }

    /// Sets how many bytes of the disk must stay free: no segment that leaves less is prepared or retained for later.
    pub fn set_disk_free_limit(&self, bytes: u64) {
        self.space.set_limit(bytes);
    }

    /// Measures the free space, releases dispensable files of the log if it is short, and returns whether it is.
    pub(crate) fn measure_space(&self) -> bool {
        let short = self.space.measure();
        if short {
            self.spares.give_back();
        }
        self.spares.ensure_reserve();
        short
    }

    /// Whether publishers must wait for space: writes fail, or succeed only in the space reserved for acknowledgements.
    pub(crate) fn needs_space(&self) -> bool {
        self.failing.lock().is_some() || self.spares.is_reserve_used()
    }

    /// Whether space was short at the last measurement.
    pub(crate) fn is_short(&self) -> bool {
        self.space.is_short()
    }

    /// Bytes of disk that may be used without going below the limit.
    pub(crate) fn space_above_limit(&self) -> u64 {
        self.space.above_limit()
    }

    /// Bytes free on the disk.
    pub(crate) fn free_space(&self) -> u64 {
        self.space.free()
    }

    /// Makes the next record start a segment if the current one is larger than a small one, so that it can be retired.
    pub(crate) fn leave_large_segment(&self) {
        let mut pending = self.pending.lock();
        let last = pending.extents().last().map_or(0, |last| last.end - last.first);
        if last > self.space.small_segment() && pending.cut() {
            pending.put(JournalRecordKind::Mark, |_| {});
            self.demand(pending);
        }
    }

    /// Length of the log in segments of the ordinary size, even while space is short and small ones are used.
    pub(crate) fn length_in_segments(&self) -> usize {
        let pending = self.pending.lock();
        if !self.space.is_short() {
            return pending.extents().count();
        }
        let first = pending.extents().next().map_or(pending.end(), |first| first.first);
        usize::try_from((pending.end() - first).div_ceil(self.settings.segment_size)).unwrap_or(usize::MAX)
    }

    fn pending_limit(&self) -> usize {
        let limit = self.settings.pending_limit;
        match self.space.is_short() {
            // Accepted messages must reach the disk, too.
            true => limit.min(usize::try_from(self.space.small_segment()).unwrap_or(limit)),
            false => limit,
        }
    }

    /// Wakes `waiter` whenever the log has started another segment, from the writing thread, as in [`Waiter::wake`].
    pub(crate) fn on_new_segment(&self, waiter: Arc<dyn Waiter>) {
        // There is only one subscriber.
        let _ = self.new_segment.set(waiter);
    }

    fn demand(&self, mut pending: PendingGuard<'_>) {
        if !pending.demanded {
            pending.demanded = true;
            drop(pending);
            self.work.notify_one();
        }
    }

    /// Wakes the committer if it sleeps or many bytes are pending, and returns the end of the log.
    fn nudge(&self, mut pending: PendingGuard<'_>) -> Lsn {
        let lsn = Lsn(pending.end());
        let much = !pending.demanded && pending.waiting() >= EAGER_BYTES;
        if much || pending.asleep && !self.defer_waking() {
            pending.demanded |= much;
            self.notify_committer(pending);
        }
        lsn
    }

    /// Wakes the committer's thread.
    fn notify_committer(&self, mut pending: PendingGuard<'_>) {
        pending.asleep = false;
        drop(pending);
        self.work.notify_one();
    }

    /// The file that contains the record at `lsn`, and the LSN after the file's last byte.
    fn file_of(&self, lsn: u64) -> Option<(SharedFile, u64)> {
        let durable = self.durable().0;
        let files = self.files.read();
        let at = files.partition_point(|file| file.header.first <= lsn).checked_sub(1)?;
        let end = files.get(at + 1).map_or(durable, |next| next.header.first);
        (lsn < end).then(|| (files[at].clone(), end))
    }
}

impl QueueLog {
    /// The message at a position, if the journal has it.
    pub fn get(&self, position: u64) -> Option<LiveMessage> {
        self.index.lock().get(position)
    }

    /// Up to `most` messages from a position on, in order.
    pub fn messages_from(&self, position: u64, most: usize) -> Vec<LiveMessage> {
        self.index.lock().from(position).take(most).collect()
    }

    /// Removes messages from the index, and returns those that the journal had.
    fn take_settled(&self, ranges: &[Range]) -> SmallVec<[MessageRef; 64]> {
        let mut messages = SmallVec::new();
        let mut index = self.index.lock();
        for range in ranges {
            index.settle(*range, |message| messages.push(message));
        }
        messages
    }

    /// How many messages the journal has for the queue.
    pub fn len(&self) -> usize {
        self.index.lock().len()
    }

    /// Whether the journal has nothing for the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Long enough that changing files costs nothing, and short enough for segments to be retired.
const SEGMENT_SIZE: u64 = 64 << 20;
/// A third of a second of the fastest publishing: a sync that takes longer pauses publishers.
const PENDING_LIMIT: usize = 64 << 20;
/// A round starts without a request once this number of bytes is pending.
const EAGER_BYTES: usize = 1 << 20;
/// Weight of the past in the moving average of sync times.
const SYNCS_AVERAGED: u64 = 8;
/// Messages of a deleted queue that are released under one lock: some tens of microseconds.
const FORGOTTEN_AT_ONCE: usize = 4 << 10;
/// Most messages are shorter, so one read suffices.
const READ_AHEAD: usize = 4 << 10;
