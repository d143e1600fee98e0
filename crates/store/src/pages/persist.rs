//! Makes settled positions durable, and removes files.

use std::sync::Arc;

use super::envelope;
use super::error::{PagesError, at};
use super::files::SegmentFileName;
use super::queue::{QueueSegments, QueueState, SegmentWriter};
use super::segment::{NewestSidecar, PageSegment, SidecarState};
use super::segment_files::{encode_sidecar, write_whole};
use crate::disk::DiskFile;

/// A sidecar to write.
struct Dirty {
    file: Arc<SegmentFileName>,
    version: u64,
    /// The sidecar before it.
    before: NewestSidecar,
    bytes: Vec<u8>,
}

impl QueueSegments {
    /// Makes settled positions and delivery counts durable: call it before the journal drops them. Costs one sync per
    /// segment with changes. Reaps as well.
    ///
    /// `may` is called after the settled positions were collected and before any of them is written, and only if there are
    /// some: another record of them may have to be durable first. If it returns false, nothing is written. Returns the
    /// result of `may`. Files are removed only for segments whose number passes `may_remove`; the others stay for a later
    /// call.
    ///
    /// # Errors
    /// A file cannot be written, synced or removed. Durable data is unaffected; call it again.
    pub(crate) fn persist_settled_if(
        &self,
        may_remove: impl Fn(u64) -> bool,
        may: impl FnOnce() -> bool,
    ) -> Result<bool, PagesError> {
        let mut writer = self.writer.lock();
        let dead = self.take_dead(&mut writer);
        let (dead, later): (Vec<_>, Vec<_>) = dead.into_iter().partition(|file| may_remove(file.sequence));
        self.state.lock().dead.extend(later);
        let mut dirty = Vec::new();
        while self.durable
            && let Some(next) =
                self.next_dirty(dirty.last().map_or(0, |dirty: &Dirty| dirty.file.sequence + 1))
        {
            dirty.push(next);
        }
        let nothing = dead.is_empty() && dirty.is_empty();
        if !nothing && !may() {
            self.state.lock().dead.extend(dead);
            return Ok(false);
        }
        self.remove_dead(&mut writer, &dead)?;
        for dirty in &dirty {
            if let NewestSidecar::Found(generation) = dirty.before {
                self.sync_found(&mut writer, &dirty.file, generation)?;
            }
            self.create_dir(&mut writer)?;
            let generation = dirty.before.next_generation();
            let path = dirty.file.sidecar_path((generation & 1) as usize);
            // The first sidecar of each slot is a new file.
            writer.names |= generation <= 2;
            write_whole(&self.files, &path, &dirty.bytes, true)?;
        }
        if !self.durable {
            return Ok(true);
        }
        self.sync_names(&mut writer)?;
        let mut state = self.state.lock();
        for dirty in dirty {
            state.persisted(&dirty);
        }
        drop(state);
        // The removal of their segments is durable now.
        while let Some(orphan) = writer.orphans.last() {
            orphan.remove_index_and_sidecars(&self.files)?;
            writer.orphans.pop();
        }
        Ok(true)
    }

    #[cfg(test)]
    pub(super) fn persist_settled(&self) -> Result<(), PagesError> {
        self.persist_settled_if(|_| true, || true).map(drop)
    }

    /// Removes the files of segments that have no live messages, the open one included.
    ///
    /// # Errors
    /// If a file cannot be removed. Call it again then.
    pub fn reap(&self) -> Result<(), PagesError> {
        self.reap_dead(&mut self.writer.lock())
    }

    /// Removes the directory of a deleted queue with everything in it. No message may be appended any more.
    ///
    /// # Errors
    /// Something cannot be removed. After a restart [`Pages::queues`](super::Pages::queues) lists the rest.
    pub fn remove(&self) -> Result<(), PagesError> {
        let mut writer = self.writer.lock();
        self.purge();
        {
            let mut state = self.state.lock();
            let files: Vec<_> = state.segments.drain(..).map(|segment| segment.file).collect();
            state.dead.extend(files);
        }
        self.reap_dead(&mut writer)?;
        *writer = SegmentWriter::default();
        self.files.disk().remove_dir(&self.directory).map_err(at(&self.directory))
    }

    fn reap_dead(&self, writer: &mut SegmentWriter) -> Result<(), PagesError> {
        let dead = self.take_dead(writer);
        self.remove_dead(writer, &dead)
    }

    /// The segments whose files are no longer needed, including the open one.
    fn take_dead(&self, writer: &mut SegmentWriter) -> Vec<Arc<SegmentFileName>> {
        let mut state = self.state.lock();
        if state.open_segment().is_some_and(|open| open.live.count() == 0) {
            writer.pinned = None;
            let open = state.segments.pop_back().map(|open| open.file);
            state.dead.extend(open);
        }
        std::mem::take(&mut state.dead)
    }

    fn remove_dead(
        &self,
        writer: &mut SegmentWriter,
        dead: &[Arc<SegmentFileName>],
    ) -> Result<(), PagesError> {
        for (at, file) in dead.iter().enumerate() {
            if let Err(error) = file.remove(&self.files) {
                self.state.lock().dead.extend_from_slice(&dead[at..]);
                return Err(error);
            }
            if self.durable && writer.directory {
                writer.names = true;
                writer.orphans.push(file.clone());
            }
        }
        Ok(())
    }

    /// Makes the sidecar that was found after a restart durable, before the other one is overwritten.
    fn sync_found(
        &self,
        writer: &mut SegmentWriter,
        file: &SegmentFileName,
        generation: u64,
    ) -> Result<(), PagesError> {
        let path = file.sidecar_path((generation & 1) as usize);
        let again = |file: Box<dyn DiskFile>| envelope::write_again(&*file, 0, file.len()?);
        self.files.disk().open(&path).and_then(again).map_err(at(&path))?;
        writer.names = true;
        self.sync_names(writer)?;
        let mut state = self.state.lock();
        if let Some(segment) = state.by_file(file) {
            segment.sidecar.newest = NewestSidecar::Synced(generation);
        }
        Ok(())
    }

    fn next_dirty(&self, from: u64) -> Option<Dirty> {
        let state = self.state.lock();
        let segment = state.segments.iter().find(|segment| {
            let changed = segment.sidecar.version != segment.sidecar.persisted;
            segment.file.sequence >= from && changed && segment.shape.persistent > 0
        })?;
        let SidecarState { version, newest, .. } = segment.sidecar;
        let bytes = encode_sidecar(self.queue, segment, newest.next_generation());
        Some(Dirty { file: segment.file.clone(), version, before: newest, bytes })
    }
}

impl QueueState {
    fn persisted(&mut self, dirty: &Dirty) {
        if let Some(segment) = self.by_file(&dirty.file) {
            segment.sidecar.persisted = dirty.version;
            segment.sidecar.newest = NewestSidecar::Synced(dirty.before.next_generation());
        }
    }

    fn by_file(&mut self, file: &SegmentFileName) -> Option<&mut PageSegment> {
        let at = self.segments.partition_point(|segment| segment.file.sequence < file.sequence);
        self.segments.get_mut(at).filter(|segment| segment.file.sequence == file.sequence)
    }
}
