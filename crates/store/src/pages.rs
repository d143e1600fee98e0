//! Queue segments: the messages of a queue that have left the journal, or were paged out of memory.
//!
//! Each queue has a directory, `queues/<id>` (durable) or `transient/<id>` (of no use after a restart), with files named
//! after a number that ascends:
//!
//! | file | holds | written |
//! |---|---|---|
//! | `<n>.segment` | up to 8 MiB of records, positions ascending (`record`) | appended to |
//! | `<n>.index` | a sparse index, so that a start does not read bodies (`segment_files`) | whole, when the segment is sealed or a start reads it |
//! | `<n>.settled0`, `<n>.settled1` | which messages are live, and delivery counts | whole, in turn |
//!
//! A segment is sealed when it is full, and no record is added to it any more; when all of its messages are settled it is
//! removed whole. `segment` has the table of its states. A segment has an index only if all of its messages were live when
//! it was sealed, or if a start had to read it and it was long, or damaged and repaired.
//!
//! Invariants:
//! - Synced data is found after a crash, and messages persisted as settled stay settled.
//! - A torn end is cut off only where nothing proves that it was durable (an index, or a later sync mark);
//!   otherwise it is damage, and a start is refused with file and offset.
//! - Memory is a few hundred bytes per segment and 16 per 64 KiB of messages, and open files are few ([`Pages::new`]),
//!   however many queues and messages there are.
//! - Memory and disk have separate locks: `settle` and similar methods never wait for the disk.

mod check;
mod envelope;
mod error;
mod files;
mod marks;
mod persist;
mod positions;
mod queue;
mod read;
mod record;
mod recover;
mod segment;
mod segment_files;
mod survey;
mod walk;
mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use check::{DirectoryReport, SegmentReport};
pub use error::{Damage, PagesError};
pub(crate) use files::SEGMENT_BYTES;
pub use queue::{QueueSegments, Usage};
pub use read::Stored;
pub use record::Record;
pub use recover::{Cut, RecoveredPages, Repair};
pub use survey::Survey;
pub use write::AppendError;

use crate::disk::Disk;
use error::at;
use files::{OpenFiles, Sizes};

/// Whether a queue's segments survive a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// They survive, as far as they are synced.
    Durable,
    /// They do not survive: nothing is ever synced, and the directory is wiped at the start.
    Transient,
}

/// The segments of all queues of a data directory.
#[derive(Clone)]
pub struct Pages {
    files: Arc<OpenFiles>,
}

impl Pages {
    /// The segments on a disk, which together hold at most `open_files` files open, not counting those being written or
    /// read at the moment.
    pub fn new(disk: Arc<dyn Disk>, open_files: usize) -> Self {
        Self::with_segments_of(disk, open_files, SEGMENT_BYTES)
    }

    /// The same with another segment size, in bytes. It may change between starts.
    pub(crate) fn with_segments_of(disk: Arc<dyn Disk>, open_files: usize, segment: u64) -> Self {
        let sizes = Sizes { segment, ..Sizes::default() };
        Self { files: Arc::new(OpenFiles::new(disk, open_files, sizes)) }
    }

    /// Segments for a new queue. Touches no file before the first append.
    pub fn queue(&self, kind: Durability, queue: u64) -> QueueSegments {
        let directory = format!("{}/{queue}", kind.directory());
        QueueSegments::new(self.files.clone(), directory, queue, kind == Durability::Durable)
    }

    /// The segments of a durable queue after a restart. Cuts off torn ends, and removes leftover files.
    ///
    /// # Errors
    /// If files cannot be read, are of an unknown version, or are damaged (unless damage is to be skipped).
    pub fn open(&self, queue: u64, repair: Repair) -> Result<(QueueSegments, RecoveredPages), PagesError> {
        self.queue(Durability::Durable, queue).recover(repair)
    }

    /// The queues that have a directory.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn queues(&self, kind: Durability) -> Result<Vec<u64>, PagesError> {
        let names = self.files.disk().list(kind.directory()).map_err(at(kind.directory()))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// A durable queue's segment that is missing or shorter than it is known to have been, if there is one.
    ///
    /// # Errors
    /// If the directory or a file in it cannot be read.
    pub(crate) fn missing(
        &self,
        queue: u64,
        promised: impl Iterator<Item = (u64, u64)>,
    ) -> Result<Vec<Damage>, PagesError> {
        recover::missing(&self.files, &format!("{}/{queue}", Durability::Durable.directory()), promised)
    }

    /// Removes everything of transient queues. Call it at the start, before using any of them.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub(crate) fn wipe_transient(&self) -> Result<(), PagesError> {
        let directory = Durability::Transient.directory();
        self.files.disk().remove_dir(directory).map_err(at(directory))
    }

    /// Reads everything in a durable queue's directory, which must not be open, and verifies all checksums, without
    /// changes.
    ///
    /// # Errors
    /// If files cannot be read, or are of an unknown version. Damage is not an error: it is in the report.
    pub fn check(&self, queue: u64) -> Result<DirectoryReport, PagesError> {
        check::check(&self.files, &format!("{}/{queue}", Durability::Durable.directory()), queue)
    }
}

/// Directory of the queues whose segments survive a restart.
pub(crate) const DURABLE_DIR: &str = "queues";

impl Durability {
    fn directory(self) -> &'static str {
        match self {
            Self::Durable => DURABLE_DIR,
            Self::Transient => "transient",
        }
    }
}
