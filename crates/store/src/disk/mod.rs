//! Files behind a trait: the real ones, and for tests a disk that fails on purpose.

mod real;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;

use std::io;

pub use real::RealDisk;

/// Whether the file system says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A data folder. Paths are relative to it, with `/` between folder and file.
pub trait Disk: Send + Sync {
    /// Opens a file to read and write, and creates it if it is missing. The name of a new file is durable only after
    /// [`Disk::sync_folder`].
    ///
    /// # Errors
    /// What the file system says.
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Names of the files and folders in a folder, in no order. A missing folder has none.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Creates a folder, and those above it.
    ///
    /// # Errors
    /// What the file system says.
    fn create_folder(&self, folder: &str) -> io::Result<()>;
    /// Removes a file. A missing one is no error.
    ///
    /// # Errors
    /// What the file system says.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes a folder with everything in it. A missing one is no error.
    ///
    /// # Errors
    /// What the file system says.
    fn remove_folder(&self, folder: &str) -> io::Result<()>;
    /// Gives a file another name, in place of whatever had it.
    ///
    /// # Errors
    /// What the file system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes names that were created, removed or changed in a folder durable.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;
    /// Bytes that are free.
    ///
    /// # Errors
    /// What the file system says.
    fn free_space(&self) -> io::Result<u64>;
}

/// An open file.
#[expect(clippy::len_without_is_empty, reason = "nobody asks that of a file")]
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`. After an error any part of them may have been written.
    ///
    /// # Errors
    /// What the file system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Reads up to `into.len()` bytes at `offset`, and returns how many: fewer only at the end of the file.
    ///
    /// # Errors
    /// What the file system says.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Makes what was written durable. After an error nothing is known of what was written since the last success, and
    /// it has to be written again, elsewhere (a second call may well succeed without having written anything).
    ///
    /// # Errors
    /// What the file system says.
    fn sync(&self) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn len(&self) -> io::Result<u64>;
    /// Cuts, or lengthens with zeros.
    ///
    /// # Errors
    /// What the file system says.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves space up to `len` bytes, so that writing there later cannot fail for want of it.
    ///
    /// # Errors
    /// What the file system says; `StorageFull` when there is not enough.
    fn reserve(&self, len: u64) -> io::Result<()>;
}
