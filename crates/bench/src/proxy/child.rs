//! Leveret's own pool as a child process.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::error::Error;
use crate::stream::System;
use crate::uri::Uri;

/// A pool that is killed when this is dropped.
pub(super) struct Pool {
    child: Child,
    address: String,
}

impl Pool {
    /// Starts this very program as a pool in front of `upstream`, and waits until it listens.
    pub(super) fn start(upstream: &str) -> Result<Self, Error> {
        let failed = |cause| Error::Pool { cause };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--amqp", "127.0.0.1:0", "--http", "off", "--ws", "off", "--log", "warn"]);
        command.args(["--upstream", upstream]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let output = child.stdout.take().map(BufReader::new);
        // From here on it is killed, whatever happens.
        let mut pool = Self { child, address: String::new() };
        let mut lines = output.into_iter().flat_map(BufRead::lines);
        while pool.address.is_empty() {
            let line = lines.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
            if let Some(address) = listening_at(&line.map_err(failed)?) {
                pool.address = address.to_owned();
            }
        }
        // Nobody reads the rest, but it must go somewhere.
        thread::spawn(move || lines.for_each(drop));
        Ok(pool)
    }

    /// The pool as a system, with the login of the broker behind it.
    pub(super) fn system(&self, name: &str, broker: &Uri) -> Result<System, Error> {
        let at = Uri::parse(&format!("amqp://{}", self.address))?;
        let uri = Uri { host: at.host, port: at.port, ..broker.clone() };
        Ok(System { name: name.into(), uri, pids: vec![self.child.id()] })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

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
