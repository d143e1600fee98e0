//! Appending and syncing.
//!
//! An append goes to a buffer, which is written when it is large, when a segment is full, and on request. If a write fails
//! the buffer stays and is written again at the same offset. If a *sync* fails, the state of everything written since the
//! last one is unknown, and another sync proves nothing. All of it that can still be read moves to a new segment, and the
//! old one ends where it was last synced.

use std::sync::Arc;

use super::envelope::read_range;
use super::error::{PagesError, at};
use super::files::SegmentFileName;
use super::positions::PositionSet;
use super::queue::{QueueSegments, QueueState, SegmentWriter};
use super::record::{self, MAX_PAYLOAD, RECORD_HEADER, Record, SEGMENT_HEADER, ScannedRecord};
use super::segment::{PageSegment, SegmentPhase};
use super::segment_files::{encode_index, write_whole};
use crate::disk::DiskFile;

/// The error that stopped an append, and the number of records before it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct AppendError {
    /// Number of records that were appended, as if the others had not been given.
    pub taken: usize,
    /// Why the next record was not appended.
    #[source]
    pub error: PagesError,
}

/// The work to do before the next record can be appended.
enum Need {
    Nothing,
    Flush,
    Seal,
}

impl QueueSegments {
    /// Appends messages, in ascending order of position and above all earlier ones. Live messages that already exist are
    /// skipped, so a caller may repeat uncertain ones. They can be read at once; they are durable after
    /// [`sync`](Self::sync). Up to 256 KiB stay in memory until [`flush`](Self::flush) or `sync`.
    ///
    /// # Errors
    /// If a file cannot be written or a position or a length is wrong; the records before it were appended.
    pub fn append(&self, records: &[Record<'_>]) -> Result<(), AppendError> {
        let mut writer = self.writer.lock();
        let mut taken = 0;
        loop {
            let outcome = match self.take(records, &mut taken) {
                Ok(Need::Nothing) => return Ok(()),
                Ok(Need::Flush) => self.write_out(&mut writer),
                Ok(Need::Seal) => self.seal(&mut writer),
                Err(error) => Err(error),
            };
            outcome.map_err(|error| AppendError { taken, error })?;
        }
    }

    /// Writes the buffer to the file, and frees its memory.
    ///
    /// # Errors
    /// If the file cannot be written. The buffer stays.
    pub fn flush(&self) -> Result<(), PagesError> {
        self.write_out(&mut self.writer.lock())
    }

    /// Makes everything that was appended durable, except for transient messages. Does nothing if there is nothing new.
    ///
    /// # Errors
    /// A file cannot be written or synced. Data synced earlier is unaffected. The next call retries the rest elsewhere.
    /// Since some of it may have been lost with the file, a caller that has the messages appends them again first (existing
    /// ones are skipped).
    pub fn sync(&self) -> Result<(), PagesError> {
        let mut writer = self.writer.lock();
        if !self.durable || !self.state.lock().has_unsynced() {
            return Ok(());
        }
        self.write_out(&mut writer)?;
        self.sync_open(&mut writer)?;
        self.state.lock().open_segment().into_iter().for_each(PageSegment::append_mark);
        // The mark proves to recovery that everything before it was durable. If it cannot be written now, it is written
        // later.
        let _ = self.write_out(&mut writer);
        Ok(())
    }

    fn take(&self, records: &[Record<'_>], taken: &mut usize) -> Result<Need, PagesError> {
        let mut state = self.state.lock();
        while let Some(record) = records.get(*taken) {
            if record.payload.len() > MAX_PAYLOAD {
                return Err(PagesError::TooLong { bytes: record.payload.len() });
            }
            match state.last {
                Some(last) if record.position <= last => {
                    if !state.is_live(record.position) {
                        return Err(PagesError::OutOfOrder { position: record.position, last });
                    }
                }
                _ if state.is_full_for(record, self.files.sizes.segment) => return Ok(Need::Seal),
                _ if state.buffered() >= self.files.sizes.buffer => return Ok(Need::Flush),
                _ => state.push(record, self),
            }
            *taken += 1;
        }
        Ok(Need::Nothing)
    }

    fn write_out(&self, writer: &mut SegmentWriter) -> Result<(), PagesError> {
        let (file, offset, bytes, pin) = {
            let mut state = self.state.lock();
            let pin = self.durable && state.has_unsynced();
            let Some(segment) = state.open_segment() else { return Ok(()) };
            let file = segment.file.clone();
            let Some(end) = segment.end() else { return Ok(()) };
            let Some(bytes) = end.begin_flush() else { return Ok(()) };
            (file, end.written, bytes, pin)
        };
        let written = self.write(writer, &file, &bytes, offset, pin);
        // Still the same segment: only writers seal or remove an open one.
        if let Some(end) = self.state.lock().open_segment().and_then(PageSegment::end) {
            end.end_flush(bytes, written.is_ok());
        }
        written
    }

    fn write(
        &self,
        writer: &mut SegmentWriter,
        file: &SegmentFileName,
        bytes: &[u8],
        offset: u64,
        pin: bool,
    ) -> Result<(), PagesError> {
        self.create_dir(writer)?;
        let Some(handle) = self.handle(writer, file)? else { return Ok(()) };
        writer.names |= offset == 0;
        if pin {
            writer.pinned = Some(handle.clone());
        }
        handle.write_at(bytes, offset).map_err(at(&file.path()))
    }

    pub(super) fn create_dir(&self, writer: &mut SegmentWriter) -> Result<(), PagesError> {
        if !writer.directory {
            self.files.disk().create_dir(&self.directory).map_err(at(&self.directory))?;
            (writer.directory, writer.parents) = (true, true);
        }
        Ok(())
    }

    fn handle(
        &self,
        writer: &SegmentWriter,
        file: &SegmentFileName,
    ) -> Result<Option<Arc<dyn DiskFile>>, PagesError> {
        match &writer.pinned {
            Some(handle) => Ok(Some(handle.clone())),
            None => file.open(&self.files),
        }
    }

    /// Seals the open segment.
    fn seal(&self, writer: &mut SegmentWriter) -> Result<(), PagesError> {
        self.write_out(writer)?;
        if self.durable && self.state.lock().open_segment().is_some_and(|open| open.shape.persistent > 0) {
            self.sync_open(writer)?;
        }
        writer.pinned = None;
        let index = {
            let mut state = self.state.lock();
            let Some(segment) = state.open_segment() else { return Ok(()) };
            let synced = segment.synced() == Some(segment.shape);
            // An index records which messages were settled, and a restart must not see that before `persist_settled_if`.
            let whole = self.durable && synced && segment.live.count() == segment.shape.records;
            let index = whole.then(|| (segment.file.index_path(), encode_index(self.queue, segment)));
            segment.seal();
            let (first, last) = (segment.first, segment.shape.last);
            state.drop_settled(first, last);
            index
        };
        if let Some((path, bytes)) = index {
            writer.names = true;
            // It only speeds up the next start: a segment without an index is read instead.
            let _ = write_whole(&self.files, &path, &bytes, false);
        }
        Ok(())
    }

    /// Syncs the open segment, which must be completely written.
    fn sync_open(&self, writer: &mut SegmentWriter) -> Result<(), PagesError> {
        let file = self.state.lock().open_segment().map(|segment| segment.file.clone());
        let Some(file) = file else { return Ok(()) };
        let Some(handle) = self.handle(writer, &file)? else { return Ok(()) };
        if let Err(error) = handle.sync() {
            writer.pinned = None;
            self.rescue(&*handle);
            return Err(at(&file.path())(error));
        }
        self.sync_names(writer)?;
        writer.pinned = None;
        if let Some(segment) = self.state.lock().open_segment() {
            let shape = segment.shape;
            segment.end().into_iter().for_each(|end| end.synced = Some(shape));
        }
        Ok(())
    }

    /// Makes the names in the directory durable, and the directory's own.
    pub(super) fn sync_names(&self, writer: &mut SegmentWriter) -> Result<(), PagesError> {
        let sync = |directory: &str| self.files.disk().sync_dir(directory).map_err(at(directory));
        if writer.names {
            sync(&self.directory)?;
            writer.names = false;
        }
        if writer.parents {
            sync(self.directory.split_once('/').map_or("", |(parent, _)| parent))?;
            sync("")?;
            writer.parents = false;
        }
        Ok(())
    }

    /// After a failed sync: moves records that are not known to be on disk from the open segment to a new one.
    fn rescue(&self, handle: &dyn DiskFile) {
        let (from, to, salt) = {
            let mut state = self.state.lock();
            let Some(open) = state.open_segment() else { return };
            let salt = open.file.salt;
            let Some(end) = open.end() else { return };
            (end.synced.map_or(SEGMENT_HEADER as u64, |synced| synced.length), end.written, salt)
        };
        let bytes = read_range(handle, from, to).unwrap_or_default();
        let records = whole_records(&bytes, salt, from);
        let cut = self.state.lock().move_unsynced(&records, self);
        if let Some(length) = cut {
            // Recovery prefers the newer segment for positions that both have, so this is only a clean-up.
            let _ = handle.set_len(length);
        }
    }
}

impl QueueState {
    /// Whether a restart could lose messages that it should retain.
    fn has_unsynced(&self) -> bool {
        self.segments.back().is_some_and(|segment| {
            segment.shape.persistent > segment.synced().map_or(0, |synced| synced.persistent)
        })
    }

    /// Bytes in the open segment's buffer.
    fn buffered(&self) -> usize {
        self.segments.back().map_or(0, |segment| match &segment.phase {
            SegmentPhase::Open(end) => end.buffer.len(),
            SegmentPhase::Sealed => 0,
        })
    }

    fn is_full_for(&self, record: &Record<'_>, limit: u64) -> bool {
        let after = (RECORD_HEADER + record.payload.len()) as u64;
        self.segments.back().filter(|segment| segment.is_open()).is_some_and(|segment| {
            segment.shape.length + after > limit || !PositionSet::reaches(segment.first, record.position)
        })
    }

    /// Ends the open segment where it was synced, and appends the later `records` to a new one. Returns the new length of
    /// the old one, if it is still needed.
    fn move_unsynced(&mut self, records: &[Record<'_>], owner: &QueueSegments) -> Option<u64> {
        let old = self.segments.back_mut()?;
        let end = (records.last().map(|record| record.position), old.shape.last);
        let live = records.iter().filter(|record| old.live.contains(record.position)).map(|record| Record {
            deliveries: old.marks.get(record.position).unwrap_or(record.deliveries),
            ..*record
        });
        let moved: Vec<_> = live.collect();
        let before = old.live.count();
        let shape = old.seal_at_synced();
        match shape {
            Some(_) => {
                self.live -= before - old.live.count();
                let (first, last) = (old.first, old.shape.last);
                self.drop_settled(first, last);
            }
            None => {
                self.live -= before;
                self.dead.push(old.file.clone());
                self.segments.pop_back();
            }
        }
        moved.iter().for_each(|record| self.push(record, owner));
        if end.0 != Some(end.1) {
            // Some could not be read: their positions may be reused.
            self.last =
                end.0.or(shape.map(|shape| shape.last)).or(self.segments.back().map(|old| old.shape.last));
        }
        shape.map(|shape| shape.length)
    }
}

/// The records at the start of `bytes`, up to the first that is not intact.
fn whole_records(bytes: &[u8], salt: u64, offset: u64) -> Vec<Record<'_>> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        match record::decode(rest, salt, offset + at as u64) {
            ScannedRecord::Record(record, len) => {
                records.push(record);
                at += len;
            }
            ScannedRecord::Mark => at += RECORD_HEADER,
            ScannedRecord::Bad(_) | ScannedRecord::Short => break,
        }
    }
    records
}
