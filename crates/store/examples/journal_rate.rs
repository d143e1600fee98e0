//! Measures the journal's speed, beside a plain loop of write and fdatasync on the same disk.
//!
//! `cargo run --release -p store --example journal_rate -- /tmp/directory`

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use store::Waiter;
use store::disk::{Disk, RealDisk};
use store::journal::{Entry, Journal, JournalSettings, QueueId, Range, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name a directory that may be filled and emptied")?;
    let disk = Arc::new(RealDisk::new(format!("{directory}/journal-rate"))?);
    let mut out = std::io::stdout();
    let (committer, _) = open(disk.clone(), JournalSettings::default(), Box::new(()))?;
    let journal = committer.journal().clone();
    let running = committer.start()?;
    // Alternating, since the disk's speed changes.
    for _ in 0..3 {
        let plain = plain_loop(&disk)?;
        let synchronous = synchronous(&journal);
        writeln!(
            out,
            "one at a time: plain {plain:.0}/s, journal {synchronous:.0}/s, {:.0}%",
            synchronous / plain * 100.0
        )?;
    }
    let (rate, cores) = flood(&journal)?;
    writeln!(out, "in groups, with settling: {rate:.0}/s, {cores:.2} cores")?;
    running.close()?;
    disk.remove_dir("")?;
    Ok(())
}

/// Writes and syncs one message after the other into allocated space.
fn plain_loop(disk: &RealDisk) -> std::io::Result<f64> {
    let file = disk.open("plain")?;
    file.write_at(&vec![0; 64 << 20], 0)?;
    file.sync()?;
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TURN {
        file.write_at(&BODY, count * BODY.len() as u64 % (64 << 20))?;
        file.sync()?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// One publisher that waits for each message.
fn synchronous(journal: &Journal) -> f64 {
    let queue = journal.queue(QueueId(1));
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TURN {
        let message = loop {
            match journal.append(&[&BODY]) {
                Ok(message) => break message,
                Err(_) => thread::yield_now(),
            }
        };
        let position = journal.end().0;
        let lsn = journal.enqueue(&queue, &[Entry { position, message, expires: 0, last: true }]);
        journal.wait(lsn, Arc::new(Unpark(thread::current())));
        while journal.durable() < lsn {
            thread::park();
        }
        journal.settle(&queue, &[Range::one(position)]);
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// Publishes and settles at a fixed rate, in batches, for a while; settled segments are retired.
fn flood(journal: &Journal) -> std::io::Result<(f64, f64)> {
    let queue = journal.queue(QueueId(2));
    let settled = AtomicU64::new(0);
    let (start, used) = (Instant::now(), cpu_seconds()?);
    let mut position = 0;
    while start.elapsed() < 3 * TURN {
        let first = position;
        let mut entries = Vec::with_capacity(BATCH as usize);
        while position < first + BATCH {
            match journal.append(&[&BODY]) {
                Ok(message) => entries.push(Entry { position, message, expires: 0, last: true }),
                Err(_) => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
            }
            position += 1;
        }
        let lsn = journal.enqueue(&queue, &entries);
        journal.wait(lsn, Arc::new(Nobody));
        if first >= 10 * BATCH {
            let from = settled.fetch_add(BATCH, Ordering::Relaxed);
            journal.settle(&queue, &[Range { first: from, last: from + BATCH - 1 }]);
        }
        let oldest = journal.segments()[0];
        if oldest.sealed && oldest.live == 0 {
            drop(journal.retire(oldest));
        }
        let ahead = Duration::from_secs_f64(position as f64 / TARGET).saturating_sub(start.elapsed());
        thread::sleep(ahead);
    }
    while journal.durable() < journal.end() {
        thread::sleep(Duration::from_millis(1));
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok((position as f64 / seconds, (cpu_seconds()? - used) / seconds))
}

/// Processor time of this process in seconds, which the kernel reports in hundredths.
fn cpu_seconds() -> std::io::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let ticks = text.rsplit(')').next().into_iter().flat_map(str::split_whitespace).skip(11).take(2);
    Ok(ticks.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

struct Unpark(thread::Thread);

impl Waiter for Unpark {
    fn wake(&self) {
        self.0.unpark();
    }
}

struct Nobody;

impl Waiter for Nobody {
    fn wake(&self) {}
}

const BODY: [u8; 1024] = [7; 1024];
const BATCH: u64 = 200;
/// Messages a second.
const TARGET: f64 = 210_000.0;
const TURN: Duration = Duration::from_secs(2);
