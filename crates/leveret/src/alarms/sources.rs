//! The measurements of memory and disk.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use store::Store;

/// Measures the resources that may run out. `None` if the value is not available now.
pub(super) trait Sources {
    /// Bytes of memory that this process uses.
    fn memory_used(&self) -> Option<u64>;
    /// Bytes that may still be written to the data folder's file system.
    fn disk_free(&self) -> Option<u64>;
    /// Whether the store can write nothing, or only acknowledgements into the space reserved for them.
    fn needs_space(&self) -> bool;
    /// Sets the number of bytes that the store must leave free.
    fn keep_free(&self, bytes: u64);
}

/// Measures this process and its data folder.
pub(super) struct System {
    /// The data folder.
    pub(super) folder: Option<PathBuf>,
    /// The store in the data folder.
    pub(super) store: Option<Arc<Store>>,
}

impl Sources for System {
    /// Resident memory: all that the kernel's OOM killer counts, including buffers that could be freed.
    fn memory_used(&self) -> Option<u64> {
        resident(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// Excludes the space reserved for the superuser.
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
