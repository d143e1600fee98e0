//! Metrics of this process, from /proc (proc_pid_stat(5) and related files).

use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::metrics::{Families, MetricKind, MetricsWriter, WantedMetrics};

/// When this process began to serve HTTP.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started {
    /// Seconds since 1970.
    wall: f64,
    /// The uptime does not change when the wall clock is set.
    at: Instant,
}

impl Started {
    pub(crate) fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Self { wall, at: Instant::now() }
    }
}

/// Writes the values that could be read. A value that the system does not report is left out.
pub(crate) fn write(out: &mut MetricsWriter, started: Started, wanted: &WantedMetrics) {
    match wanted {
        WantedMetrics::Together | WantedMetrics::Apart => {
            write_usage(out, "rabbitmq");
            write_limits(out, "rabbitmq", started);
            write_own(out, started);
        }
        WantedMetrics::Detailed(detail) => {
            if detail.wants(&[Families::NodeCoarse]) {
                write_usage(out, "rabbitmq_detailed");
            }
            if detail.wants(&[Families::Node]) {
                write_limits(out, "rabbitmq_detailed", started);
            }
        }
    }
}

fn write_usage(out: &mut MetricsWriter, prefix: &str) {
    if let Some(bytes) = read("status").as_deref().and_then(resident_bytes) {
        out.gauge(&format!("{prefix}_process_resident_memory_bytes"), "Resident memory in bytes.", bytes);
    }
    if let Some(open) = open_files() {
        out.gauge(&format!("{prefix}_process_open_fds"), "Open file descriptors.", open);
    }
}

/// Dashboards made for RabbitMQ read the uptime from a metric with Erlang in its name.
fn write_limits(out: &mut MetricsWriter, prefix: &str, started: Started) {
    if let Some(most) = read("limits").as_deref().and_then(max_open_files) {
        let help = "Maximum number of open file descriptors.";
        out.gauge(&format!("{prefix}_process_max_fds"), help, most);
        // A socket is a file descriptor; there is no separate limit.
        let help = "Maximum number of open sockets.";
        out.gauge(&format!("{prefix}_process_max_tcp_sockets"), help, most);
    }
    let uptime = started.at.elapsed().as_secs_f64();
    out.gauge(&format!("{prefix}_erlang_uptime_seconds"), "Uptime of the server in seconds.", uptime);
}

fn write_own(out: &mut MetricsWriter, started: Started) {
    out.family("leveret_build_info", "Version of the running server.", MetricKind::Gauge)
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    out.gauge("leveret_start_time_seconds", "Start time in seconds since the epoch.", started.wall);
    if let Some((seconds, threads)) = read("stat").as_deref().and_then(cpu_and_threads) {
        out.counter("leveret_process_cpu_seconds_total", "User and system CPU time in seconds.", seconds);
        out.gauge("leveret_process_threads", "Number of OS threads.", threads);
    }
}

/// This process's resident memory in bytes, if the system reports it.
pub fn resident_memory() -> Option<u64> {
    read("status").as_deref().and_then(resident_bytes)
}

/// The number of file descriptors this process has open and its limit, each if the system reports it.
pub fn descriptors() -> (Option<u64>, Option<u64>) {
    (open_files(), read("limits").as_deref().and_then(max_open_files))
}

fn read(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/self/{name}")).ok()
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn max_open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Since Linux 6.2 the directory's size is the number of descriptors; before that it is 0, and they are counted
/// one by one.
fn open_files() -> Option<u64> {
    let open_files = fs::metadata("/proc/self/fd").ok()?.len();
    if open_files > 0 {
        return Some(open_files);
    }
    // One of them is the directory being read.
    let counted = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    counted.checked_sub(1)
}

/// Clock ticks per second in /proc: `USER_HZ`, which Linux fixes at 100 on every platform Leveret is built for.
const TICKS_PER_SECOND: f64 = 100.0;

fn cpu_and_threads(stat: &str) -> Option<(f64, u64)> {
    // The second field is the program's name in parentheses and may hold spaces and parentheses itself.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    let threads = fields.nth(4)?.parse().ok()?;
    Some(((user + system) / TICKS_PER_SECOND, threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_proc_are_found() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\nVmData:\t1 kB\n"), Some(2 << 20));
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024       524288    files\n";
        assert_eq!(max_open_files(limits), Some(1024));
        assert_eq!(max_open_files("Max open files  unlimited unlimited files\n"), None);
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 100 200";
        assert_eq!(cpu_and_threads(stat), Some((2.0, 9)));
        assert_eq!(cpu_and_threads(""), None);
    }

    #[test]
    fn this_process_is_measured() {
        let mut out = MetricsWriter::new();
        write(&mut out, Started::now(), &WantedMetrics::Together);
        let text = out.into_text();
        for name in [
            "leveret_build_info",
            "leveret_start_time_seconds",
            "rabbitmq_process_resident_memory_bytes",
            "rabbitmq_process_open_fds",
            "leveret_process_cpu_seconds_total",
            "leveret_process_threads",
        ] {
            assert!(text.contains(&format!("\n{name}")), "{name} in {text}");
        }
    }
}
