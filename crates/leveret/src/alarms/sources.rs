//! The measurements of memory and disk.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use broker::Broker;
use store::Store;

/// Measures the resources that may run out. `None` if the value is not available now.
pub(super) trait Sources {
    /// Bytes of memory that this process uses.
    fn memory_used(&self) -> Option<u64>;
    /// Bytes that may still be written to the data directory's file system.
    fn disk_free(&self) -> Option<u64>;
    /// Whether the store can write nothing, or only acknowledgements into the space reserved for them.
    fn needs_space(&self) -> bool;
    /// Sets the number of bytes that the store must leave free.
    fn keep_free(&self, bytes: u64);
    /// Has the broker's queues page out if that many bytes of memory are too near to the limit.
    fn page(&self, used: u64, limit: Option<u64>);
}

/// Measures this process and its data directory.
pub(super) struct System {
    /// The data directory.
    pub(super) directory: Option<PathBuf>,
    /// The broker, whose store is in the data directory.
    pub(super) broker: Option<Arc<Broker>>,
    /// Bytes of memory that this process may use, if that is known.
    pub(super) memory_total: Option<u64>,
}

impl System {
    fn store(&self) -> Option<&Arc<Store>> {
        self.broker.as_ref()?.store()
    }
}

impl Sources for System {
    /// Resident memory: all that the kernel's OOM killer counts, including buffers that could be freed.
    fn memory_used(&self) -> Option<u64> {
        resident(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// Excludes the space reserved for the superuser.
    fn disk_free(&self) -> Option<u64> {
        let file_system = rustix::fs::statvfs(self.directory.as_ref()?).ok()?;
        file_system.f_bavail.checked_mul(file_system.f_frsize)
    }

    fn needs_space(&self) -> bool {
        self.store().is_some_and(|store| store.needs_space())
    }

    fn keep_free(&self, bytes: u64) {
        self.store().into_iter().for_each(|store| store.set_disk_free_limit(bytes));
    }

    fn page(&self, used: u64, limit: Option<u64>) {
        self.broker.iter().for_each(|broker| broker.memory_used(used, limit.or(self.memory_total)));
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
        let directory = tempfile::tempdir().unwrap();
        let system =
            System { directory: Some(directory.path().to_owned()), broker: None, memory_total: None };
        assert!(system.memory_used().unwrap() > 1 << 20);
        assert!(system.disk_free().unwrap() > 0);
        assert_eq!(System { directory: None, ..system }.disk_free(), None);
    }
}
