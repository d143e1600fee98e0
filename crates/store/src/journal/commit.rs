//! Rounds: a round writes the pending records to disk and wakes their waiters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use super::address::Lsn;
use super::pending::Group;
use super::record::JournalRecordKind;
use super::writer::JournalWriter;
use super::{Failing, Journal};
use crate::WaitList;
use crate::disk::is_full;

/// Additional work of each round.
pub trait Hooks: Send {
    /// Called after a round has taken its records and before it writes them, so that everything the hook makes durable
    /// precedes them. A message in a new queue is thus never on disk before the queue.
    ///
    /// # Errors
    /// The round fails, and is repeated.
    fn before_sync(&mut self) -> io::Result<()>;

    /// Whether [`Self::before_sync`] has nothing to do now.
    fn is_idle(&self) -> bool;
}

/// No additional work.
impl Hooks for () {
    fn before_sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn is_idle(&self) -> bool {
        true
    }
}

/// Runs the rounds of a journal, one with each [`Committer::step`]. A journal has one; see [`Committer::start`].
pub struct Committer {
    pub(super) journal: Arc<Journal>,
    writer: JournalWriter,
    hooks: Box<dyn Hooks>,
    /// Files of the log after the last round.
    files: usize,
}

/// The outcome of a step.
#[derive(Debug)]
pub enum CommitOutcome {
    /// There was nothing to do.
    Idle,
    /// Everything gathered before the step is on disk.
    Committed,
    /// Nothing more is on disk. The next step retries the same group in another file; pause before it.
    Failed(io::Error),
}

impl Committer {
    pub(super) fn new(journal: Arc<Journal>, writer: JournalWriter, hooks: Box<dyn Hooks>) -> Self {
        let files = journal.files.read().len();
        Self { journal, writer, hooks, files }
    }

    /// The journal that this committer writes.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Runs one round: takes the pending records, calls the hook, writes, syncs, and wakes the waiters. After a failure it
    /// continues with the group that failed.
    pub fn step(&mut self) -> CommitOutcome {
        let Some(group) = self.gather() else { return CommitOutcome::Idle };
        match self.commit(&group) {
            Ok(()) => {
                self.finish(group);
                CommitOutcome::Committed
            }
            Err(error) => {
                self.journal.failed(&error);
                CommitOutcome::Failed(error)
            }
        }
    }

    /// Whether a round of this number of bytes would only write and sync them: it starts no file, and the hook has nothing
    /// to do.
    pub(super) fn is_quick(&self, bytes: u64) -> bool {
        self.hooks.is_idle() && self.writer.continues(bytes)
    }

    /// Writes the remaining records and a mark after them, which distinguishes damage to earlier records from a torn end.
    ///
    /// # Errors
    /// If something cannot be written; it may be called again.
    pub fn close(&mut self) -> io::Result<()> {
        let mut marked = false;
        loop {
            match self.step() {
                CommitOutcome::Failed(error) => return Err(error),
                CommitOutcome::Committed => {}
                CommitOutcome::Idle if marked => return Ok(()),
                CommitOutcome::Idle => {
                    marked = true;
                    self.journal.pending.lock().put(JournalRecordKind::Mark, |_| {});
                }
            }
        }
    }

    fn gather(&mut self) -> Option<Arc<Group>> {
        let _nothing_under_way = self.journal.rounds.write();
        let mut pending = self.journal.pending.lock();
        if let Some(failed) = pending.flight.clone() {
            return Some(failed);
        }
        if pending.is_empty() && !pending.demanded {
            return None;
        }
        pending.demanded = false;
        Some(pending.take())
    }

    fn commit(&mut self, group: &Group) -> io::Result<()> {
        self.hooks.before_sync()?;
        let journal = &self.journal;
        let from = journal.durable().0.max(group.base);
        let before = from;
        let began = Instant::now();
        self.writer.write(group, from, |reached| {
            journal.durable.store(reached, Ordering::Release);
        })?;
        // A round that only runs its hook has nothing to sync.
        if from < group.end() {
            journal.figures.count_sync(began.elapsed());
        }
        journal.figures.rounds.fetch_add(1, Ordering::Relaxed);
        journal.figures.bytes.fetch_add(group.end() - before, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&mut self, group: Arc<Group>) {
        let journal = &self.journal;
        let end = group.end();
        let mut pending = journal.pending.lock();
        pending.flight = None;
        let has_capacity = pending.bytes() <= journal.pending_limit();
        let for_capacity = if has_capacity { pending.for_capacity.take() } else { WaitList::default() };
        drop(pending);
        journal.waiters.reach(end);
        for_capacity.wake();
        journal.recovered();
        let before = std::mem::replace(&mut self.files, journal.files.read().len());
        if before < self.files
            && let Some(waiter) = journal.new_segment.get()
        {
            waiter.wake();
        }
        // If a reader still uses the group, the buffer is freed with it.
        if let Ok(group) = Arc::try_unwrap(group) {
            journal.pending.lock().reuse_buffer(group);
        }
    }
}

impl Journal {
    /// End of the durable part of the log: all records that end at or before this LSN are on disk.
    pub fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    /// Since when and why nothing can be written; `None` while writing works. Nothing is confirmed meanwhile.
    pub fn failing(&self) -> Option<Failing> {
        self.failing.lock().clone()
    }

    fn failed(&self, error: &io::Error) {
        let mut failing = self.failing.lock();
        let now = failing.get_or_insert_with(|| {
            tracing::error!(%error, "journal write failed: confirms of persistent messages suspended");
            Failing { since: SystemTime::now(), error: String::new(), full: false, attempts: 0 }
        });
        now.error = error.to_string();
        now.full = is_full(error);
        now.attempts += 1;
        if now.full {
            self.spares.give_back();
            // The first failure may come from growing a file; the next attempt gets a preallocated one.
            if now.attempts > 1 {
                self.spares.release_reserve();
            }
        }
        self.figures.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn recovered(&self) {
        if self.failing.lock().take().is_some() {
            tracing::info!("journal writes resumed");
        }
    }
}
