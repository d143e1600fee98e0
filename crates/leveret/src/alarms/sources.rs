//! The measurements of memory and disk.

use std::fs::File;
use std::io::{Read, Seek};
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
    /// proc_pid_status(5), which stays open: memory is measured even without a free file descriptor. `None` without /proc.
    status: Option<File>,
    /// The data directory.
    directory: Option<PathBuf>,
    /// The broker, whose store is in the data directory.
    broker: Option<Arc<Broker>>,
    /// Bytes of memory that this process may use, if that is known.
    memory_total: Option<u64>,
}

impl System {
    pub(super) fn new(
        directory: Option<PathBuf>,
        broker: Option<Arc<Broker>>,
        memory_total: Option<u64>,
    ) -> Self {
        Self { status: File::open("/proc/self/status").ok(), directory, broker, memory_total }
    }

    fn store(&self) -> Option<&Arc<Store>> {
        self.broker.as_ref()?.store()
    }
}

impl Sources for System {
    /// Resident memory: all that the kernel's OOM killer counts, including buffers that could be freed.
    fn memory_used(&self) -> Option<u64> {
        let mut status = self.status.as_ref()?;
        let mut text = String::new();
        status.rewind().and_then(|()| status.read_to_string(&mut text)).ok()?;
        resident(&text)
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
        let system = System::new(Some(directory.path().to_owned()), None, None);
        let before = system.memory_used().unwrap();
        let memory = vec![1_u8; 64 << 20];
        assert!(
            system.memory_used().unwrap() > before + (32 << 20),
            "measured anew, with {} bytes more",
            memory.len()
        );
        assert!(system.disk_free().unwrap() > 0);
        assert_eq!(System { directory: None, ..system }.disk_free(), None);
    }
}
