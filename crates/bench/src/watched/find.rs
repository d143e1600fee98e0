//! Finds processes by name and by systemd unit, in `/proc`.

use std::fs;
use std::path::Path;

/// Bytes of a process's name that the kernel stores.
const NAME_LEN: usize = 15;

/// Ids of the processes with this name, as `ps -o comm` shows it, except for this process.
pub(super) fn by_name(name: &str) -> Vec<u32> {
    let known = &name.as_bytes()[..name.len().min(NAME_LEN)];
    matching(Path::new(PROC), "comm", |comm| !known.is_empty() && comm.trim_end().as_bytes() == known)
}

/// Ids of the processes of a systemd unit; `.service` may be omitted. They are found by control group, which
/// needs no privileges.
pub(super) fn by_unit(unit: &str) -> Vec<u32> {
    by_unit_in(Path::new(PROC), unit)
}

/// Where the kernel lists processes.
const PROC: &str = "/proc";

fn by_unit_in(proc: &Path, unit: &str) -> Vec<u32> {
    let unit = if unit.contains('.') { unit.to_owned() } else { format!("{unit}.service") };
    matching(proc, "cgroup", |groups| belongs_to(groups, &unit))
}

/// Whether a process with these control groups, see cgroups(7), belongs to a unit or a group below it.
fn belongs_to(groups: &str, unit: &str) -> bool {
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.split('/').any(|p| p == unit))
}

fn matching(proc: &Path, file: &str, matches: impl Fn(&str) -> bool) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pids = pids.filter(|pid| *pid != std::process::id());
    let read = |pid: &u32| fs::read_to_string(proc.join(pid.to_string()).join(file));
    pids.filter(|pid| read(pid).is_ok_and(|text| matches(&text))).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn processes_are_found_by_name_and_the_one_that_measures_is_left_out() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        // Until its exec, the child has the name of this process.
        while fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
            thread::yield_now();
        }
        let found = by_name("sleep");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()));
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(!by_name(own.trim_end()).contains(&std::process::id()));
        assert!(by_name("").is_empty() && by_name("no such program").is_empty());
    }

    #[test]
    fn a_unit_is_a_whole_part_of_a_path() {
        let groups = "12:cpu:/\n0::/system.slice/rabbitmq-server.service/worker\n";
        assert!(belongs_to(groups, "rabbitmq-server.service"));
        assert!(!belongs_to(groups, "server.service") && !belongs_to(groups, "rabbitmq-server"));
        assert!(by_unit("none-such").is_empty());
    }

    #[test]
    fn processes_of_a_unit_are_found_in_both_kinds_of_control_groups() {
        let proc = tempfile::tempdir().unwrap();
        let unified = "0::/system.slice/it.service\n";
        let several = "9:name=systemd:/system.slice/it.service/worker\n4:memory:/\n0::/\n";
        for (pid, groups) in [
            ("11", unified),
            ("12", several),
            ("13", "0::/system.slice/bit.service\n"),
            ("14", "0::/it.service.d\n"),
            ("self", unified),
            (&std::process::id().to_string(), unified),
        ] {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("cgroup"), groups).unwrap();
        }
        // A process that ended during the search.
        fs::create_dir(proc.path().join("15")).unwrap();
        for unit in ["it", "it.service"] {
            let mut found = by_unit_in(proc.path(), unit);
            found.sort_unstable();
            assert_eq!(found, [11, 12], "{unit}");
        }
        assert!(by_unit_in(proc.path(), "system").is_empty());
        assert_eq!(by_unit_in(proc.path(), "bit"), [13]);
        assert!(by_unit_in(&proc.path().join("none"), "it").is_empty());
    }
}
