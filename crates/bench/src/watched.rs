//! The source of CPU time and memory: the processes of a system on this machine, or the figures that a remote
//! broker publishes.

mod find;
mod scrape;

use crate::error::Error;
use crate::process;
use scrape::Endpoint;

/// The sources of a system's CPU time and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Processes of this machine; their children count, too.
    pub(crate) pids: Vec<u32>,
    /// A remote broker's own figures.
    remote: Option<Endpoint>,
}

/// The resources that a system has used; `None` if its source does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// User and system time since the start, in seconds.
    pub(crate) cpu_seconds: Option<f64>,
    /// Resident memory in bytes.
    pub(crate) rss_bytes: Option<u64>,
}

impl Usage {
    /// CPU time used since `before`, in seconds; `None` also if there is less of it now, because a process has ended or a
    /// broker was started again.
    pub(crate) fn cpu_since(&self, before: &Self) -> Option<f64> {
        let used = self.cpu_seconds.zip(before.cpu_seconds).map(|(now, before)| now - before);
        used.filter(|seconds| *seconds >= 0.0)
    }
}

/// The syntax of the suffixes of a `--system`.
pub(crate) const FORM: &str =
    "[,pid=N][,process=NAME][,unit=NAME][,prometheus=http://HOST:PORT/metrics][,management=http://HOST:PORT]";

impl Watched {
    /// Watches these processes of this machine.
    pub(crate) fn processes(pids: &[u32]) -> Self {
        Self { pids: pids.to_vec(), remote: None }
    }

    /// Splits the sources off the end of a text such as `name=uri,pid=N,unit=NAME`; also returns the text before them.
    ///
    /// # Errors
    /// A usage error if there is no such process or unit, or an address does not answer.
    pub(crate) fn take_from(text: &str) -> Result<(Self, &str), Error> {
        let (mut rest, mut watched) = (text, Self::default());
        // Parsed from the end, since a password may contain a comma.
        while let Some((before, key, value)) = last_suffix(rest) {
            watched.add(key, value)?;
            rest = before;
        }
        watched.pids.reverse();
        watched.pids.dedup();
        Ok((watched, rest))
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Usage(format!("--system: {what}")));
        match key {
            "pid" => match value.parse() {
                Ok(pid) if process::exists(pid) => self.pids.push(pid),
                Ok(pid) => return refuse(format!("there is no process {pid}")),
                Err(_) => return refuse(format!("{value:?} is not a process id")),
            },
            "process" => match find::by_name(value) {
                pids if pids.is_empty() => return refuse(format!("no process is called {value:?}")),
                pids => self.pids.extend(pids),
            },
            "unit" => match find::by_unit(value) {
                pids if pids.is_empty() => return refuse(format!("no process belongs to a unit {value:?}")),
                pids => self.pids.extend(pids),
            },
            _ => {
                if self.remote.is_some() {
                    return refuse("more than one address to ask".into());
                }
                let endpoint = Endpoint::parse(key, value)?;
                if let Err(why) = endpoint.usage() {
                    return refuse(format!("{endpoint}: {why}"));
                }
                self.remote = Some(endpoint);
            }
        }
        Ok(())
    }

    /// Whether there are no sources.
    pub(crate) fn is_empty(&self) -> bool {
        self.pids.is_empty() && self.remote.is_none()
    }

    /// Whether reading is cheap enough while a rate is measured: a broker has to work for each answer about
    /// itself.
    pub(crate) fn is_local(&self) -> bool {
        self.remote.is_none()
    }

    /// Reads the usage. Processes that have ended count as zero; a broker that does not answer yields `None`.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        if !self.pids.is_empty() {
            let tree = process::tree_usage(&self.pids);
            usage = Usage { cpu_seconds: Some(tree.cpu_seconds), rss_bytes: Some(tree.rss_bytes) };
        }
        if let Some(reported) = self.remote.as_ref().and_then(|endpoint| endpoint.usage().ok()) {
            let cpu_seconds = add(usage.cpu_seconds, reported.cpu_seconds);
            usage = Usage { cpu_seconds, rss_bytes: add(usage.rss_bytes, reported.rss_bytes) };
        }
        usage
    }

    /// The sources of both.
    pub(crate) fn with(&self, other: &Self) -> Self {
        let pids = [&self.pids[..], &other.pids].concat();
        Self { pids, remote: self.remote.clone().or_else(|| other.remote.clone()) }
    }
}

fn add<T: std::ops::Add<Output = T> + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.zip(other).map(|(one, other)| one + other).or(one).or(other)
}

/// Splits off the last suffix; returns the text before it, its key, and its value.
fn last_suffix(text: &str) -> Option<(&str, &str, &str)> {
    const KEYS: [&str; 5] = ["pid", "process", "unit", "prometheus", "management"];
    let (before, last) = text.rsplit_once(',')?;
    let (key, value) = last.split_once('=')?;
    KEYS.contains(&key).then_some((before, key, value))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn suffixes_are_taken_from_the_end_and_a_password_keeps_its_commas() {
        let own = std::process::id();
        let text = format!("amqp://u:p,w=x@h/v,pid=1,pid={own}");
        let (watched, rest) = Watched::take_from(&text).unwrap();
        assert_eq!((watched.pids, rest), (vec![1, own], "amqp://u:p,w=x@h/v"));
        let (watched, rest) = Watched::take_from("amqp://h").unwrap();
        assert!(watched.is_empty() && rest == "amqp://h" && watched.usage() == Usage::default());
    }

    #[test]
    fn the_cpu_time_of_a_process_that_has_ended_is_not_negative() {
        let at = |seconds| Usage { cpu_seconds: Some(seconds), rss_bytes: None };
        assert_eq!(at(2.5).cpu_since(&at(1.0)), Some(1.5));
        assert_eq!(at(1.0).cpu_since(&at(2.5)), None);
        assert_eq!(at(1.0).cpu_since(&Usage::default()), None);
    }

    #[test]
    fn missing_processes_and_unusable_endpoints_are_refused() {
        for text in ["a,pid=x", "a,pid=4294967295", "a,process=no such thing", "a,unit=none.service"] {
            assert!(Watched::take_from(text).unwrap_err().is_usage(), "{text}");
        }
        for text in ["a,prometheus=ftp://h", "a,management=http://127.0.0.1:1"] {
            assert!(Watched::take_from(text).unwrap_err().is_usage(), "{text}");
        }
    }

    #[test]
    fn the_usage_of_a_remote_broker_is_read_over_http() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request) = (stream.unwrap(), [0; 1024]);
                let read = stream.read(&mut request).unwrap();
                assert!(request[..read].starts_with(b"GET /metrics HTTP/1.0\r\n"));
                let body =
                    "rabbitmq_process_resident_memory_bytes 4096\nleveret_process_cpu_seconds_total 1.5\n";
                write!(stream, "HTTP/1.1 200 OK\r\n\r\n{body}").unwrap();
            }
        });
        let text = format!("amqp://h,prometheus=http://{address}/metrics");
        let (watched, rest) = Watched::take_from(&text).unwrap();
        assert_eq!(watched.usage(), Usage { cpu_seconds: Some(1.5), rss_bytes: Some(4096) });
        assert!(rest == "amqp://h" && !watched.is_local() && !watched.is_empty());
        let both = Watched::processes(&[std::process::id()]).with(&watched).usage();
        assert!(both.rss_bytes.unwrap() > 4096 && both.cpu_seconds.unwrap() >= 1.5);
    }
}
