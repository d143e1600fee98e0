//! The thread that writes the access log.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::line::{AccessFormat, LogLine, Value};
use crate::lines::{LineQueue, LineReport, LineTarget, LineWriter};

/// The sessions' end of the log: sends lines to the writer thread.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessFormat,
    lines: Arc<LineQueue>,
}

/// The thread behind an [`AccessLog`].
#[derive(Debug)]
pub struct AccessLogWriter {
    log: Arc<AccessLog>,
    writer: LineWriter,
}

impl AccessLog {
    pub(super) fn format(&self) -> AccessFormat {
        self.format
    }

    pub(super) fn write(&self, line: String) {
        self.lines.write(line.into_bytes());
    }
}

impl AccessLogWriter {
    /// Opens the target and starts the thread.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or the thread cannot be started.
    pub fn start(target: LineTarget, format: AccessFormat) -> io::Result<Self> {
        let writer = LineWriter::start("access-log", target, AccessLogReport(format))?;
        let log = Arc::new(AccessLog { format, lines: Arc::clone(writer.queue()) });
        Ok(Self { log, writer })
    }

    /// The log that sessions write to.
    pub fn log(&self) -> &Arc<AccessLog> {
        &self.log
    }

    /// Reopens the file after it was renamed.
    pub fn reopen(&self) {
        self.writer.reopen();
    }

    /// Waits until all lines so far are written, and ends the thread; see [`LineWriter::end`].
    pub fn end(&self, timeout: Duration) -> Duration {
        self.writer.end(timeout)
    }
}

struct AccessLogReport(AccessFormat);

impl LineReport for AccessLogReport {
    fn dropped(&self, lines: u64) -> String {
        let mut line = LogLine::new(self.0, SystemTime::now(), "lost");
        line.add("lines", Value::Number(lines));
        line.finish()
    }

    fn failed(&self, error: &io::Error) {
        tracing::error!(%error, "access log write failed, lines lost");
    }

    fn recovered(&self) {
        tracing::info!("access log writable again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_lost_lines_has_the_format_of_the_others() {
        let json = AccessLogReport(AccessFormat::Json).dropped(2);
        assert!(json.ends_with("\"event\":\"lost\",\"lines\":2}\n"), "{json}");
        let text = AccessLogReport(AccessFormat::Text).dropped(2);
        assert!(text.ends_with(" lost lines=2\n"), "{text}");
    }
}
