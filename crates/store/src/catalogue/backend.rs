//! The database's backend on a [`Disk`], so that it can be tested on one that fails.
//!
//! After a failed sync the kernel considers unwritten data clean, so data that was read from the file may never reach the
//! disk. The file's state is then in doubt, even for a later process, until all of it has been written again.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;

use super::FILE;
use crate::disk::{Disk, DiskFile, reserve_if_possible};

pub(super) struct Backend {
    file: Box<dyn DiskFile>,
    unsynced: Arc<UnsyncedState>,
}

/// Whether the data on disk may differ from the data that is read.
pub(super) struct UnsyncedState {
    disk: Arc<dyn Disk>,
    is_unsynced: AtomicBool,
}

impl UnsyncedState {
    /// Reads the state that an earlier process has left.
    pub(super) fn of(disk: Arc<dyn Disk>) -> io::Result<Arc<Self>> {
        let is_unsynced = disk.list("")?.iter().any(|name| name == UNSYNCED_MARK).into();
        Ok(Arc::new(Self { disk, is_unsynced }))
    }

    fn begin(&self) {
        self.is_unsynced.store(true, Ordering::Relaxed);
        // The mark is needed only if this process is killed and the power fails after that; there is nothing else to do on
        // failure.
        let _ = (0..ATTEMPTS).find(|_| self.disk.open(UNSYNCED_MARK).is_ok());
    }

    /// Rewrites the whole file if it is in doubt.
    fn clear(&self, file: &dyn DiskFile) -> io::Result<()> {
        if !self.is_unsynced.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (len, mut at) = (file.len()?, 0);
        let mut bytes = vec![0; STEP];
        while at < len {
            let read = file.read_at(&mut bytes, at)?;
            file.write_at(&bytes[..read], at)?;
            at += STEP as u64;
        }
        file.sync()?;
        self.is_unsynced.store(false, Ordering::Relaxed);
        // If the mark stays, the next start rewrites the file once more.
        let _ = self.disk.remove(UNSYNCED_MARK);
        Ok(())
    }
}

impl Backend {
    /// Opens the file, and creates it if it is missing.
    pub(super) fn open(unsynced: &Arc<UnsyncedState>) -> io::Result<Self> {
        let backend = Self::at(FILE, unsynced)?;
        unsynced.clear(&*backend.file)?;
        // The file of an earlier version may be sparse. On a full disk it stays so.
        drop(backend.file.reserve(backend.file.len()?));
        Ok(backend)
    }

    /// Opens the file at another path.
    pub(super) fn at(path: &str, unsynced: &Arc<UnsyncedState>) -> io::Result<Self> {
        Ok(Self { file: unsynced.disk.open(path)?, unsynced: unsynced.clone() })
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.file.read_at(out, offset)? < out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The database extends the file in large steps and writes to it much later. The space must be reserved even if the
    /// disk is full by then: the store removes no file before this database has recorded that.
    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.file.len()? {
            reserve_if_possible(&*self.file, len)?;
        }
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync().inspect_err(|_| self.unsynced.begin())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(data, offset)
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

/// This file exists while the database file is in doubt.
const UNSYNCED_MARK: &str = "definitions.in-doubt";
/// A disk that has just failed may fail again.
const ATTEMPTS: usize = 10;
/// Bytes written at once.
const STEP: usize = 1 << 20;
