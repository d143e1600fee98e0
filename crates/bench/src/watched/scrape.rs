//! CPU time and memory that a broker reports over HTTP: as Prometheus metrics, or by RabbitMQ's management API.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Usage;
use crate::error::Error;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Larger than any broker's answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// The address of a broker's figures.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    kind: SampleKind,
    /// Host and port.
    authority: String,
    /// The value of the header Authorization.
    login: Option<String>,
    path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SampleKind {
    Prometheus,
    Management,
}

impl Endpoint {
    /// Parses `http://user:password@host:port/path`; without a path, the usual one. Errors do not repeat the
    /// URL, since it may contain a password.
    pub(super) fn parse(key: &str, url: &str) -> Result<Self, Error> {
        let kind = if key == "management" { SampleKind::Management } else { SampleKind::Prometheus };
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| Error::Usage(format!("--system: {key}: it does not start with http://")))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, authority) = match authority.rsplit_once('@') {
            Some((login, authority)) => (Some(STANDARD.encode(login)), authority),
            None => (None, authority),
        };
        let (port, usual) = match kind {
            SampleKind::Prometheus => (15692, "/metrics"),
            SampleKind::Management => (15672, "/api/nodes"),
        };
        let login =
            login.or_else(|| (kind == SampleKind::Management).then(|| STANDARD.encode("guest:guest")));
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let path = match (kind, path) {
            (_, "" | "/") => usual.to_owned(),
            (SampleKind::Prometheus, path) => path.to_owned(),
            (SampleKind::Management, path) => format!("{}/api/nodes", path.trim_end_matches('/')),
        };
        Ok(Self { kind, authority, login, path })
    }

    /// Requests the figures.
    pub(super) fn usage(&self) -> io::Result<Usage> {
        let body = self.get()?;
        let usage = match self.kind {
            SampleKind::Prometheus => of_metrics(&body, since_epoch()),
            SampleKind::Management => of_nodes(&body),
        };
        if usage == Usage::default() {
            Err(bad("neither CPU time nor memory in the answer"))
        } else {
            Ok(usage)
        }
    }

    fn get(&self) -> io::Result<String> {
        let address =
            self.authority.to_socket_addrs()?.next().ok_or_else(|| bad("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let login =
            self.login.as_ref().map_or(String::new(), |login| format!("Authorization: Basic {login}\r\n"));
        // HTTP 1.0, so that the answer ends with the connection.
        let request = format!("GET {} HTTP/1.0\r\nHost: {}\r\n{login}\r\n", self.path, self.authority);
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| bad("no HTTP"))?;
        let status = head.lines().next().unwrap_or_default();
        if status.split(' ').nth(1) != Some("200") {
            return Err(bad(&format!("the answer was {status}")));
        }
        Ok(body.to_owned())
    }
}

fn since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64())
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// Omits the password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// Omits the password, too.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names of CPU time metrics, with the factor to seconds: RabbitMQ's up to 3.x and Leveret's, then the common one.
const CPU: [(&str, f64); 3] = [
    ("erlang_vm_statistics_runtime_milliseconds", 1e-3),
    ("leveret_process_cpu_seconds_total", 1.0),
    ("process_cpu_seconds_total", 1.0),
];
const MEMORY: [&str; 2] = ["rabbitmq_process_resident_memory_bytes", "process_resident_memory_bytes"];
/// RabbitMQ 4's CPU time, its time since the start, and when that was (seconds since 1970).
const ERLANG_CPU: &str = "erlang_vm_statistics_runtime_seconds_total";
const ERLANG_UPTIME: &str = "erlang_vm_statistics_wallclock_time_seconds_total";
const STARTED: &str = "process_start_time_seconds";

/// `now` in seconds since 1970.
fn of_metrics(text: &str, now: f64) -> Usage {
    let cpu = CPU.iter().find_map(|(name, factor)| sum_of(text, name).map(|value| value * factor));
    let cpu = cpu.or_else(|| Some(sum_of(text, ERLANG_CPU)? * erlang_unit(text, now)));
    let memory = MEMORY.iter().find_map(|name| sum_of(text, name));
    Usage { cpu_seconds: cpu, rss_bytes: memory.map(|bytes| bytes as u64) }
}

/// The unit of RabbitMQ 4's metrics in seconds: 4.3.6 reports milliseconds under that name. Comparing the uptime metric
/// with the time since the start shows the unit.
fn erlang_unit(text: &str, now: f64) -> f64 {
    let uptime = sum_of(text, STARTED).map(|started| (now - started).max(1.0));
    match (sum_of(text, ERLANG_UPTIME), uptime) {
        // A tenth of the factor between the two units tolerates a difference of the clocks.
        (Some(counted), Some(uptime)) if counted < 100.0 * uptime => 1.0,
        _ => 1e-3,
    }
}

/// The sum of a metric over its labels; `None` if it does not exist.
fn sum_of(text: &str, name: &str) -> Option<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest,
        };
        rest.strip_prefix(' ')?.split_ascii_whitespace().next()?.parse::<f64>().ok()
    };
    text.lines().filter_map(value).fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// The memory of all nodes; RabbitMQ's management API does not report their CPU time.
fn of_nodes(text: &str) -> Usage {
    let nodes: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let memory =
        nodes.as_array().map(|nodes| nodes.iter().filter_map(|node| node["mem_used"].as_u64()).sum());
    Usage { cpu_seconds: None, rss_bytes: memory.filter(|bytes| *bytes > 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_added_up_over_their_labels_and_not_mistaken() {
        let text = "# HELP process_cpu_seconds_total x\n\
            erlang_vm_statistics_runtime_milliseconds{node=\"a} b\"} 1500 1700000000\n\
            erlang_vm_statistics_runtime_milliseconds{node=\"b\"} 500\n\
            erlang_vm_statistics_runtime_milliseconds_more 7\n\
            rabbitmq_process_resident_memory_bytes 1.5e6\n";
        assert_eq!(of_metrics(text, 0.0), Usage { cpu_seconds: Some(2.0), rss_bytes: Some(1_500_000) });
        assert_eq!(of_metrics("up 1\n", 0.0), Usage::default());
    }

    #[test]
    fn rabbitmq_4_may_call_milliseconds_seconds() {
        let text = |runtime, uptime| {
            format!(
                "process_start_time_seconds 1795463284\n\
                 erlang_vm_statistics_runtime_seconds_total {runtime}\n\
                 erlang_vm_statistics_wallclock_time_seconds_total {uptime}\n"
            )
        };
        let cpu = |text: &str, now| of_metrics(text, now).cpu_seconds;
        assert_eq!(cpu(&text("2230", "10176"), 1_795_463_294.0), Some(2.23));
        assert_eq!(cpu(&text("2.25", "10.176"), 1_795_463_294.0), Some(2.25));
        assert_eq!(cpu(&text("2230", "10176"), 1_795_463_000.0), Some(2.23), "the clocks differ");
        assert_eq!(cpu(&text("864000", "950400"), 1_796_413_684.0), Some(864_000.0), "after eleven days");
    }

    #[test]
    fn the_memory_of_all_nodes_is_added_up() {
        let usage = of_nodes(r#"[{"mem_used": 100, "name": "a"}, {"mem_used": 50}]"#);
        assert_eq!(usage, Usage { cpu_seconds: None, rss_bytes: Some(150) });
        assert_eq!(of_nodes("{}"), Usage::default());
    }

    #[test]
    fn addresses_have_the_usual_ports_and_paths_and_hide_the_password() {
        let parse = |key, url| Endpoint::parse(key, url).unwrap().to_string();
        assert_eq!(parse("prometheus", "http://h"), "http://h:15692/metrics");
        assert_eq!(parse("prometheus", "http://h:1/x"), "http://h:1/x");
        assert_eq!(parse("management", "http://u:secret@h"), "http://h:15672/api/nodes");
        assert_eq!(parse("management", "http://h:1/prefix/"), "http://h:1/prefix/api/nodes");
        let error = Endpoint::parse("management", "https://u:secret@h").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
