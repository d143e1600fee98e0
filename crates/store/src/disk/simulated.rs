//! An in-memory disk that fails in all the ways that real disks may.
//!
//! [`SimDisk::crash`] decides about data that was written but not synced: each sector of 512 bytes is found in any version
//! since the last sync, in any combination, and names that were created, changed or removed since the directory was synced
//! are found or not. A failed sync forgets that the sectors were dirty, as Linux does: a second call succeeds without
//! having written them. A seed determines everything.

mod file;
mod random;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile};
use file::SimFile;
pub use random::SimRandom;
use state::State;

/// The simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// How often calls fail, in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// `write_at` fails with EIO, after having written any part.
    pub write: u64,
    /// `sync` and `sync_dir` fail with EIO, after having synced any part.
    pub sync: u64,
    /// Opening, renaming, removing, reserving and changing a length fail with EIO.
    pub names: u64,
}

impl SimDisk {
    /// An empty disk with a capacity of `capacity` bytes.
    pub fn new(seed: u64, capacity: u64) -> Self {
        Self(Arc::new(Mutex::new(State::new(seed, capacity))))
    }

    /// The disk as a power failure leaves it. This one remains usable, as if nothing had happened.
    #[must_use]
    pub fn crash(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().after_power_loss())))
    }

    /// The disk as killing the process leaves it: all written data is there, even if not synced.
    #[must_use]
    pub fn kill(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }

    /// Makes calls fail from now on, at these rates.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Lets `after` calls of `sync` succeed and fails the next one.
    pub fn fail_sync(&self, after: u64) {
        self.0.lock().fail_sync = Some(after);
    }

    /// Changes the capacity in bytes. If it is less than is in use, the disk is full.
    pub fn set_capacity(&self, capacity: u64) {
        self.0.lock().capacity = capacity;
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Calls of `sync` that succeeded.
    pub fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    /// Makes `sync` and `sync_dir` do nothing and report success, to verify that a test detects it.
    pub fn lie_about_syncs(&self) {
        self.0.lock().lies = true;
    }

    /// Makes `reserve` fail from now on, as on file systems without preallocation.
    pub fn refuse_reservations(&self) {
        self.0.lock().reserves = false;
    }

    /// The files, in order of their names.
    pub fn files(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// Changes a file's contents without a write, like bit rot. Does nothing if there is no such file.
    pub fn damage(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        self.0.lock().damage(path, change);
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = self.0.lock().open(path)?;
        Ok(Box::new(SimFile { disk: self.0.clone(), number }))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        Ok(self.0.lock().list(directory))
    }

    fn create_dir(&self, directory: &str) -> io::Result<()> {
        self.0.lock().create_dir(directory)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.0.lock().remove(path)
    }

    fn remove_dir(&self, directory: &str) -> io::Result<()> {
        self.0.lock().remove_dir(directory)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.lock().rename(from, to)
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.0.lock().sync_dir(directory)
    }

    fn free_space(&self) -> io::Result<u64> {
        let state = self.0.lock();
        Ok(state.capacity.saturating_sub(state.used()))
    }
}
