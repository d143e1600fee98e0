//! Writes groups into segment files.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::pending::Group;
use super::segment::{DATA_START, JournalFile, SegmentHeader, SharedFile};
use super::spares::Spares;

/// The files of the log, in order; where two overlap, the later one counts.
pub(super) type LogFiles = RwLock<Vec<SharedFile>>;

/// Writes one group after the other. A journal has one.
pub(super) struct JournalWriter {
    pub(super) incarnation: u64,
    pub(super) spares: Arc<Spares>,
    pub(super) files: Arc<LogFiles>,
    /// The current file, and the LSN at which it continues. `None` at first and after a failure: the contents of a file
    /// after a failed sync are unknown, so the same records are written to another one.
    current: Option<Current>,
    /// Records up to this LSN existed at the start, perhaps only in the kernel's memory.
    repeats_until: u64,
}

struct Current {
    file: SharedFile,
    next: u64,
    /// Part of it is on disk, so it is one of the log's files.
    listed: bool,
}

impl JournalWriter {
    pub(super) fn new(
        incarnation: u64,
        spares: Arc<Spares>,
        files: Arc<LogFiles>,
        repeats_until: u64,
    ) -> Self {
        Self { incarnation, spares, files, current: None, repeats_until }
    }

    /// Writes a group from `from` on and reports how far the log is on disk, extent by extent.
    pub(super) fn write(&mut self, group: &Group, from: u64, mut reached: impl FnMut(u64)) -> io::Result<()> {
        let mut at = from;
        while at < group.end() {
            let to = group.chunk_end(at);
            if let Err(error) = self.write_chunk(group, at, to) {
                self.give_up();
                return Err(error);
            }
            reached(to);
            at = to;
        }
        Ok(())
    }

    /// Whether the current file has space for this number of bytes.
    pub(super) fn continues(&self, bytes: u64) -> bool {
        self.current.as_ref().is_some_and(|current| {
            DATA_START + current.next - current.file.header.first + bytes <= current.file.len
        })
    }

    fn write_chunk(&mut self, group: &Group, at: u64, to: u64) -> io::Result<()> {
        let goes_on = self.current.as_ref().is_some_and(|current| current.next == at) && !group.cuts_at(at);
        if !goes_on {
            self.current = None;
            let file = self.begin(at, DATA_START + to - at)?;
            self.current = Some(Current { file, next: at, listed: false });
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        let JournalFile { file, header, .. } = &*current.file;
        file.write_at(group.slice(at, to), DATA_START + at - header.first)?;
        file.sync()?;
        current.next = to;
        if !current.listed {
            current.listed = true;
            self.files.write().push(current.file.clone());
        }
        Ok(())
    }

    /// Starts a segment. Its header is on disk before any record is written: otherwise a later run might use the same
    /// incarnation, and find records of this one.
    fn begin(&self, first: u64, needed: u64) -> io::Result<SharedFile> {
        let (sequence, file, len) = self.spares.take(needed)?;
        let (incarnation, repeats_until) = (self.incarnation, self.repeats_until);
        let header = SegmentHeader { sequence, incarnation, first, previous_end: first, repeats_until };
        let written = file.write_at(&header.encode(), 0).and_then(|()| file.sync());
        if written.is_err() {
            self.spares.remove(sequence);
        }
        written?;
        Ok(Arc::new(JournalFile { header, file, len }))
    }

    fn give_up(&mut self) {
        if let Some(current) = self.current.take().filter(|current| !current.listed) {
            self.spares.remove(current.file.header.sequence);
        }
    }
}
