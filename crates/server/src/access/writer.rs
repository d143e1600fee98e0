//! The thread that writes the access log.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::line::{AccessFormat, LogLine, Value};

/// The destination of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessTarget {
    /// Standard error.
    Stderr,
    /// A file, appended to, and created if it does not exist.
    File(PathBuf),
}

/// The sessions' end of the log: sends lines to the writer thread.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessFormat,
    lines: SyncSender<WriterCommand>,
    lost: AtomicU64,
}

/// The thread behind an [`AccessLog`].
#[derive(Debug)]
pub struct AccessLogWriter {
    log: Arc<AccessLog>,
    /// `None` once it has ended.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
enum WriterCommand {
    Line(String),
    /// Opens the file again, which may have been renamed.
    Reopen,
    End,
}

/// Lines that may wait for the thread: 5 MB at some 300 bytes each.
const WAITING: usize = 16_384;

impl AccessLog {
    pub(super) fn format(&self) -> AccessFormat {
        self.format
    }

    pub(super) fn write(&self, line: String) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(WriterCommand::Line(line)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AccessLogWriter {
    /// Opens the target and starts the thread.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or the thread cannot be started.
    pub fn start(target: AccessTarget, format: AccessFormat) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(WAITING);
        let log = Arc::new(AccessLog { format, lines, lost: AtomicU64::new(0) });
        let sink = Sink::open(&target)?;
        let writer = Writer { target, sink, log: Arc::clone(&log), failing: false };
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        Ok(Self { log, thread: Mutex::new(Some(thread.spawn(move || writer.run(&waiting))?)) })
    }

    /// The log that sessions write to.
    pub fn log(&self) -> &Arc<AccessLog> {
        &self.log
    }

    /// Reopens the file after it was renamed. Waits until the message is queued for the thread.
    pub fn reopen(&self) {
        // Fails only when the thread has ended.
        let _ = self.log.lines.send(WriterCommand::Reopen);
    }

    /// Waits until all lines so far are written, and ends the thread. A process has to call it before it exits: others may
    /// still hold the writer then. Later lines are lost.
    pub fn end(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = self.log.lines.send(WriterCommand::End);
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for AccessLogWriter {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
enum Sink {
    Stderr,
    File(BufWriter<File>),
}

impl Sink {
    fn open(target: &AccessTarget) -> io::Result<Self> {
        Ok(match target {
            AccessTarget::Stderr => Self::Stderr,
            AccessTarget::File(path) => {
                Self::File(BufWriter::new(OpenOptions::new().create(true).append(true).open(path)?))
            }
        })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        match self {
            // One write per line, so that it is not mixed with other logs.
            Self::Stderr => io::stderr().lock().write_all(line.as_bytes()),
            Self::File(file) => file.write_all(line.as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stderr => Ok(()),
            Self::File(file) => file.flush(),
        }
    }
}

struct Writer {
    target: AccessTarget,
    sink: Sink,
    log: Arc<AccessLog>,
    /// A write failure has been reported; reported again only after a success.
    failing: bool,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<WriterCommand>) {
        while let Ok(message) = waiting.recv() {
            let mut next = Some(message);
            let mut result = Ok(());
            // Writes all waiting lines before it flushes.
            while let Some(message) = next {
                match message {
                    WriterCommand::Line(line) => result = result.and(self.sink.write(&line)),
                    WriterCommand::Reopen => {
                        result = result.and(self.sink.flush()).and_then(|()| self.reopen())
                    }
                    WriterCommand::End => {
                        self.settle(result);
                        return;
                    }
                }
                next = waiting.try_recv().ok();
            }
            self.settle(result);
        }
    }

    fn settle(&mut self, result: io::Result<()>) {
        let lost = self.log.lost.swap(0, Ordering::Relaxed);
        let reported = if lost == 0 {
            Ok(())
        } else {
            let mut line = LogLine::new(self.log.format, SystemTime::now(), "lost");
            line.add("lines", Value::Number(lost));
            self.sink.write(&line.finish())
        };
        match result.and(reported).and_then(|()| self.sink.flush()) {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("access log writable again");
            }
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, "access log write failed, lines lost");
            }
            _ => {}
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.sink = Sink::open(&self.target)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_in_order_and_in_the_new_file_after_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("access"), folder.path().join("moved"));
        let writer = AccessLogWriter::start(AccessTarget::File(path.clone()), AccessFormat::Text).unwrap();
        writer.log().write("one\n".to_owned());
        std::fs::rename(&path, &moved).unwrap();
        writer.reopen();
        writer.log().write("two\n".to_owned());
        writer.log().write("three\n".to_owned());
        drop(writer);
        assert_eq!(std::fs::read_to_string(moved).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "two\nthree\n");
    }

    #[test]
    fn all_lines_are_written_when_it_has_ended_whoever_else_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access");
        let target = AccessTarget::File(path.clone());
        let writer = Arc::new(AccessLogWriter::start(target, AccessFormat::Text).unwrap());
        let held = Arc::clone(&writer);
        (0..1000).for_each(|_| writer.log().write("line\n".to_owned()));
        writer.end();
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1000);
        held.end();
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted_and_nobody_waits() {
        let (lines, waiting) = sync_channel(1);
        let log = Arc::new(AccessLog { format: AccessFormat::Json, lines, lost: AtomicU64::new(0) });
        for _ in 0..3 {
            log.write("line\n".to_owned());
        }
        let folder = tempfile::tempdir().unwrap();
        let target = AccessTarget::File(folder.path().join("access"));
        let sink = Sink::open(&target).unwrap();
        let writer = Writer { target: target.clone(), sink, log: Arc::clone(&log), failing: false };
        let thread = std::thread::spawn(move || writer.run(&waiting));
        log.lines.send(WriterCommand::End).unwrap();
        thread.join().unwrap();
        let AccessTarget::File(path) = target else { unreachable!() };
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("line\n{"), "{text}");
        assert!(text.ends_with("\"event\":\"lost\",\"lines\":2}\n"), "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let target = AccessTarget::File(PathBuf::from("/nowhere/access"));
        assert!(AccessLogWriter::start(target, AccessFormat::Text).is_err());
    }
}
