//! The start-up lines for scripts: one per listener, on standard output.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use server::{LAST_LINES_TIMEOUT, LineReport, LineWriter, ListenerKind};

/// An announced listener.
#[derive(Debug, Clone)]
pub(crate) struct Announced {
    pub(crate) kind: ListenerKind,
    /// `unix:/path` for a Unix socket.
    pub(crate) url: String,
}

/// The announced listeners, in order.
static ANNOUNCED: Mutex<Vec<Announced>> = Mutex::new(Vec::new());

/// Writes them, so that a standard output that nobody reads does not hold up the start: a process that takes over may have
/// inherited it. `None` if there is no thread for it.
static OUTPUT: OnceLock<Option<LineWriter>> = OnceLock::new();

/// Most time that a line may take before the start goes on without it.
const LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// Prints `NAME  listening on URL` and flushes, so that the parent process can read the port at once.
///
/// A closed standard output is no reason to stop serving.
pub(crate) fn announce(listener: Announced) {
    let line = line(listener.kind.setting, &listener.url);
    ANNOUNCED.lock().push(listener);
    let output = OUTPUT.get_or_init(|| LineWriter::start_on("announcements", io::stdout(), Unreported).ok());
    if let Some(output) = output {
        output.queue().write(line.into_bytes());
        output.queue().flush(LINE_TIMEOUT);
    }
}

/// Writes the lines that are left, if they can be written. Called once, before the process exits.
pub(crate) fn end() {
    if let Some(Some(output)) = OUTPUT.get() {
        output.end(LAST_LINES_TIMEOUT);
    }
}

/// There are far fewer lines than may wait.
struct Unreported;

impl LineReport for Unreported {
    fn dropped(&self, _: u64) -> String {
        String::new()
    }
}

/// Returns the announced listeners, in order.
pub(crate) fn announced() -> Vec<Announced> {
    ANNOUNCED.lock().clone()
}

fn line(setting: &str, url: &str) -> String {
    let name = setting.replace('_', "-");
    // Padded to the width of `amqps`, so that the AMQP lines align.
    format!("{name:<5} listening on {url}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_one_scripts_read() {
        assert_eq!(line("amqp", "amqp://127.0.0.1:5672"), "amqp  listening on amqp://127.0.0.1:5672\n");
        assert_eq!(line("web_mqtt", "ws://[::1]:1"), "web-mqtt listening on ws://[::1]:1\n");
    }
}
