//! Opens a journal: recovers its contents, or reports why it cannot.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};

use sync::{Condvar, Mutex, RwLock};

use super::address::{Entry, LOG_START, Lsn, MAX_POSITION, MessageRef, QueueId, Range};
use super::commit::{Committer, Hooks};
use super::index::JournalIndex;
use super::pending::PendingRecords;
use super::ranges::RangeSet;
use super::record::{JournalRecordKind, take_enqueue, take_ranges, take_transfer};
use super::scan::{JournalReport, Problem, Scan, ScannedItem, rewrite, scan};
use super::segment::DIR;
use super::space::Space;
use super::spares::Spares;
use super::writer::JournalWriter;
use super::{Journal, JournalCounters, JournalSettings, QueueLog};
use crate::disk::Disk;
use crate::waiters::Waiters;

/// The recovered contents of a journal.
#[derive(Default)]
pub struct RecoveredJournal {
    /// Every queue named by a record, including those deleted since: see `Journal::forget`.
    pub queues: Vec<JournalQueue>,
    /// Findings of the scan.
    pub report: JournalReport,
}

/// The recovered contents of a journal for one queue.
pub struct JournalQueue {
    /// The queue, with its live messages.
    pub queue: Arc<QueueLog>,
    /// All settled positions, ascending, which have to be settled wherever else they are stored.
    pub settled: Vec<Range>,
    /// All recorded deliveries, in order: for messages that are stored elsewhere.
    pub delivered: Vec<(Range, u32)>,
    /// Higher than any position that a record names.
    pub next_position: u64,
}

/// Why a journal was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file system's error.
    #[error("journal: {0}")]
    Disk(#[from] io::Error),
    /// Written by another version of this program.
    #[error("{file}: unsupported format version {version}")]
    UnknownVersion {
        /// Path of the file.
        file: String,
        /// The version it names.
        version: u32,
    },
    /// Records that were once on disk are damaged; [`repair`] discards only those.
    #[error("the journal is damaged ({}): {}", places(.0.problems.len()), list_of(&.0.problems))]
    Damaged(Box<JournalReport>),
}

/// Opens the journal of a data directory. Nothing is written before the first round.
///
/// # Errors
/// See [`OpenError`].
pub fn open(
    disk: Arc<dyn Disk>,
    settings: JournalSettings,
    hooks: Box<dyn Hooks>,
) -> Result<(Committer, RecoveredJournal), OpenError> {
    disk.create_dir(DIR)?;
    let mut replay = Replay::default();
    let mut scan = scan(&*disk, |found| replay.take(found))?;
    if !scan.report.problems.is_empty() {
        return Err(OpenError::Damaged(Box::new(scan.report)));
    }
    let report = std::mem::take(&mut scan.report);
    let (journal, writer) = build(disk, settings, scan);
    let queues = replay.finish(&journal);
    Ok((Committer::new(journal, writer, hooks), RecoveredJournal { queues, report }))
}

/// Reads the journal of a data directory and reports its faults, without changes.
///
/// # Errors
/// If it cannot be read at all.
pub fn check(disk: &dyn Disk) -> Result<JournalReport, OpenError> {
    scan(disk, |_| {}).map(|scan| scan.report)
}

/// Discards damaged records, so that the journal can be opened, and reports them. Intact records are not touched, and of
/// damaged ones only the first bytes are overwritten. A file without a header is kept under another name.
///
/// # Errors
/// If something cannot be read or written.
pub fn repair(disk: &dyn Disk) -> Result<JournalReport, OpenError> {
    let found = scan(disk, |_| {})?;
    let (report, mut fixes) = (found.report, found.fixes);
    // A file that has lost all its records leaves a gap that is detected only once the file is ignored.
    for _ in 0..REPAIR_PASSES {
        for fix in &fixes {
            fix.apply(disk)?;
        }
        fixes = scan(disk, |_| {})?.fixes;
        if fixes.is_empty() {
            break;
        }
    }
    Ok(report)
}

/// After a failed sync the last group may be only in the kernel's memory, even if it can be read. So it is taken back into
/// memory, as if it had just been appended, and is written to the first segment of this run. Until all of it is there, the
/// old copy counts.
fn build(disk: Arc<dyn Disk>, settings: JournalSettings, mut scan: Scan) -> (Arc<Journal>, JournalWriter) {
    let incarnation = scan.incarnation + 1;
    let (mut base, mut tail) = (LOG_START, Vec::new());
    if let Some(last) = scan.files.last() {
        base = scan.tail_first;
        tail = rewrite(&scan.tail, base, last.header.incarnation, incarnation);
    }
    scan.extents.iter_mut().for_each(|extent| extent.end = extent.end.min(base));
    scan.extents.retain(|extent| extent.first < extent.end);
    let space = Arc::new(Space::new(disk.clone(), settings.segment_size));
    let spares = Spares::new(
        disk,
        space.clone(),
        settings.segment_size,
        scan.spares,
        scan.superseded,
        scan.next_sequence,
    );
    let spares = Arc::new(spares);
    let files = Arc::new(super::LogFiles::new(scan.files));
    let repeats_until = base + tail.len() as u64;
    let journal = Journal {
        settings,
        incarnation,
        opened_at: Lsn(repeats_until),
        rounds: RwLock::default(),
        pending: Mutex::new(PendingRecords::new(incarnation, space.clone(), base, tail, scan.extents.into())),
        work: Condvar::new(),
        waiters: Waiters::default(),
        durable: base.into(),
        files: files.clone(),
        spares: spares.clone(),
        space,
        queues: Mutex::default(),
        failing: Mutex::default(),
        figures: JournalCounters::default(),
        in_turn: OnceLock::new(),
        new_segment: OnceLock::new(),
    };
    journal.waiters.reach(base);
    (Arc::new(journal), JournalWriter::new(incarnation, spares, files, repeats_until))
}

#[derive(Default)]
struct Replay {
    queues: HashMap<QueueId, Replayed>,
    entries: Vec<Entry>,
    lost: RangeSet,
    /// Queues and ranges that an incomplete transfer has enqueued, by the LSN of the record.
    unfinished: HashMap<u64, (QueueId, Vec<Range>)>,
    /// LSN of the first record.
    start: Option<u64>,
}

#[derive(Default)]
struct Replayed {
    index: JournalIndex,
    settled: RangeSet,
    delivered: Vec<(Range, u32)>,
    next_position: u64,
}

impl Replay {
    fn take(&mut self, found: ScannedItem<'_>) {
        match found {
            ScannedItem::Lost { from, to } => {
                self.lost.insert(Range { first: from, last: to.max(from + 1) - 1 })
            }
            ScannedItem::Record { lsn, kind, payload } => {
                let start = *self.start.get_or_insert(lsn);
                match kind {
                    JournalRecordKind::Enqueue => drop(self.enqueue(payload, lsn, start)),
                    JournalRecordKind::EnqueueInTransfer => {
                        if let Some(queue) = self.enqueue(payload, lsn, start) {
                            let entered = self.entries.iter().map(|entry| Range::one(entry.position));
                            self.unfinished.insert(lsn, (queue, entered.collect()));
                        }
                    }
                    JournalRecordKind::Settle => self.settle(payload),
                    JournalRecordKind::Transfer => self.transfer(payload, lsn),
                    JournalRecordKind::Delivered => self.deliver(payload),
                    JournalRecordKind::Message | JournalRecordKind::Mark | JournalRecordKind::Skip => {}
                }
            }
        }
    }

    /// Adds the entries of a record to their queue, and returns it. The entries are then in [`Replay::entries`].
    fn enqueue(&mut self, payload: &[u8], lsn: u64, start: u64) -> Option<QueueId> {
        let id = take_enqueue(payload, lsn, &mut self.entries)?;
        let queue = self.queues.entry(id).or_default();
        for entry in &self.entries {
            queue.next_position = queue.next_position.max(entry.position + 1);
            let message = entry.message.to_u64();
            // The messages of a retired segment have been moved to the queue's own segments.
            if (start..lsn).contains(&message) && !self.lost.contains(message) {
                queue.index.push(entry);
            }
        }
        Some(id)
    }

    fn transfer(&mut self, payload: &[u8], lsn: u64) {
        let mut rest = payload;
        let Some(enqueued) = take_transfer(&mut rest, lsn) else { return };
        enqueued.iter().for_each(|record| drop(self.unfinished.remove(&record.0)));
        self.settle(rest);
    }

    /// Undoes transfers that were not complete when the log ended: their messages are still in the source queue.
    fn undo_unfinished(&mut self) {
        for (id, entered) in std::mem::take(&mut self.unfinished).into_values() {
            let queue = self.queues.entry(id).or_default();
            for range in entered {
                queue.index.settle(range, |_| {});
                // Also in the queue's own segments, in case they have it.
                queue.settled.insert(range);
            }
        }
    }

    fn settle(&mut self, payload: &[u8]) {
        let Some((id, _, ranges)) = take_ranges(payload, false) else { return };
        let queue = self.queues.entry(id).or_default();
        for range in ranges {
            queue.index.settle(range, |_| {});
            queue.settled.insert(range);
            queue.next_position = queue.next_position.max((range.last + 1).min(MAX_POSITION));
        }
    }

    fn deliver(&mut self, payload: &[u8]) {
        let Some((id, count, ranges)) = take_ranges(payload, true) else { return };
        let queue = self.queues.entry(id).or_default();
        for range in ranges {
            queue.index.delivered(range, count);
            queue.delivered.push((range, count));
            queue.next_position = queue.next_position.max((range.last + 1).min(MAX_POSITION));
        }
    }

    fn finish(mut self, journal: &Journal) -> Vec<JournalQueue> {
        self.undo_unfinished();
        let mut pending = journal.pending.lock();
        let mut known = journal.queues.lock();
        let mut queues = Vec::with_capacity(self.queues.len());
        for (id, replayed) in self.queues {
            let live = |message: MessageRef| message.to_u64();
            replayed.index.from(0).for_each(|found| pending.add_live(live(found.message)));
            let queue = Arc::new(QueueLog { id, index: Mutex::new(replayed.index) });
            known.insert(id, queue.clone());
            queues.push(JournalQueue {
                queue,
                settled: replayed.settled.iter().collect(),
                delivered: replayed.delivered,
                next_position: replayed.next_position,
            });
        }
        queues.sort_unstable_by_key(|recovered| recovered.queue.id());
        queues
    }
}

fn list_of(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

/// `1 place`, `2 places`.
fn places(count: usize) -> String {
    format!("{count} place{}", if count == 1 { "" } else { "s" })
}

/// Each pass closes the gap before at least one file. More files than this do not lose all their records at once.
const REPAIR_PASSES: usize = 16;
