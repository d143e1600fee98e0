//! Leveret itself as a child process: its broker, or its pool in front of another broker.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::error::Error;
use crate::study::systems::System;
use crate::uri::Uri;
use crate::watched::Watched;

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct ManagedProcess {
    child: Child,
    address: String,
    /// The data directory, which is removed with the process.
    directory: Option<PathBuf>,
}

impl ManagedProcess {
    /// Starts this program as a pool in front of `upstream`, and waits until it listens.
    pub(crate) fn pool(upstream: &str) -> Result<Self, Error> {
        Self::start(&["--upstream", upstream], None)
    }

    /// Starts this program as a pool in front of `upstream` that spools all publishes, with a temporary data directory, and
    /// waits until it listens.
    pub(crate) fn spool(upstream: &str) -> Result<Self, Error> {
        let (directory, text) = temporary_dir("spool");
        let arguments = ["--upstream", upstream, "--spool", r#"{exchange = ".*"}"#, "--data-dir", &text];
        Self::start(&arguments, Some(directory))
    }

    /// Starts this program as a broker with a temporary data directory.
    pub(crate) fn broker() -> Result<Self, Error> {
        let (directory, text) = temporary_dir("broker");
        Self::start(&["--data-dir", &text], Some(directory))
    }

    fn start(arguments: &[&str], directory: Option<PathBuf>) -> Result<Self, Error> {
        let failed = |cause| Error::ManagedProcess { cause };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--amqp", "127.0.0.1:0", "--log", "warn"]).args(arguments);
        // The environment's settings are meant for the program that runs the study.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("LEVERET_") || text.starts_with("RABBITMQ_DEFAULT_") {
                command.env_remove(&name);
            }
        }
        for other in OTHER_LISTENERS {
            command.args([other, "off"]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let output = child.stdout.take().map(BufReader::new);
        // From here on, dropping it kills the process.
        let mut process = Self { child, address: String::new(), directory };
        let mut lines = output.into_iter().flat_map(BufRead::lines);
        while process.address.is_empty() {
            let line = lines.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
            if let Some(address) = listening_at(&line.map_err(failed)?) {
                process.address = address.to_owned();
            }
        }
        // The rest of the output must be read, although nothing uses it.
        thread::spawn(move || lines.for_each(drop));
        Ok(process)
    }

    /// The process as a system under test, with these credentials.
    pub(crate) fn system(&self, name: &str, login: &Uri) -> Result<System, Error> {
        let at = Uri::parse(&format!("amqp://{}", self.address))?;
        let uri = Uri { tls: None, ..login.at(&at.host, at.port) };
        Ok(System { name: name.into(), uri, watched: Watched::processes(&[self.child.id()]) })
    }
}

impl Drop for ManagedProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(directory) = &self.directory {
            drop(std::fs::remove_dir_all(directory));
        }
    }
}

/// A new unique path, also as text.
fn temporary_dir(purpose: &str) -> (PathBuf, String) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("leveret-bench-{purpose}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let directory = std::env::temp_dir().join(name);
    let text = directory.to_string_lossy().into_owned();
    (directory, text)
}

/// Options for listeners whose default ports may be in use.
const OTHER_LISTENERS: [&str; 6] = ["--http", "--ws", "--mqtt", "--stomp", "--web-mqtt", "--web-stomp"];

/// The address in a line such as `amqp  listening on amqp://127.0.0.1:5673`.
fn listening_at(line: &str) -> Option<&str> {
    line.strip_prefix("amqp ")?.trim_start().strip_prefix("listening on amqp://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_amqp_listener_tells_the_address() {
        assert_eq!(listening_at("amqp  listening on amqp://127.0.0.1:4711"), Some("127.0.0.1:4711"));
        for other in ["amqps listening on amqps://127.0.0.1:1", "http  listening on http://h:1", "amqp"] {
            assert_eq!(listening_at(other), None);
        }
    }
}
