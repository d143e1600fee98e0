//! Reads messages from wherever they are: pending, being written, or in a segment.

use std::io;
use std::sync::Arc;

use super::Journal;
use super::address::MessageRef;
use super::record::{self, HEADER, JournalRecordKind, RecordHeader, RecordLocation};
use super::segment::{self, DATA_START, SharedFile};

/// Reads messages with read-ahead: the next message is usually close behind.
pub struct JournalReader<'a> {
    journal: &'a Journal,
    read_ahead: usize,
    window: Vec<u8>,
    /// The file from which the window was read, and the LSN of its first byte.
    source: Option<(SharedFile, u64)>,
}

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not in the journal, or no longer: its segment was retired, and it is in the queue's segments.
    #[error("the message is not in the journal")]
    Gone,
    /// Its record is damaged.
    #[error("{file}: damaged record at byte {offset}")]
    Damaged {
        /// Path of the file.
        file: String,
        /// Where the record begins, in bytes.
        offset: u64,
    },
    /// The file system's error.
    #[error("journal: {0}")]
    Disk(#[source] io::Error),
}

impl<'a> JournalReader<'a> {
    pub(super) fn new(journal: &'a Journal, read_ahead: usize) -> Self {
        Self { journal, read_ahead: read_ahead.max(HEADER), window: Vec::new(), source: None }
    }

    /// The message, as it was appended.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&mut self, message: MessageRef) -> Result<&[u8], ReadError> {
        let lsn = message.to_u64();
        if let Some(start) = self.in_window(lsn) {
            return self.payload(lsn, start);
        }
        if self.take_memory(lsn) {
            return self.payload(lsn, 0);
        }
        let (file, end) = self.journal.file_of(lsn).ok_or(ReadError::Gone)?;
        self.load(&file, lsn, end, self.read_ahead)?;
        let place = place(&file, lsn);
        if let Some(header) =
            RecordHeader::parse(&self.window, place).filter(|_| self.in_window(lsn).is_none())
        {
            self.load(&file, lsn, end, header.record_len())?;
        }
        self.payload(lsn, 0)
    }

    /// Offset in the window at which the record at `lsn` begins, if all of it is there.
    fn in_window(&self, lsn: u64) -> Option<usize> {
        let (file, first) = self.source.as_ref()?;
        let start = usize::try_from(lsn.checked_sub(*first)?).ok()?;
        let header = RecordHeader::parse(self.window.get(start..)?, place(file, lsn))?;
        (start + header.record_len() <= self.window.len()).then_some(start)
    }

    /// Copies the record at `lsn` from memory, if it is there.
    fn take_memory(&mut self, lsn: u64) -> bool {
        let pending = self.journal.pending.lock();
        let flight = pending.flight.clone();
        self.source = None;
        self.window.clear();
        if let Some(bytes) = pending.gathered(lsn) {
            self.window.extend_from_slice(record_at(bytes));
            return true;
        }
        drop(pending);
        let Some(group) = flight.filter(|group| (group.base..group.end()).contains(&lsn)) else {
            return false;
        };
        self.window.extend_from_slice(record_at(group.slice(lsn, group.end())));
        true
    }

    fn load(&mut self, file: &SharedFile, lsn: u64, end: u64, bytes: usize) -> Result<(), ReadError> {
        let bytes = bytes.min(usize::try_from(end - lsn).unwrap_or(usize::MAX));
        self.window.resize(bytes, 0);
        self.source = None;
        let offset = DATA_START + lsn - file.header.first;
        let read = file.file.read_at(&mut self.window, offset).map_err(ReadError::Disk)?;
        self.window.truncate(read);
        self.source = Some((file.clone(), lsn));
        Ok(())
    }

    fn payload(&self, lsn: u64, start: usize) -> Result<&[u8], ReadError> {
        let file = self.source.as_ref().map(|(file, _)| file);
        let incarnation = file.map_or(self.journal.incarnation, |file| file.header.incarnation);
        match record::parse(&self.window[start..], RecordLocation { lsn, incarnation }) {
            Some((RecordHeader { kind: JournalRecordKind::Message, .. }, payload)) => Ok(payload),
            Some(_) => Err(ReadError::Gone),
            None => Err(file.map_or(ReadError::Gone, |file| self.why(file, lsn))),
        }
    }

    /// Distinguishes damage from a file that was retired meanwhile, and may already have been overwritten.
    fn why(&self, file: &SharedFile, lsn: u64) -> ReadError {
        match self.journal.file_of(lsn) {
            Some((now, _)) if Arc::ptr_eq(&now, file) => ReadError::Damaged {
                file: segment::path(file.header.sequence),
                offset: DATA_START + lsn - file.header.first,
            },
            _ => ReadError::Gone,
        }
    }
}

fn place(file: &SharedFile, lsn: u64) -> RecordLocation {
    RecordLocation { lsn, incarnation: file.header.incarnation }
}

/// The record at the front of bytes in memory, which are complete and intact. (The caller checks its payload.)
fn record_at(bytes: &[u8]) -> &[u8] {
    let len = bytes.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
    &bytes[..bytes.len().min(HEADER.saturating_add(len))]
}
