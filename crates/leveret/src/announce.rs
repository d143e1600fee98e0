//! The startup lines for scripts: one per listener, on standard output.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use server::{LineQueue, LineReport, LineWriter, ListenerKind};

/// An announced listener.
#[derive(Debug, Clone)]
pub(crate) struct Announced {
    pub(crate) kind: ListenerKind,
    /// `unix:/path` for a Unix socket.
    pub(crate) url: String,
}

/// The announced listeners, in order.
static ANNOUNCED: Mutex<Vec<Announced>> = Mutex::new(Vec::new());

/// Set once by [`begin`], unless there is no thread for it.
static OUTPUT: OnceLock<Announcements> = OnceLock::new();

/// Maximum time for the lines, after which the start continues without them.
const LINES_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes the lines of the announced listeners.
struct Announcements {
    log: Arc<LineQueue>,
    /// A standard output that nobody reads does not block the start: a process that takes over may have inherited it.
    output: LineWriter,
    /// How long the next line is waited for. Zero once one has not been written in time.
    patience: Mutex<Duration>,
}

impl Announcements {
    fn start(
        log: &Arc<LineQueue>,
        stream: impl io::Write + Send + 'static,
        patience: Duration,
    ) -> io::Result<Self> {
        let output = LineWriter::start_on("announcements", stream, Unreported)?;
        Ok(Self { log: Arc::clone(log), output, patience: Mutex::new(patience) })
    }

    fn write(&self, line: String) {
        // Both may go to the same pipe, whose reader expects the beginning of the log first.
        self.wait_for(&self.log);
        self.output.queue().write(line.into_bytes());
        self.wait_for(self.output.queue());
    }

    fn wait_for(&self, queue: &LineQueue) {
        let mut patience = self.patience.lock();
        if !queue.flush(*patience) {
            *patience = Duration::ZERO;
        }
    }
}

/// Must be called before the first announcement.
pub(crate) fn begin(log: &Arc<LineQueue>) {
    if let Ok(output) = Announcements::start(log, io::stdout(), LINES_TIMEOUT) {
        let _ = OUTPUT.set(output);
    }
}

/// Notes a bound listener, which [`print()`] then announces with the others.
pub(crate) fn announce(listener: Announced) {
    ANNOUNCED.lock().push(listener);
}

/// Prints `NAME  listening on URL` for each listener and flushes, so that the parent process can read the ports at once; the
/// lines of the log so far are written before. Called once, when all are bound: scripts take the first line for a start.
///
/// A closed standard output is no reason to stop serving.
pub(crate) fn print() {
    let Some(output) = OUTPUT.get() else { return };
    for listener in announced() {
        output.write(line(listener.kind.setting, &listener.url));
    }
}

/// Writes the remaining lines within this time, and returns the rest of it. Called once, before the process exits.
pub(crate) fn end(timeout: Duration) -> Duration {
    match OUTPUT.get() {
        Some(output) => output.output.end(timeout),
        None => timeout,
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
    // Padded to the width of `prometheus`, the longest name.
    format!("{name:<10} listening on {url}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_one_scripts_read() {
        assert_eq!(line("amqp", "amqp://127.0.0.1:5672"), "amqp       listening on amqp://127.0.0.1:5672\n");
        assert_eq!(line("web_mqtt", "ws://[::1]:1"), "web-mqtt   listening on ws://[::1]:1\n");
    }

    /// Far more than any wait takes.
    const PATIENCE: Duration = Duration::from_secs(180);

    /// A stream that both write to.
    #[derive(Clone, Default)]
    struct Common(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Common {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().extend(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_lines_of_the_log_so_far_come_before_an_announcement() {
        let common = Common::default();
        let log = LineWriter::start_on("log", common.clone(), Unreported).unwrap();
        let output = Announcements::start(log.queue(), common.clone(), PATIENCE).unwrap();
        (0..1000).for_each(|_| log.queue().write(*b"log\n"));
        output.write("listening\n".to_owned());
        let written = "log\n".repeat(1000) + "listening\n";
        assert_eq!(String::from_utf8_lossy(&common.0.lock()), written);
    }

    #[test]
    fn after_a_line_that_nobody_reads_the_others_are_not_waited_for() {
        let log = LineWriter::start_on("log", io::sink(), Unreported).unwrap();
        let (_reader, stream) = io::pipe().unwrap();
        let output = Announcements::start(log.queue(), stream, Duration::from_millis(1)).unwrap();
        // Twice what a pipe holds.
        output.write("x".repeat(128 << 10));
        assert_eq!(*output.patience.lock(), Duration::ZERO);
        output.output.end(Duration::ZERO);
    }
}
