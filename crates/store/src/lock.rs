//! Locks a data directory for one process.
//!
//! The directory itself is locked, which no operation on its files undoes. So is the file `lock`, which contains the
//! owner's process id, and which is the only lock of earlier versions.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Holds the lock of a data directory until it is dropped or the process ends in any way.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Open for the lifetime of the lock.
    _directory: File,
    _file: File,
}

/// The reason why a data directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("in use by {}", pid.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    Taken {
        /// Its process id, if it has written it to the lock's file.
        pid: Option<u32>,
    },
    /// The file system's error.
    #[error(transparent)]
    Io(io::Error),
}

impl DirectoryLock {
    /// Locks the data directory, which must exist.
    ///
    /// # Errors
    /// Another process holds the lock; or the lock's file cannot be opened or written.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let itself = File::open(directory).map_err(LockError::Io)?;
        let mut file = options.open(directory.join(FILE)).map_err(LockError::Io)?;
        let locked = match itself.try_lock() {
            // Some network file systems can lock only files.
            Err(TryLockError::Error(_)) | Ok(()) => file.try_lock(),
            taken => taken,
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Needed only for the error message.
                let _ = file.take(MAX_PID).read_to_string(&mut pid);
                return Err(LockError::Taken { pid: pid.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(LockError::Io)?;
        Ok(Self { _directory: itself, _file: file })
    }
}

const FILE: &str = "lock";
/// The most bytes of the other process's id.
const MAX_PID: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_by_one_process_at_a_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = DirectoryLock::take(directory.path()).expect("free");
        let second = DirectoryLock::take(directory.path()).expect_err("taken");
        assert_eq!(second.to_string(), format!("in use by process {}", std::process::id()));
        // Removing the lock file does not make the directory available to a second broker.
        std::fs::remove_file(directory.path().join(FILE)).expect("removed");
        let second = DirectoryLock::take(directory.path()).expect_err("still taken");
        assert!(matches!(second, LockError::Taken { pid: None }), "{second}");
        drop(first);
        DirectoryLock::take(directory.path()).expect("free again");
    }
}
