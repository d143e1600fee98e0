//! Logs: human-readable lines on standard error.
//!
//! A writer thread prints them, so logging never blocks: a full pipe stops neither clients nor the end of the process. Panics
//! are logged in the same way; they, announcements and the last line before an exit wait for the thread, but not for long.

mod fields;
mod repeats;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use server::{LAST_LINES_TIMEOUT, LineQueue, LineReport, LineTarget, LineWriter};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

use self::fields::LogFields;
use self::repeats::{Collapse, Repeats};
use crate::config::Config;

/// The log of the process. Its filter can change while the process runs.
#[derive(Debug, Clone)]
pub(crate) struct ProcessLog {
    filter: reload::Handle<EnvFilter, Registry>,
    repeats: Arc<Repeats>,
    writer: Arc<LineWriter>,
}

/// How long equal warnings are only counted, before their number is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

impl ProcessLog {
    /// Applies the setting `log`, which was validated when it was read.
    pub(crate) fn set(&self, config: &Config) {
        // This fails only if there is no log any more to report the failure.
        let _ = self.filter.reload(filter(config));
    }

    /// Logs how often warnings were repeated since the last call.
    pub(crate) fn report_repeats(&self) {
        self.repeats.report();
    }

    /// Does so again and again.
    pub(crate) async fn keep_reporting(self) {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            self.report_repeats();
        }
    }

    /// Writes the last line of the process that has failed, as it is.
    pub(crate) fn write_failure(&self, line: &str) {
        self.writer.queue().write(format!("{line}\n").into_bytes());
    }

    /// Waits until all lines so far are written, but at most as long as `timeout`.
    pub(crate) fn flush(&self, timeout: Duration) {
        self.writer.queue().flush(timeout);
    }

    /// The lines that wait to be written.
    pub(crate) fn queue(&self) -> &Arc<LineQueue> {
        self.writer.queue()
    }

    /// Writes the lines that are left, if they can be written in this time. Called once, before the process exits.
    pub(crate) fn end(&self, timeout: Duration) {
        self.writer.end(timeout);
    }
}

/// Starts logging for the rest of the process.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(config: &Config) -> io::Result<ProcessLog> {
    let writer = Arc::new(LineWriter::start("log", LineTarget::Stderr, DroppedLines)?);
    log_panics(Arc::clone(writer.queue()));
    let (filter, handle) = reload::Layer::new(filter(config));
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(LogFields)
        .with_writer(Lines(Arc::clone(writer.queue())))
        .with_ansi(io::stderr().is_terminal());
    let repeats = Arc::new(Repeats::default());
    let lines = lines.with_filter(Collapse(Arc::clone(&repeats)));
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(ProcessLog { filter: handle, repeats, writer })
}

/// Writes the last line of a process that has failed before its log was started, as it is. Returns in a few seconds even if it
/// cannot be written.
pub(crate) fn write_without_log(line: &str) {
    let line = format!("{line}\n");
    match LineWriter::start("log", LineTarget::Stderr, DroppedLines) {
        Ok(writer) => {
            writer.queue().write(line.into_bytes());
            writer.end(LAST_LINES_TIMEOUT);
        }
        Err(_) => {
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}

/// Writes panics as the standard library does, but through the log's thread. Each is waited for, as it may end the process.
fn log_panics(queue: Arc<LineQueue>) {
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("<unnamed>");
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
            _ => "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n".to_owned(),
        };
        queue.write(format!("\nthread '{thread}' {info}\n{backtrace}").into_bytes());
        queue.flush(PANIC_TIMEOUT);
    }));
}

/// Most time that a panic takes when nothing can be written.
const PANIC_TIMEOUT: Duration = Duration::from_secs(1);

/// Passes each event to the log's thread.
struct Lines(Arc<LineQueue>);

impl<'w> MakeWriter<'w> for Lines {
    type Writer = EventWriter<'w>;

    fn make_writer(&'w self) -> Self::Writer {
        EventWriter(&self.0)
    }
}

/// Takes the line of an event, which is written in one go.
struct EventWriter<'w>(&'w LineQueue);

impl io::Write for EventWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reports lines that are missing, whatever the filter is.
struct DroppedLines;

impl LineReport for DroppedLines {
    fn dropped(&self, lines: u64) -> String {
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut line));
        line + &format!(
            "  WARN leveret::logs: standard error was not read: lines of the log are lost lines={lines}\n"
        )
    }
}

/// The filter of the setting `log`, which was validated when it was read.
fn filter(config: &Config) -> EnvFilter {
    EnvFilter::builder().parse_lossy(&config.log.0)
}
