//! A thread that writes lines to standard error, a file or another stream, for callers that never wait for it.
//!
//! A pipe that nobody reads, or a disk that hangs, blocks this thread only. Lines that do not fit into its queue are
//! dropped and counted, and their number is written before the next line that fits.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The destination of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineTarget {
    /// Standard error.
    Stderr,
    /// A file, appended to, and created if it does not exist.
    File(PathBuf),
}

impl LineTarget {
    /// Checks whether lines can be written here, without creating anything.
    ///
    /// # Errors
    /// The file cannot be opened, or its directory is missing.
    pub fn check(&self) -> io::Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        match std::fs::metadata(path) {
            Ok(file) if file.is_file() || file.is_dir() => {
                OpenOptions::new().append(true).open(path).map(drop)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
                std::fs::metadata(directory.unwrap_or(Path::new("."))).map(drop)
            }
            other => other.map(drop),
        }
    }
}

/// Callbacks for dropped lines and write errors of a log, called by its thread.
pub trait LineReport: Send + 'static {
    /// The line that gives the number of lines that were dropped, with its line feed.
    fn dropped(&self, lines: u64) -> String;

    /// Called when a write fails for the first time since the last success.
    fn failed(&self, _: &io::Error) {}

    /// Called when writes succeed again.
    fn recovered(&self) {}
}

/// The lines that wait for the thread of a [`LineWriter`].
#[derive(Debug, Default)]
pub struct LineQueue {
    waiting: Mutex<WaitingLines>,
    /// Notified when the thread has something to do.
    arrived: Condvar,
    /// Notified when the thread has written lines, and when it ends.
    written: Condvar,
}

/// The thread that writes lines.
#[derive(Debug)]
pub struct LineWriter {
    queue: Arc<LineQueue>,
    /// `None` once [`LineWriter::end`] has been called.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct WaitingLines {
    entries: VecDeque<LineEntry>,
    /// Bytes that `entries` take, at most [`MAX_WAITING`].
    bytes: usize,
    /// Lines that were dropped, or could not be written, since their number was last written.
    dropped: u64,
    /// Entries that have been queued since the start.
    queued: u64,
    /// Entries that have been written and flushed, or whose writing has failed.
    flushed: u64,
    /// Set when the thread has to end after the last entry. Later lines are not accepted.
    ending: bool,
    /// Set when the thread has ended.
    ended: bool,
}

#[derive(Debug)]
enum LineEntry {
    Line(Box<[u8]>),
    /// Opens the file again, which may have been renamed.
    Reopen,
}

/// Bytes of lines that may wait for the thread: some 10,000 lines, minutes of a busy log.
const MAX_WAITING: usize = 4 << 20;

/// Bytes of memory that an entry takes in addition to its text.
const ENTRY_OVERHEAD: usize = 64;

/// The maximum time that ending all of a process's logs takes when nothing can be written.
pub const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(5);

impl LineQueue {
    /// Queues a line, which ends in a line feed; drops and counts it if too much is queued. Never waits for a write.
    pub fn write(&self, line: impl Into<Box<[u8]>>) {
        let line = line.into();
        let mut waiting = self.waiting.lock();
        if waiting.ending {
            return;
        }
        let bytes = line.len() + ENTRY_OVERHEAD;
        if waiting.bytes + bytes > MAX_WAITING {
            waiting.dropped += 1;
            return;
        }
        waiting.bytes += bytes;
        waiting.push(LineEntry::Line(line));
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Waits until all lines so far are written, for at most `timeout`. Returns whether they are. Does not wait for lines
    /// queued meanwhile.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut waiting = self.waiting.lock();
        let queued = waiting.queued;
        while !waiting.ended && waiting.flushed < queued {
            if self.written.wait_until(&mut waiting, deadline).timed_out() {
                break;
            }
        }
        waiting.flushed >= queued
    }

    fn reopen(&self) {
        let mut waiting = self.waiting.lock();
        if !matches!(waiting.entries.back(), Some(LineEntry::Reopen)) {
            waiting.push(LineEntry::Reopen);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// For the thread: waits for entries, and returns their number. `None` if the thread has to end.
    fn wait(&self) -> Option<usize> {
        let mut waiting = self.waiting.lock();
        while waiting.entries.is_empty() && !waiting.ending {
            self.arrived.wait(&mut waiting);
        }
        Some(waiting.entries.len()).filter(|count| *count > 0)
    }

    /// For the thread: records that this many entries are written and flushed.
    fn count_flushed(&self, entries: usize) {
        self.waiting.lock().flushed += entries as u64;
        self.written.notify_all();
    }

    /// For the thread: the next entry.
    fn take(&self) -> Option<LineEntry> {
        let mut waiting = self.waiting.lock();
        let entry = waiting.entries.pop_front()?;
        if let LineEntry::Line(line) = &entry {
            waiting.bytes -= line.len() + ENTRY_OVERHEAD;
        }
        Some(entry)
    }

    fn count_dropped(&self, lines: u64) {
        self.waiting.lock().dropped += lines;
    }

    fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.waiting.lock().dropped)
    }
}

impl WaitingLines {
    fn push(&mut self, entry: LineEntry) {
        self.queued += 1;
        self.entries.push_back(entry);
    }
}

impl LineWriter {
    /// Opens the target and starts the thread, with a name of up to 15 bytes.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or the thread cannot be started.
    pub fn start(name: &str, target: LineTarget, report: impl LineReport) -> io::Result<Self> {
        match target {
            // Each write locks the stream, so that a line is not mixed with others.
            LineTarget::Stderr => Self::start_on(name, io::stderr(), report),
            LineTarget::File(path) => Self::spawn(name, Sink::File(open(&path)?, path), Box::new(report)),
        }
    }

    /// Starts the thread on a stream.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start_on(
        name: &str,
        stream: impl Write + Send + 'static,
        report: impl LineReport,
    ) -> io::Result<Self> {
        Self::spawn(name, Sink::Stream(Box::new(stream)), Box::new(report))
    }

    fn spawn(name: &str, sink: Sink, report: Box<dyn LineReport>) -> io::Result<Self> {
        let queue = Arc::new(LineQueue::default());
        let writing = WritingThread { sink, queue: Arc::clone(&queue), report, failing: false };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || writing.run())?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// The queue of lines.
    pub fn queue(&self) -> &Arc<LineQueue> {
        &self.queue
    }

    /// Reopens the file after it was renamed. Lines queued so far are written to the old one.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Ends the thread once all lines so far are written. Waits for that for at most `timeout`, and returns what is left
    /// of it; a thread that is blocked in a write is abandoned. A process has to call this before it exits, since others
    /// may still hold the writer then. Later lines are lost.
    pub fn end(&self, timeout: Duration) -> Duration {
        let Some(thread) = self.thread.lock().take() else { return timeout };
        let deadline = Instant::now() + timeout;
        let mut waiting = self.queue.waiting.lock();
        waiting.ending = true;
        self.queue.arrived.notify_one();
        while !waiting.ended {
            if self.queue.written.wait_until(&mut waiting, deadline).timed_out() {
                return Duration::ZERO;
            }
        }
        drop(waiting);
        // A panic in the thread has already been reported.
        let _ = thread.join();
        deadline.saturating_duration_since(Instant::now())
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.end(LAST_LINES_TIMEOUT);
    }
}

enum Sink {
    Stream(Box<dyn Write + Send>),
    File(BufWriter<File>, PathBuf),
}

fn open(path: &Path) -> io::Result<BufWriter<File>> {
    Ok(BufWriter::new(OpenOptions::new().create(true).append(true).open(path)?))
}

impl Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.write_all(line),
            Self::File(file, _) => file.write_all(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.flush(),
            Self::File(file, _) => file.flush(),
        }
    }

    /// Opens a file again, under its name.
    fn reopen(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Self::File(file, path) = self {
            *file = open(path)?;
        }
        Ok(())
    }
}

struct WritingThread {
    sink: Sink,
    queue: Arc<LineQueue>,
    report: Box<dyn LineReport>,
    /// Whether a write failure has been reported; another is reported only after a success.
    failing: bool,
}

impl WritingThread {
    fn run(mut self) {
        while let Some(count) = self.queue.wait() {
            let mut result = Ok(());
            // Writes the lines queued so far before it flushes, but not later ones: they may never end.
            for _ in 0..count {
                let Some(entry) = self.queue.take() else { break };
                let outcome = match entry {
                    LineEntry::Line(line) => {
                        self.sink.write(&line).inspect_err(|_| self.queue.count_dropped(1))
                    }
                    LineEntry::Reopen => self.sink.reopen(),
                };
                // Follows lines that were dropped while this one was written.
                result = result.and(outcome).and(self.write_dropped());
            }
            self.settle(result);
            self.queue.count_flushed(count);
        }
        let result = self.write_dropped();
        self.settle(result);
    }

    /// Writes the number of lines that were dropped. If that fails, they stay counted.
    fn write_dropped(&mut self) -> io::Result<()> {
        match self.queue.take_dropped() {
            0 => Ok(()),
            lines => {
                let line = self.report.dropped(lines);
                self.sink.write(line.as_bytes()).inspect_err(|_| self.queue.count_dropped(lines))
            }
        }
    }

    fn settle(&mut self, result: io::Result<()>) {
        match result.and_then(|()| self.sink.flush()) {
            Ok(()) if self.failing => {
                self.failing = false;
                self.report.recovered();
            }
            Err(error) if !self.failing => {
                self.failing = true;
                self.report.failed(&error);
            }
            _ => {}
        }
    }
}

impl Drop for WritingThread {
    fn drop(&mut self) {
        // Also after a panic, so that no caller waits for this thread.
        self.queue.waiting.lock().ended = true;
        self.queue.written.notify_all();
    }
}

#[cfg(test)]
mod tests;
