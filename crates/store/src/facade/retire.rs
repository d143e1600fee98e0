//! Retirement: when the journal is longer than its budget, live messages in its oldest segment move to the queues' own
//! segments, and the file is overwritten.
//!
//! Settled positions are written to the segments' files, and messages are dropped with a retired file, only once the
//! records of these events are on disk: a dead-lettered message is on disk in its new queue before it is removed here.
//!
//! An unreadable message is logged, counted, and dropped: otherwise it would prevent the journal from shrinking, and so
//! fill the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::StoreError;
use super::brake::Brake;
use super::inventory::InventoryWriter;
use super::mover_thread::MoverNotifier;
use super::queue_storage::{QueueStorage, StoredQueues};
use super::settings::StoreSettings;
use crate::journal::{
    JournalSegment, LiveMessage, Lsn, MessageRef, OpenError, QueueLog, ReadError, RetireError,
};
use crate::pages::{QueueSegments, Record};

/// Retires the journal's segments. Each store has one.
pub(super) struct Mover {
    stored_queues: Arc<StoredQueues>,
    /// Number of segments that the journal may have.
    budget: usize,
    weigh: fn(&[u8]) -> u32,
    brake: Arc<Brake>,
    inventory_writer: InventoryWriter,
    /// The message that the disk failed to read, and the number of failed attempts in a row.
    refused: Option<(MessageRef, u32)>,
    /// The oldest segment, if the copies of its messages did not fit: its first LSN, its live messages, and the bytes that
    /// were free above the limit. Updated by each check.
    unfit: Option<(Lsn, u64, u64)>,
}

/// Outcome of a retirement step.
#[derive(Debug)]
pub enum Retirement {
    /// The journal is within its budget, or the oldest segment has to wait for space or for consumers.
    Idle,
    /// The oldest segment was retired.
    Done,
    /// The oldest segment is still needed: try again later.
    Busy,
    /// A step failed without loss: try again later.
    Failed(StoreError),
}

impl Mover {
    pub(super) fn new(
        stored_queues: Arc<StoredQueues>,
        brake: Arc<Brake>,
        inventory_writer: InventoryWriter,
        settings: &StoreSettings,
    ) -> Self {
        let (budget, weigh) = (settings.journal_segments.max(1), settings.weigh);
        Self { stored_queues, budget, weigh, brake, inventory_writer, refused: None, unfit: None }
    }

    /// Receives the length of the journal.
    pub(super) fn brake(&self) -> &Arc<Brake> {
        &self.brake
    }

    /// Notifies the thread of work, and tells it when to stop.
    pub(super) fn notifier(&self) -> &Arc<MoverNotifier> {
        &self.stored_queues.notifier
    }

    /// Retires the oldest segment if there are too many. `wait` returns whether the log is on disk up to an LSN, and may
    /// block until it is.
    pub(super) fn step(&mut self, mut wait: impl FnMut(Lsn) -> bool) -> Retirement {
        let outcome = self.retire(&mut wait).unwrap_or_else(Retirement::Failed);
        // A segment whose messages do not fit has to wait for consumers.
        let journal = &self.stored_queues.journal;
        let segments = journal.length_in_segments();
        let waits = journal.is_short() || segments > self.budget;
        let idle = match outcome {
            Retirement::Failed(_) => true,
            Retirement::Idle => waits,
            Retirement::Done | Retirement::Busy => false,
        };
        self.brake.update_after_attempt(segments, idle);
        outcome
    }

    fn retire(&mut self, wait: &mut dyn FnMut(Lsn) -> bool) -> Result<Retirement, StoreError> {
        let stored_queues = self.stored_queues.clone();
        let journal = &stored_queues.journal;
        // First, since everything else may fail for lack of the space that this frees.
        let short = journal.measure_space();
        if short {
            journal.leave_large_segment();
        }
        self.sweep()?;
        self.inventory_writer.list_new_files(journal)?;
        let over = journal.length_in_segments() > self.budget;
        let segments = journal.segments();
        let oldest = segments.first().filter(|_| over || short);
        if over && !short && oldest.is_some_and(|oldest| !oldest.sealed) {
            return Ok(Retirement::Busy);
        }
        let fits = over && oldest.is_some_and(|oldest| self.fits(*oldest));
        let Some(oldest) = oldest.filter(|oldest| oldest.sealed && (fits || self.frees(**oldest))) else {
            if over || short {
                self.persist_settled(wait)?;
            }
            return Ok(Retirement::Idle);
        };
        if oldest.live > 0 {
            for (log, live) in journal.live_messages(*oldest) {
                // Other threads write, too.
                if fits && journal.space_above_limit() < most_copied(*oldest, live.len() as u64) {
                    return Ok(Retirement::Idle);
                }
                // Messages that are not listed were settled, and the copies will reflect that.
                if !wait(journal.end()) {
                    return Ok(Retirement::Busy);
                }
                self.move_out(&log, &live)?;
            }
        }
        if !self.persist_settled(wait)? {
            return Ok(Retirement::Busy);
        }
        let needed = journal.segments().first().is_none_or(|now| now.first != oldest.first || now.live > 0);
        if needed || !wait(journal.end()) {
            return Ok(Retirement::Busy);
        }
        // After a gap that `store repair` has accepted, the log continues at a higher LSN than the oldest segment's end.
        let next = journal.segments().get(1).map_or(oldest.end, |next| next.first);
        self.inventory_writer.evict(journal, next)?;
        match journal.retire(*oldest) {
            Ok(()) => Ok(Retirement::Done),
            Err(RetireError::Busy(_)) => Ok(Retirement::Busy),
            Err(RetireError::Disk(error)) => Err(OpenError::Disk(error).into()),
        }
    }

    /// Makes settled positions durable in the queues' segments, and removes segments without live messages. Returns `false`
    /// if the log is not on disk as far as that requires.
    fn persist_settled(&mut self, wait: &mut dyn FnMut(Lsn) -> bool) -> Result<bool, StoreError> {
        let journal = &self.stored_queues.journal;
        let stored_queues = self.stored_queues.with_segments();
        let mut dead = HashMap::new();
        for storage in &stored_queues {
            let files = storage.segments().map(QueueSegments::dead_files).unwrap_or_default();
            if !files.is_empty() {
                self.inventory_writer.delete(storage.log.id(), &files);
                dead.insert(storage.log.id(), files);
            }
        }
        self.inventory_writer.commit()?;
        for storage in stored_queues {
            storage.catch_up();
            let Some(segments) = storage.segments().filter(|_| !storage.is_forgotten()) else { continue };
            let dead = dead.get(&storage.log.id());
            let may_remove = |sequence| dead.is_some_and(|dead| dead.contains(&sequence));
            if !segments.persist_settled_if(may_remove, || wait(journal.end()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the files of deleted queues. After a failure the next call continues.
    fn sweep(&mut self) -> Result<(), StoreError> {
        let mut gone = self.stored_queues.take_forgotten();
        gone.iter().for_each(|storage| self.inventory_writer.delete_all(storage.log.id()));
        let mut outcome = self.inventory_writer.commit();
        while let (Ok(()), Some(storage)) = (&outcome, gone.last()) {
            outcome = storage.segments().map_or(Ok(()), QueueSegments::remove).map_err(StoreError::from);
            if outcome.is_ok() {
                gone.pop();
            }
        }
        self.stored_queues.put_forgotten_back(gone);
        outcome
    }

    /// Whether copying a segment's messages, once per queue, leaves as much space above the limit as the segment takes.
    fn fits(&mut self, oldest: JournalSegment) -> bool {
        let free = self.stored_queues.journal.space_above_limit();
        // The messages are not read again unless more space is available than the last time.
        if self
            .unfit
            .is_some_and(|(first, live, most)| (first, live) == (oldest.first, oldest.live) && free <= most)
        {
            return false;
        }
        let fits = self.copies_fit(oldest, free.saturating_sub(length(oldest)));
        self.unfit = (!fits).then_some((oldest.first, oldest.live, free));
        fits
    }

    /// Whether the copies of a segment's messages take less than `space` bytes.
    fn copies_fit(&self, oldest: JournalSegment, space: u64) -> bool {
        let journal = &self.stored_queues.journal;
        let copies = journal.queues_with_messages() * length(oldest) + oldest.live * RECORD;
        if oldest.live == 0 || copies < space {
            return true;
        }
        // The bytes that the live ones take: others may have been settled. Each is read once, however many queues have it.
        let mut reader = journal.reader(READ_AHEAD);
        let (mut lengths, mut copies) = (HashMap::new(), 0);
        for (_, live) in journal.live_messages(oldest) {
            if self.notifier().is_stopping() {
                return false;
            }
            for LiveMessage { message, .. } in live {
                // Messages that cannot be read now are handled when they are moved.
                let read = || reader.read(message).map_or(0, |payload| payload.len() as u64) + RECORD;
                copies += *lengths.entry(message.to_u64()).or_insert_with(read);
                if copies >= space {
                    return false;
                }
            }
        }
        true
    }

    /// Whether retiring a segment frees much more than the copies of its messages take.
    fn frees(&self, oldest: JournalSegment) -> bool {
        let journal = &self.stored_queues.journal;
        let most = length(oldest) / MAX_COPIED_PART;
        if oldest.live == 0 || oldest.live > most / RECORD {
            return oldest.live == 0;
        }
        let mut reader = journal.reader(READ_AHEAD);
        let mut bytes = 0;
        for (_, live) in journal.live_messages(oldest) {
            for message in live {
                // Messages that cannot be read now are handled when they are moved.
                bytes += reader.read(message.message).map_or(0, |payload| payload.len() as u64) + RECORD;
                if bytes > most {
                    return false;
                }
            }
        }
        journal.free_space() / 2 > bytes
    }

    /// Copies messages of a queue to its segments. After a failure the next attempt lists the live messages again, and
    /// skips those already copied.
    fn move_out(&mut self, log: &QueueLog, live: &[LiveMessage]) -> Result<(), StoreError> {
        let Some(storage) = self.stored_queues.find(log.id()) else { return Ok(()) };
        let stored_queues = self.stored_queues.clone();
        let journal = &stored_queues.journal;
        let segments = stored_queues.segments(&storage);
        let mut reader = journal.reader(READ_AHEAD);
        let mut moved = Vec::with_capacity(live.len());
        for LiveMessage { position, message, expires, deliveries } in live {
            if self.notifier().is_stopping() {
                return Ok(());
            }
            let payload = match reader.read(*message) {
                Ok(payload) => payload,
                Err(error) if self.stops_retrying(*message, &error) => {
                    tracing::error!(%error, queue = log.id().0, position, "unreadable message dropped");
                    journal.figures().unreadable.fetch_add(1, Ordering::Relaxed);
                    moved.push((*position, *deliveries));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let record = Record {
                position: *position,
                expires: (*expires != 0).then_some(*expires),
                deliveries: *deliveries,
                transient: false,
                weight: (self.weigh)(payload),
                payload,
            };
            segments.append(&[record]).map_err(|failed| failed.error)?;
            moved.push((*position, *deliveries));
        }
        segments.sync()?;
        self.inventory_writer.list_segments(log.id(), segments.files_on_disk());
        storage.moved(journal, &moved);
        self.remove_if_forgotten(&storage)
    }

    /// Whether to stop trying to read a message.
    fn stops_retrying(&mut self, message: MessageRef, error: &ReadError) -> bool {
        let asked = match self.refused {
            Some((refused, times)) if refused == message => times + 1,
            _ => 1,
        };
        self.refused = Some((message, asked));
        matches!(error, ReadError::Damaged { .. }) || asked >= MAX_ATTEMPTS
    }

    /// The queue may have been forgotten before it had files.
    fn remove_if_forgotten(&mut self, storage: &QueueStorage) -> Result<(), StoreError> {
        let Some(segments) = storage.segments().filter(|_| storage.is_forgotten()) else { return Ok(()) };
        self.inventory_writer.delete_all(storage.log.id());
        self.inventory_writer.commit()?;
        Ok(segments.remove()?)
    }
}

/// Bytes of a segment's records.
fn length(segment: JournalSegment) -> u64 {
    segment.end.0 - segment.first.0
}

/// Upper bound for the bytes of one queue's copies from a segment, if it has `messages` live messages there.
fn most_copied(segment: JournalSegment, messages: u64) -> u64 {
    length(segment) + messages * RECORD
}

/// While space is short, a segment is retired early if at most one part in this many has to be copied.
const MAX_COPIED_PART: u64 = 4;
/// Bytes that a message takes in a queue's segment besides its payload.
const RECORD: u64 = 32;
/// Read-ahead in the journal, which is read in order: few calls, and few wasted bytes.
const READ_AHEAD: usize = 256 << 10;
/// Including the pauses, well over half a minute for a disk to recover.
const MAX_ATTEMPTS: u32 = 16;
