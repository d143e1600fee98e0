use std::io::{BufRead as _, BufReader, PipeReader};

use super::*;

/// Counts dropped lines in a plain line.
struct Plain;

impl LineReport for Plain {
    fn dropped(&self, lines: u64) -> String {
        format!("dropped {lines}\n")
    }
}

/// Far longer than any wait takes.
const PATIENCE: Duration = Duration::from_secs(180);

fn to_file(path: &std::path::Path) -> LineWriter {
    LineWriter::start("lines", LineTarget::File(path.to_owned()), Plain).unwrap()
}

/// A pipe that the thread writes to, and that is too full for the first line: its reading side, and a writer whose thread
/// is blocked in that line.
fn blocked() -> (BufReader<PipeReader>, LineWriter) {
    let (reader, stream) = std::io::pipe().unwrap();
    let writer = LineWriter::start_on("lines", stream, Plain).unwrap();
    // Twice what a pipe holds.
    writer.queue().write(long_line());
    while !writer.queue().waiting.lock().entries.is_empty() {
        std::thread::yield_now();
    }
    (BufReader::new(reader), writer)
}

fn long_line() -> Box<[u8]> {
    let mut line = vec![b'x'; 128 << 10];
    line.push(b'\n');
    line.into()
}

fn next_line(reader: &mut BufReader<PipeReader>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

#[test]
fn lines_arrive_in_order_and_in_the_new_file_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("log"), directory.path().join("moved"));
    let writer = to_file(&path);
    writer.queue().write(*b"one\n");
    std::fs::rename(&path, &moved).unwrap();
    writer.reopen();
    writer.queue().write(*b"two\n");
    writer.queue().write(*b"three\n");
    drop(writer);
    assert_eq!(std::fs::read_to_string(moved).unwrap(), "one\n");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "two\nthree\n");
}

#[test]
fn ending_the_writer_writes_all_lines_even_if_another_owner_holds_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let writer = Arc::new(to_file(&path));
    let held = Arc::clone(&writer);
    (0..1000).for_each(|_| writer.queue().write(*b"line\n"));
    writer.end(PATIENCE);
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1000);
    held.end(PATIENCE);
}

#[test]
fn a_flush_waits_for_all_lines_so_far() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let writer = to_file(&path);
    (0..1000).for_each(|_| writer.queue().write(*b"line\n"));
    assert!(writer.queue().flush(PATIENCE));
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1000);
}

/// Queues another line for each line that it writes, like clients that continue logging.
struct Echo(Arc<std::sync::OnceLock<Arc<LineQueue>>>);

impl Write for Echo {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.wait().write(*b"another\n");
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_flush_does_not_wait_for_the_lines_of_others_that_come_meanwhile() {
    let queue = Arc::default();
    let writer = LineWriter::start_on("lines", Echo(Arc::clone(&queue)), Plain).unwrap();
    queue.set(Arc::clone(writer.queue())).unwrap();
    writer.queue().write(*b"one\n");
    assert!(writer.queue().flush(PATIENCE));
    assert!(PATIENCE >= writer.end(PATIENCE));
}

#[test]
fn lines_that_do_not_fit_are_counted_and_their_number_comes_with_the_next_line() {
    let (mut reader, writer) = blocked();
    let queue = writer.queue();
    let fit = MAX_WAITING / (long_line().len() + ENTRY_OVERHEAD);
    (0..fit + 3).for_each(|_| queue.write(long_line()));
    assert!(queue.waiting.lock().bytes <= MAX_WAITING);
    assert_eq!(queue.waiting.lock().dropped, 3);
    assert_eq!(next_line(&mut reader).len(), long_line().len(), "the one that was being written");
    assert_eq!(next_line(&mut reader), "dropped 3\n");
    (0..fit).for_each(|_| assert_eq!(next_line(&mut reader).len(), long_line().len()));
    queue.write(*b"more\n");
    assert_eq!(next_line(&mut reader), "more\n");
}

#[test]
fn nobody_waits_for_a_blocked_target_longer_than_the_timeout() {
    let (_reader, writer) = blocked();
    assert!(!writer.queue().flush(Duration::ZERO));
    writer.reopen();
    writer.reopen();
    assert_eq!(writer.queue().waiting.lock().entries.len(), 1, "one reopening serves all");
    assert_eq!(
        writer.end(Duration::from_millis(1)),
        Duration::ZERO,
        "nothing is left for the ends of others"
    );
    writer.queue().write(*b"too late\n");
    assert_eq!(writer.queue().waiting.lock().entries.len(), 1);
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error() {
    let target = LineTarget::File(PathBuf::from("/nowhere/log"));
    assert!(LineWriter::start("lines", target, Plain).is_err());
}
