//! The memory that sockets take outside of the processes.

use std::fs;

/// Bytes of the kernel's own objects on this machine (`Slab` in `/proc/meminfo`), sockets among them; 0 when unknown.
pub(super) fn slab_bytes() -> u64 {
    fs::read_to_string("/proc/meminfo").ok().and_then(|text| slab(&text)).unwrap_or(0)
}

fn slab(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_is_read_in_bytes() {
        assert_eq!(slab("MemTotal: 7 kB\nSlab:   12 kB\n"), Some(12 * 1024));
        assert_eq!(slab(""), None);
    }
}
