//! Where levels are measured.

use std::fs;
use std::path::PathBuf;

/// Measures what may run out. `None` where that cannot be told now.
pub(super) trait Sources {
    /// Octets of memory that this process has.
    fn memory_used(&self) -> Option<u64>;
    /// Octets that may still be written to the data folder's file system.
    fn disk_free(&self) -> Option<u64>;
}

/// This system.
pub(super) struct System {
    /// The data folder.
    pub(super) folder: Option<PathBuf>,
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
        let system = System { folder: Some(folder.path().to_owned()) };
        assert!(system.memory_used().unwrap() > 1 << 20);
        assert!(system.disk_free().unwrap() > 0);
        assert_eq!(System { folder: None }.disk_free(), None);
    }
}
