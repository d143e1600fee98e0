//! CPU time and resident memory of processes with their children, from `/proc`.

use std::collections::HashMap;
use std::fs;

/// USER_HZ: the unit of CPU times in `/proc`, 100 per second on every Linux architecture in use.
const TICKS_PER_SECOND: f64 = 100.0;

/// The resources used by a process and all its descendants.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TreeUsage {
    /// User and system time since their start, in seconds; children that ended are included.
    pub(crate) cpu_seconds: f64,
    /// Resident memory in bytes, summed: shared pages count once for each process.
    pub(crate) rss_bytes: u64,
}

/// Reads the usage of these processes and their descendants. Processes that have ended count as zero.
pub(crate) fn tree_usage(roots: &[u32]) -> TreeUsage {
    if roots.is_empty() {
        return TreeUsage::default();
    }
    let stats = all_processes();
    let mut usage = TreeUsage::default();
    for (&pid, stat) in &stats {
        if descends_from(pid, roots, &stats) {
            usage.cpu_seconds += stat.cpu_seconds;
            usage.rss_bytes += rss_bytes(pid);
        }
    }
    usage
}

/// Whether a process with this id exists.
pub(crate) fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// User and system time of this process, in seconds.
pub(crate) fn own_cpu_seconds() -> f64 {
    read_stat("/proc/self/stat").map_or(0.0, |stat| stat.cpu_seconds)
}

/// The calling thread's id.
pub(crate) fn own_thread_id() -> Option<u32> {
    fs::read_link("/proc/thread-self").ok()?.file_name()?.to_str()?.parse().ok()
}

/// User and system time of one thread of this process, in seconds.
pub(crate) fn thread_cpu_seconds(thread: u32) -> f64 {
    read_stat(&format!("/proc/self/task/{thread}/stat")).map_or(0.0, |stat| stat.own_cpu_seconds)
}

/// Seconds that all cores together spent idle or waiting for a disk since boot.
pub(crate) fn machine_idle_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let mut fields = stat.lines().next()?.split_ascii_whitespace().skip(4);
    let (idle, iowait): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((idle + iowait) / TICKS_PER_SECOND)
}

#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    own_cpu_seconds: f64,
    /// CPU time of children that have ended and were waited for is included.
    cpu_seconds: f64,
}

fn all_processes() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, read_stat(&format!("/proc/{pid}/stat"))?))
        })
        .collect()
}

fn descends_from(pid: u32, roots: &[u32], stats: &HashMap<u32, Stat>) -> bool {
    let mut at = pid;
    // Bounded, in case the snapshot caught a reused process id.
    for _ in 0..stats.len() {
        if roots.contains(&at) {
            return true;
        }
        match stats.get(&at) {
            Some(stat) => at = stat.parent,
            None => return false,
        }
    }
    false
}

fn read_stat(path: &str) -> Option<Stat> {
    parse_stat(&fs::read_to_string(path).ok()?)
}

/// See proc_pid_stat(5). The name, in parentheses, may itself contain spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, after_name) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    // `after_name` starts with field 3 (state).
    let field = |number: usize| fields.get(number - 3)?.parse::<i64>().ok();
    let own = (field(14)? + field(15)?) as f64 / TICKS_PER_SECOND;
    let children = (field(16)? + field(17)?) as f64 / TICKS_PER_SECOND;
    Some(Stat { parent: u32::try_from(field(4)?).ok()?, own_cpu_seconds: own, cpu_seconds: own + children })
}

fn rss_bytes(pid: u32) -> u64 {
    // VmRSS is in KiB regardless of the page size.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_skipped() {
        let text = "42 (a) b (c) S 7 1 1 0 -1 4194304 1 2 3 4 150 50 20 30 20 0 1 0 9 0 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!(stat, Stat { parent: 7, own_cpu_seconds: 2.0, cpu_seconds: 2.5 });
        assert_eq!(parse_stat("42 (short) S 7"), None);
    }

    #[test]
    fn children_count_for_their_ancestors_only() {
        let stat = |parent| Stat { parent, own_cpu_seconds: 1.0, cpu_seconds: 1.0 };
        let stats =
            HashMap::from([(1, stat(0)), (10, stat(1)), (11, stat(10)), (12, stat(11)), (20, stat(1))]);
        let of = |root| {
            let mut pids: Vec<u32> =
                stats.keys().copied().filter(|&p| descends_from(p, &[root], &stats)).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(of(10), [10, 11, 12]);
        assert_eq!(of(20), [20]);
    }

    #[test]
    fn this_process_uses_memory_and_exists() {
        let own = std::process::id();
        assert!(exists(own));
        assert!(tree_usage(&[own]).rss_bytes > 0);
        assert!(own_thread_id().is_some());
    }
}
