//! How much memory this process may use.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of this machine's memory, or of the part that the control groups of this process leave to it. `None` if the
/// system does not tell.
pub(crate) fn memory_total() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kibibytes(&text, "MemTotal:"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(least_of_groups(Path::new("/sys/fs/cgroup"), &groups)).min()
}

/// The value behind `key` in files of /proc that count in kB; in bytes.
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The least memory limit of the groups in `groups`, which is /proc/self/cgroup (cgroups(7)), and of those around them.
/// `root` is where version 2 is mounted, and version 1 one folder below.
fn least_of_groups(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        least_up_to(&mount, path, file)
    });
    limits.min()
}

/// The least limit that `file` tells in the folder `path` below `mount`, and in those around it up to `mount`. A path that
/// does not exist is that of the host, seen from within a container, which finds its own group at `mount`.
fn least_up_to(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let folders = group.ancestors().take_while(|folder| folder.starts_with(mount));
    // `max`, and the huge number that stands for it in version 1, are no limit below the machine's memory.
    folders.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, file: &str, limit: &str) {
        let folder = root.join(path);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), format!("{limit}\n")).unwrap();
    }

    #[test]
    fn the_tightest_of_a_group_and_those_around_it_counts() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "a", "memory.max", "4000");
        group(root.path(), "a/b", "memory.max", "max");
        group(root.path(), "a/b/c", "memory.max", "5000");
        assert_eq!(least_of_groups(root.path(), "0::/a/b/c\n"), Some(4000));
        assert_eq!(least_of_groups(root.path(), "0::/elsewhere\n"), None);
        assert_eq!(least_of_groups(root.path(), ""), None);
    }

    #[test]
    fn a_container_finds_its_limit_at_the_mount_point() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "", "memory.max", "7000");
        assert_eq!(least_of_groups(root.path(), "0::/\n"), Some(7000));
        assert_eq!(least_of_groups(root.path(), "0::/system.slice/docker-1.scope\n"), Some(7000));
    }

    #[test]
    fn groups_of_version_1_are_known() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "memory/x", "memory.limit_in_bytes", "9000");
        let groups = "5:cpu,cpuacct:/x\n4:memory:/x\n0::/x\n";
        assert_eq!(least_of_groups(root.path(), groups), Some(9000));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_total().unwrap() > 1 << 20);
        assert_eq!(kibibytes("A: 1 kB\nMemTotal:       2 kB\n", "MemTotal:"), Some(2048));
    }
}
