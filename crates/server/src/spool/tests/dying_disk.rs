//! A simulated disk whose process is killed at a chosen write.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use store::disk::simulated::SimDisk;
use store::disk::{Disk, DiskFile};

/// Counts the operations that change the disk, and captures its state at one of them. Clones share the disk.
#[derive(Clone)]
pub(super) struct DyingDisk {
    disk: SimDisk,
    death: Arc<Mutex<Death>>,
}

/// The planned kill of the process.
#[derive(Default)]
struct Death {
    /// The number of changes before it; `None` if none is planned.
    left: Option<u64>,
    /// Whether it is a power failure, which may lose unsynced data.
    is_power_failure: bool,
    /// The disk as found afterwards. Later changes are not in it.
    found: Option<SimDisk>,
}

impl DyingDisk {
    pub(super) fn new(disk: SimDisk) -> Self {
        Self { disk, death: Arc::default() }
    }

    /// Plans the kill at the change of the disk after `left` others.
    pub(super) fn die_after(&self, left: u64, is_power_failure: bool) {
        *self.death.lock() = Death { left: Some(left), is_power_failure, found: None };
    }

    /// The disk as found after the kill, once that has happened.
    pub(super) fn take_found(&self) -> Option<SimDisk> {
        self.death.lock().found.take()
    }

    /// The disk as found if the process is killed now.
    pub(super) fn die(&self, is_power_failure: bool) -> SimDisk {
        if is_power_failure { self.disk.crash() } else { self.disk.kill() }
    }

    /// Passes the kill before and after a change: it may happen at either, and a power failure may undo the change.
    fn change<T>(&self, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.pass();
        let changed = change();
        self.pass();
        changed
    }

    fn pass(&self) {
        let mut death = self.death.lock();
        match death.left {
            Some(0) => {
                death.left = None;
                death.found = Some(self.die(death.is_power_failure));
            }
            Some(left) => death.left = Some(left - 1),
            None => {}
        }
    }
}

struct DyingFile {
    disk: DyingDisk,
    file: Box<dyn DiskFile>,
}

impl Disk for DyingDisk {
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.change(|| self.disk.open(path))?;
        Ok(Box::new(DyingFile { disk: self.clone(), file }))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }

    fn create_dir(&self, directory: &str) -> io::Result<()> {
        self.change(|| self.disk.create_dir(directory))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.change(|| self.disk.remove(path))
    }

    fn remove_dir(&self, directory: &str) -> io::Result<()> {
        self.change(|| self.disk.remove_dir(directory))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|| self.disk.rename(from, to))
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.change(|| self.disk.sync_dir(directory))
    }

    fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }
}

impl DiskFile for DyingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.change(|| self.file.write_at(bytes, offset))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.change(|| self.file.sync())
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.change(|| self.file.set_len(len))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.disk.change(|| self.file.reserve(len))
    }
}
