//! Where levels are measured.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use store::Store;

/// Measures what may run out. `None` where that cannot be told now.
pub(super) trait Sources {
    /// Bytes of memory that this process has.
    fn memory_used(&self) -> Option<u64>;
    /// Bytes that may still be written to the data folder's file system.
    fn disk_free(&self) -> Option<u64>;
    /// Whether the store cannot confirm anything, or only just.
    fn needs_space(&self) -> bool;
    /// Tells the store how many bytes are to stay free.
    fn keep_free(&self, bytes: u64);
}

/// This system.
pub(super) struct System {
    /// The data folder.
    pub(super) folder: Option<PathBuf>,
    /// What lies in it.
    pub(super) store: Option<Arc<Store>>,
}

impl Sources for System {
    /// What is resident: all that the kernel counts when it looks for somebody to end, buffers that could be freed
    /// included.
    fn memory_used(&self) -> Option<u64> {
        resident(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// Without the part that is kept for the superuser.
    fn disk_free(&self) -> Option<u64> {
        let file_system = rustix::fs::statvfs(self.folder.as_ref()?).ok()?;
        file_system.f_bavail.checked_mul(file_system.f_frsize)
    }

    fn needs_space(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.needs_space())
    }

    fn keep_free(&self, bytes: u64) {
        self.store.iter().for_each(|store| store.set_disk_free_limit(bytes));
    }
}

/// `VmRSS` of proc_pid_status(5).
fn resident(status: &str) -> Option<u64> {
    super::limits::kibibytes(status, "VmRSS:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_its_disk_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        let system = System { folder: Some(folder.path().to_owned()), store: None };
        assert!(system.memory_used().unwrap() > 1 << 20);
        assert!(system.disk_free().unwrap() > 0);
        assert_eq!(System { folder: None, store: None }.disk_free(), None);
    }
}
