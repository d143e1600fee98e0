//! Drives the committer and the mover.

use std::io;
use std::sync::Arc;

use super::inventory::Inventory;
use super::mover_thread::MoverThread;
use super::retire::{Mover, Retirement};
use crate::catalogue::{Catalogue, CatalogueError};
use crate::journal::{self, CommitOutcome, Committer, Hooks, Journal};

/// Runs the rounds of a store, one by one or in a thread. Records gathered during a round are written by the next one.
pub struct Rounds {
    committer: Committer,
    mover: Mover,
    catalogue: Arc<Catalogue>,
}

/// The threads of a store. Dropping it stops them without writing pending records.
pub struct RunningStore {
    mover: MoverThread,
    running: journal::RunningJournal,
    journal: Arc<Journal>,
    catalogue: Arc<Catalogue>,
}

impl Rounds {
    pub(super) fn new(committer: Committer, mover: Mover, catalogue: Arc<Catalogue>) -> Self {
        Self { committer, mover, catalogue }
    }

    /// Commits the catalogue, then writes and syncs the journal's pending records. Does nothing if there is nothing to
    /// write.
    pub fn step(&mut self) -> CommitOutcome {
        self.committer.step()
    }

    /// Retires the oldest segment of the journal if it has too many.
    pub fn retire(&mut self) -> Retirement {
        let Self { committer, mover, .. } = self;
        mover.step(|lsn| {
            if committer.journal().durable() < lsn {
                committer.step();
            }
            committer.journal().durable() >= lsn
        })
    }

    /// Writes all remaining records, as at shutdown.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn close(&mut self) -> io::Result<()> {
        self.committer.close()?;
        note_end(self.committer.journal(), &self.catalogue)
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(self) -> io::Result<RunningStore> {
        let journal = self.committer.journal().clone();
        let running = self.committer.start()?;
        let mover = MoverThread::start(self.mover, journal.clone())?;
        Ok(RunningStore { mover, running, journal, catalogue: self.catalogue })
    }
}

impl RunningStore {
    /// Stops the threads, and writes the remaining records.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn close(self) -> io::Result<()> {
        drop(self.mover);
        self.running.close()?;
        note_end(&self.journal, &self.catalogue)
    }
}

/// Records the end of the log in the catalogue, after all of it was written.
fn note_end(journal: &Journal, catalogue: &Catalogue) -> io::Result<()> {
    catalogue.note(Inventory::default().list_journal(journal.files_on_disk(None, true)));
    catalogue.commit_pending().map_err(as_io)
}

/// Commits definitions in each round.
pub(super) struct Definitions {
    catalogue: Arc<Catalogue>,
    failing: bool,
}

impl Definitions {
    pub(super) fn new(catalogue: Arc<Catalogue>) -> Self {
        Self { catalogue, failing: false }
    }
}

impl Hooks for Definitions {
    fn before_sync(&mut self) -> io::Result<()> {
        match self.catalogue.commit_pending() {
            Ok(()) => {
                self.failing = false;
                Ok(())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(%error, "definitions write failed: declarations suspended");
                }
                Err(as_io(error))
            }
        }
    }

    fn is_idle(&self) -> bool {
        !self.catalogue.has_pending()
    }
}

/// Preserves the information that the disk is full.
fn as_io(error: CatalogueError) -> io::Error {
    match error {
        CatalogueError::Database(redb::Error::Io(error)) => error,
        error => io::Error::other(error),
    }
}
