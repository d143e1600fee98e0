//! Limits the number of open files, regardless of the number of queues.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::{PagesError, at};
use crate::disk::{Disk, DiskFile};

/// The files that stay open for all queues together: the most recently used ones. An evicted file is closed when the reads
/// that use it end. (The queue of a file with unsynced persistent messages also holds it open from the write to the sync:
/// closing it could lose the error of a failed write.)
pub(super) struct OpenFiles {
    pub(super) sizes: Sizes,
    disk: Arc<dyn Disk>,
    capacity: usize,
    next_id: AtomicU64,
    open: Mutex<Open>,
}

/// Sizes in bytes. Tests use smaller ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// A segment is sealed before it would exceed this size, unless it has a single message.
    pub(super) segment: u64,
    /// Bytes that are written at once.
    pub(super) buffer: usize,
    /// Bytes of a segment between entries of the sparse index.
    pub(super) block: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { segment: SEGMENT_BYTES, buffer: BUFFER_BYTES, block: BLOCK_BYTES }
    }
}

#[derive(Default)]
struct Open {
    clock: u64,
    files: HashMap<u64, (u64, Arc<dyn DiskFile>)>,
}

impl OpenFiles {
    pub(super) fn new(disk: Arc<dyn Disk>, capacity: usize, sizes: Sizes) -> Self {
        Self { sizes, disk, capacity: capacity.max(1), next_id: AtomicU64::new(0), open: Mutex::default() }
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// A segment's file, not opened yet.
    pub(super) fn segment(&self, directory: &str, sequence: u64, salt: u64) -> Arc<SegmentFileName> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{directory}/{sequence:016x}");
        Arc::new(SegmentFileName { id, sequence, salt, stem, removed: Mutex::new(false) })
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.open.lock().files.len()
    }

    fn get(&self, id: u64, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.open.lock().used(id) {
            return Ok(file);
        }
        let file: Arc<dyn DiskFile> = Arc::from(self.disk.open(path)?);
        let mut open = self.open.lock();
        while open.files.len() >= self.capacity {
            let oldest = open.files.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            open.files.remove(&oldest);
        }
        open.clock += 1;
        let clock = open.clock;
        open.files.insert(id, (clock, file.clone()));
        Ok(file)
    }

    fn forget(&self, id: u64) {
        self.open.lock().files.remove(&id);
    }
}

impl Open {
    fn used(&mut self, id: u64) -> Option<Arc<dyn DiskFile>> {
        self.clock += 1;
        let clock = self.clock;
        self.files.get_mut(&id).map(|(used, file)| {
            *used = clock;
            file.clone()
        })
    }
}

/// Name and identity of a segment's files.
pub(super) struct SegmentFileName {
    id: u64,
    /// Order among the segments of its queue.
    pub(super) sequence: u64,
    /// Distinguishes it from every other segment.
    pub(super) salt: u64,
    stem: String,
    /// Set before the file is removed, so that it is not opened, and thereby created, again.
    removed: Mutex<bool>,
}

impl SegmentFileName {
    pub(super) fn path(&self) -> String {
        format!("{}{SEGMENT}", self.stem)
    }

    pub(super) fn index_path(&self) -> String {
        format!("{}{INDEX}", self.stem)
    }

    /// Path of the sidecar in slot 0 or 1.
    pub(super) fn sidecar_path(&self, slot: usize) -> String {
        format!("{}{}", self.stem, SIDECARS[slot])
    }

    /// The open file; `None` if it was removed.
    pub(super) fn open(&self, files: &OpenFiles) -> Result<Option<Arc<dyn DiskFile>>, PagesError> {
        let removed = self.removed.lock();
        if *removed {
            return Ok(None);
        }
        let path = self.path();
        files.get(self.id, &path).map(Some).map_err(at(&path))
    }

    /// Removes the segment. Its index and sidecars stay until that is durable: without them its messages would reappear.
    pub(super) fn remove(&self, files: &OpenFiles) -> Result<(), PagesError> {
        *self.removed.lock() = true;
        files.forget(self.id);
        let path = self.path();
        files.disk().remove(&path).map_err(at(&path))
    }

    /// Removes the files that [`SegmentFileName::remove`] left.
    pub(super) fn remove_index_and_sidecars(&self, files: &OpenFiles) -> Result<(), PagesError> {
        for path in [self.index_path(), self.sidecar_path(0), self.sidecar_path(1)] {
            files.disk().remove(&path).map_err(at(&path))?;
        }
        Ok(())
    }
}

pub(super) const SEGMENT: &str = ".segment";
pub(super) const INDEX: &str = ".index";
/// Written alternately, so that a torn one leaves the other.
pub(super) const SIDECARS: [&str; 2] = [".settled0", ".settled1"];
/// Space is freed in steps of this size, and this much is read again at a start after a crash. Ten million messages of 1
/// KiB take 1,300 files.
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// Large enough for few system calls. Each queue that is being written may have a buffer of this size.
const BUFFER_BYTES: usize = 256 << 10;
/// A read from an arbitrary position wastes at most this many bytes, and ten million messages of 1 KiB need 160,000 entries
/// (2.5 MiB).
const BLOCK_BYTES: u32 = 64 << 10;
