//! Lists the store's files, so that the next start detects a file that is missing or truncated. Otherwise the remaining
//! data would look complete.
//!
//! The list is stored in the catalogue. A file is added once its content is on disk, and before the journal drops the only
//! other copy of that. It is removed from the list, durably, before the file is deleted. So there may be more files than
//! listed, never fewer.
//!
//! | key | value |
//! |---|---|
//! | `journal` | first LSN that is needed; LSN up to which all were on disk; first LSN and number of each file |
//! | queue and number of a segment | bytes of the segment's file that were on disk |
//!
//! Numbers have eight bytes, in big-endian order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::StoreError;
use crate::catalogue::{Catalogue, CatalogueError, Change, Section, Ticket};
use crate::journal::{self, Journal, JournalFiles, Lsn, QueueId};

/// The list of files.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) journal: Option<JournalFiles>,
    /// Length in bytes, by queue and number of the segment.
    segments: BTreeMap<(u64, u64), u64>,
}

impl Inventory {
    /// Reads the list from the catalogue; empty in a directory of an earlier version.
    ///
    /// # Errors
    /// A catalogue that cannot be read.
    pub(super) fn read(catalogue: &Catalogue) -> Result<Self, CatalogueError> {
        let mut inventory = Self::default();
        catalogue.scan(Section::StoreFiles, |key, value| inventory.take(key, value))?;
        Ok(inventory)
    }

    /// Adds an entry of the catalogue.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) {
        let value = numbers(value);
        if key == JOURNAL {
            if let [first, end, files @ ..] = &value[..] {
                let files = files.chunks_exact(2).map(|pair| (Lsn(pair[0]), pair[1])).collect();
                self.journal = Some(JournalFiles { first: Lsn(*first), end: Lsn(*end), files });
            }
        } else if let ([queue, sequence], [bytes]) = (&numbers(key)[..], &value[..]) {
            self.segments.insert((*queue, *sequence), *bytes);
        }
    }

    /// Adds missing records to the report about a journal.
    pub(super) fn compare_journal(&self, mut found: journal::JournalReport) -> journal::JournalReport {
        self.journal.iter().for_each(|promised| found.compare(promised));
        found
    }

    /// Queues that have segments.
    pub(super) fn queues(&self) -> impl Iterator<Item = u64> {
        self.segments.keys().map(|(queue, _)| *queue)
    }

    /// A queue's segments and their minimum lengths in bytes.
    pub(super) fn segments_of(&self, queue: u64) -> impl Iterator<Item = (u64, u64)> {
        let all = self.segments.range((queue, 0)..=(queue, u64::MAX));
        all.map(|((_, sequence), bytes)| (*sequence, *bytes))
    }

    /// Adds the journal's files to the list; returns `None` if it already has them.
    pub(super) fn list_journal(&mut self, files: JournalFiles) -> Option<Change> {
        if self.journal.as_ref() == Some(&files) {
            return None;
        }
        let pairs = files.files.iter().flat_map(|(first, sequence)| [first.0, *sequence]);
        let value = bytes([files.first.0, files.end.0].into_iter().chain(pairs));
        self.journal = Some(files);
        Some(Change::put(Section::StoreFiles, JOURNAL.to_vec(), value))
    }

    /// Adds segments of a queue, with their length in bytes on disk, to the list.
    pub(super) fn list_segments(&mut self, queue: u64, found: Vec<(u64, u64)>) -> Vec<Change> {
        let new = found.into_iter().filter(|&(sequence, length)| {
            self.segments.insert((queue, sequence), length).is_none_or(|before| before != length)
        });
        let put =
            |(sequence, length)| Change::put(Section::StoreFiles, bytes([queue, sequence]), bytes([length]));
        new.map(put).collect()
    }

    /// Removes segments that will be deleted from the list.
    pub(super) fn delete(&mut self, queue: u64, sequences: &[u64]) -> Vec<Change> {
        let known = sequences.iter().filter(|sequence| self.segments.remove(&(queue, **sequence)).is_some());
        known.map(|sequence| Change::delete(Section::StoreFiles, bytes([queue, *sequence]))).collect()
    }
}

/// Maintains the list while the store is open. Owned by the mover, which also removes files.
pub(super) struct InventoryWriter {
    catalogue: Arc<Catalogue>,
    inventory: Inventory,
    /// Changes not yet passed to the catalogue.
    changes: Vec<Change>,
    /// Ticket of the last change that was passed to it.
    noted: Ticket,
}

impl InventoryWriter {
    pub(super) fn new(catalogue: Arc<Catalogue>, inventory: Inventory, changes: Vec<Change>) -> Self {
        Self { catalogue, inventory, changes, noted: Ticket::default() }
    }

    /// Lists the journal's files if they have changed, and how far they are on disk.
    ///
    /// # Errors
    /// If the catalogue cannot be written.
    pub(super) fn list_new_files(&mut self, journal: &Journal) -> Result<(), StoreError> {
        let found = journal.files_on_disk(None, false);
        let known = self.inventory.journal.as_ref();
        let (first, files) = known.map_or((Lsn(0), &[][..]), |known| (known.first, known.files.as_slice()));
        if files != found.files || found.first < first {
            self.changes.extend(self.inventory.list_journal(found));
        }
        self.commit()
    }

    /// Records that the journal is about to start only at `first`, and commits that together with the list of all copies of
    /// earlier messages.
    ///
    /// # Errors
    /// The catalogue cannot be written. The files must not be removed then.
    pub(super) fn evict(&mut self, journal: &Journal, first: Lsn) -> Result<(), StoreError> {
        self.changes.extend(self.inventory.list_journal(journal.files_on_disk(Some(first), false)));
        self.commit()
    }

    /// Lists segments of a queue that are on disk.
    pub(super) fn list_segments(&mut self, queue: QueueId, found: Vec<(u64, u64)>) {
        self.changes.extend(self.inventory.list_segments(queue.0, found));
    }

    /// Removes segments from the list that will be deleted after the next [`InventoryWriter::commit`].
    pub(super) fn delete(&mut self, queue: QueueId, sequences: &[u64]) {
        self.changes.extend(self.inventory.delete(queue.0, sequences));
    }

    /// Removes all segments of a queue from the list.
    pub(super) fn delete_all(&mut self, queue: QueueId) {
        let all: Vec<_> = self.inventory.segments_of(queue.0).map(|(sequence, _)| sequence).collect();
        self.delete(queue, &all);
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// If the catalogue cannot be written. Call it again then.
    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        if !self.changes.is_empty() {
            self.noted = self.catalogue.note(std::mem::take(&mut self.changes));
        }
        if !self.catalogue.is_committed(self.noted) {
            self.catalogue.commit_pending()?;
        }
        Ok(())
    }
}

fn bytes(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_be_bytes).collect()
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        .filter_map(|eight| eight.first_chunk().map(|eight| u64::from_be_bytes(*eight)))
        .collect()
}

const JOURNAL: &[u8] = b"journal";
