//! Files behind a trait: the real file system, and a fault-injecting disk for tests.

mod real;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;

use std::{io, iter};

pub use real::RealDisk;

/// Whether the error means that the disk or a quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Reserves space up to `len` bytes if the file system can. Some cannot (ext3, NFS before 4.2, some of FUSE): there only a
/// write shows whether there is space.
///
/// # Errors
/// The disk or a quota is full.
pub(crate) fn reserve_if_possible(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    match file.reserve(len) {
        Err(error) if is_full(&error) => Err(error),
        _ => Ok(()),
    }
}

/// A new name for a damaged file that a repair renames: the file's own with `.damaged`, and a number (`.damaged-2` and so
/// on) if earlier repairs have used that name. Those files may contain the only copy of some data.
pub(crate) fn name_for_damaged(disk: &dyn Disk, path: &str) -> io::Result<String> {
    let (directory, file) = path.rsplit_once('/').unwrap_or(("", path));
    let taken = disk.list(directory)?;
    let numbered = (2_u32..).map(|number| format!(".damaged-{number}"));
    let mut suffixes = iter::once(".damaged".to_owned()).chain(numbered);
    let free = suffixes.find(|suffix| !taken.contains(&format!("{file}{suffix}")));
    Ok(format!("{path}{}", free.unwrap_or_default()))
}

/// A data directory. Paths are relative to it, with `/` between directory and file.
pub trait Disk: Send + Sync {
    /// Opens a file to read and write, and creates it if it is missing. The name of a new file is durable only after
    /// [`Disk::sync_dir`].
    ///
    /// # Errors
    /// The file system's error.
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Names of the files and directories in a directory, in no order. A missing directory has none.
    ///
    /// # Errors
    /// The file system's error.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;
    /// Creates a directory, and those above it.
    ///
    /// # Errors
    /// The file system's error.
    fn create_dir(&self, directory: &str) -> io::Result<()>;
    /// Removes a file. A missing one is not an error.
    ///
    /// # Errors
    /// The file system's error.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes a directory with everything in it. A missing one is not an error.
    ///
    /// # Errors
    /// The file system's error.
    fn remove_dir(&self, directory: &str) -> io::Result<()>;
    /// Renames a file; it replaces any file that had the new name.
    ///
    /// # Errors
    /// The file system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes created, removed and changed names in a directory durable.
    ///
    /// # Errors
    /// The file system's error.
    fn sync_dir(&self, directory: &str) -> io::Result<()>;
    /// Bytes free on the file system.
    ///
    /// # Errors
    /// The file system's error.
    fn free_space(&self) -> io::Result<u64>;
}

/// A file that is open for reading and writing at any offset, by several threads at a time.
#[expect(clippy::len_without_is_empty, reason = "whether a file is empty is not needed")]
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`. After an error any part of them may have been written.
    ///
    /// # Errors
    /// The file system's error.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Reads up to `into.len()` bytes at `offset`, and returns how many: fewer only at the end of the file.
    ///
    /// # Errors
    /// The file system's error.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Makes written data durable. After an error the state of all data written since the last success is unknown, and it
    /// has to be written again, elsewhere: a second call may succeed without having written anything.
    ///
    /// # Errors
    /// The file system's error.
    fn sync(&self) -> io::Result<()>;
    /// Length of the file in bytes.
    ///
    /// # Errors
    /// The file system's error.
    fn len(&self) -> io::Result<u64>;
    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// The file system's error.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves space up to `len` bytes, so that later writes there cannot fail for lack of space.
    ///
    /// # Errors
    /// The file system's error; `StorageFull` if there is not enough space, `Unsupported` if it cannot reserve space.
    fn reserve(&self, len: u64) -> io::Result<()>;
}
