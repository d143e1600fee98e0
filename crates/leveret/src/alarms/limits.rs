//! Determines how much memory this process may use.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Bytes of this machine's memory, or the lower limit of this process's control groups. `None` if the system
/// does not report either, or there is no file descriptor to read one.
pub(crate) fn memory_total() -> Option<u64> {
    let machine = read("/proc/meminfo").ok()?.and_then(|text| kibibytes(&text, "MemTotal:"));
    let groups = read("/proc/self/cgroup").ok()?.unwrap_or_default();
    machine.into_iter().chain(least_of_groups(Path::new("/sys/fs/cgroup"), &groups).ok()?).min()
}

/// A file's text, `None` if it is not there or cannot be read.
///
/// # Errors
/// There is no file descriptor, so it may well be there: without the limits of its groups a process would count on all of
/// the machine's memory.
fn read(path: impl AsRef<Path>) -> Result<Option<String>, Errno> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(errno @ (Errno::MFILE | Errno::NFILE)) => Err(errno),
            _ => Ok(None),
        },
    }
}

/// The value after `key` in /proc files that count in kB, converted to bytes.
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The lowest memory limit of the groups in `groups`, which is /proc/self/cgroup (cgroups(7)), and of their
/// ancestors. Version 2 is mounted at `root`, and version 1 one directory below.
fn least_of_groups(root: &Path, groups: &str) -> Result<Option<u64>, Errno> {
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        least = least.into_iter().chain(least_up_to(&mount, path, file)?).min();
    }
    Ok(least)
}

/// The lowest limit in `file` in the directory `path` below `mount` and in its ancestors up to `mount`. If the
/// path does not exist, it is the host's path seen from within a container, whose own group is at `mount`.
fn least_up_to(mount: &Path, path: &str, file: &str) -> Result<Option<u64>, Errno> {
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let mut least = None;
    for directory in group.ancestors().take_while(|directory| directory.starts_with(mount)) {
        // `max`, and the huge number for it in version 1, do not limit below the machine's memory.
        let limit = read(directory.join(file))?.and_then(|text| text.trim().parse().ok());
        least = least.into_iter().chain(limit).min();
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, file: &str, limit: &str) {
        let directory = root.join(path);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(file), format!("{limit}\n")).unwrap();
    }

    #[test]
    fn the_tightest_of_a_group_and_those_around_it_counts() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "a", "memory.max", "4000");
        group(root.path(), "a/b", "memory.max", "max");
        group(root.path(), "a/b/c", "memory.max", "5000");
        assert_eq!(least_of_groups(root.path(), "0::/a/b/c\n").unwrap(), Some(4000));
        assert_eq!(least_of_groups(root.path(), "0::/elsewhere\n").unwrap(), None);
        assert_eq!(least_of_groups(root.path(), "").unwrap(), None);
    }

    #[test]
    fn a_container_finds_its_limit_at_the_mount_point() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "", "memory.max", "7000");
        assert_eq!(least_of_groups(root.path(), "0::/\n").unwrap(), Some(7000));
        assert_eq!(least_of_groups(root.path(), "0::/system.slice/docker-1.scope\n").unwrap(), Some(7000));
    }

    #[test]
    fn groups_of_version_1_are_known() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "memory/x", "memory.limit_in_bytes", "9000");
        let groups = "5:cpu,cpuacct:/x\n4:memory:/x\n0::/x\n";
        assert_eq!(least_of_groups(root.path(), groups).unwrap(), Some(9000));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_total().unwrap() > 1 << 20);
        assert_eq!(kibibytes("A: 1 kB\nMemTotal:       2 kB\n", "MemTotal:"), Some(2048));
    }
}
