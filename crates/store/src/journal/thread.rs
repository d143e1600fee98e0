//! The threads that run rounds and prepare files. They decide only when.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::PendingGuard;
use super::commit::{CommitOutcome, Committer};
use super::spares::{Preallocation, Spares};
use super::{EAGER_BYTES, Journal};

/// A journal's threads. Dropping it stops them without writing pending records; see [`RunningJournal::close`].
pub struct RunningJournal {
    journal: Arc<Journal>,
    committer: Option<JoinHandle<Committer>>,
    preparer: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(self) -> io::Result<RunningJournal> {
        let journal = self.journal.clone();
        let spares = journal.spares.clone();
        // The first segment is prepared before anything is written: syncs into a file without bytes take longer.
        drop(spares.prepare(Preallocation::Zeros));
        let preparer = Builder::new().name("journal-spares".into()).spawn(move || prepare(&spares))?;
        let mut running = RunningJournal { journal, committer: None, preparer: Some(preparer) };
        running.committer = Some(Builder::new().name("journal".into()).spawn(move || rounds(self))?);
        Ok(running)
    }
}

impl RunningJournal {
    /// Stops the threads, and writes the remaining records.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn close(mut self) -> io::Result<()> {
        self.stop().map_or(Ok(()), |mut committer| committer.close())
    }

    fn stop(&mut self) -> Option<Committer> {
        self.journal.pending.lock().stopping = true;
        self.journal.work.notify_one();
        self.journal.spares.stop();
        if let Some(preparer) = self.preparer.take() {
            drop(preparer.join());
        }
        self.committer.take().and_then(|committer| committer.join().ok())
    }
}

impl Drop for RunningJournal {
    fn drop(&mut self) {
        self.stop();
    }
}

fn rounds(mut committer: Committer) -> Committer {
    let mut back_off = MIN_BACK_OFF;
    while committer.journal.wait_for_work() {
        match committer.step() {
            CommitOutcome::Idle | CommitOutcome::Committed => back_off = MIN_BACK_OFF,
            CommitOutcome::Failed(_) => {
                committer.journal.back_off(back_off);
                back_off = (back_off * 2).min(MAX_BACK_OFF);
            }
        }
    }
    committer
}

/// A file that will be full soon anyway is not filled with zeros first: it would be written twice, and delay the
/// records that are to be written now.
fn prepare(spares: &Spares) {
    let mut ready_since = None::<Instant>;
    while spares.wait_until_used() {
        let soon = ready_since.is_some_and(|since| since.elapsed() < SOON_FULL);
        match spares.prepare(if soon { Preallocation::Reserved } else { Preallocation::Zeros }) {
            Ok(true) => ready_since = Some(Instant::now()),
            // No space for it.
            Ok(false) | Err(_) => spares.pause(MAX_BACK_OFF),
        }
    }
}

impl Journal {
    /// Sleeps until there is a waiter, much was gathered, or the gathered records have waited long enough. `false` when
    /// it is time to stop.
    fn wait_for_work(&self) -> bool {
        let mut pending = self.pending.lock();
        loop {
            if pending.stopping {
                return false;
            }
            if pending.demanded || pending.flight.is_some() || pending.waiting() >= EAGER_BYTES {
                return true;
            }
            let timed_out = self.work.wait_for(&mut pending, LAZY_ROUND).timed_out();
            if timed_out && !pending.is_empty() {
                return true;
            }
            if timed_out && !pending.demanded && !pending.stopping {
                self.sleep(&mut pending);
            }
        }
    }

    /// Sleeps until a record is appended or a round is demanded. After a while, memory is freed.
    fn sleep(&self, pending: &mut PendingGuard<'_>) {
        pending.asleep = true;
        let timed_out = self.work.wait_for(pending, REST_AFTER).timed_out();
        // A caller that came at that moment has notified nobody.
        if timed_out && pending.asleep && !pending.demanded && !pending.stopping {
            pending.rest();
            self.work.wait(pending);
        }
        pending.asleep = false;
    }

    fn back_off(&self, time: Duration) {
        let mut pending = self.pending.lock();
        if !pending.stopping {
            self.work.wait_for(&mut pending, time);
        }
    }
}

/// Records without a waiter (publishes without confirms, and acks) are on disk within twice this time.
const LAZY_ROUND: Duration = Duration::from_millis(5);
/// Buffers outlive a pause of the publishers: allocating and clearing memory anew costs more than writing it.
const REST_AFTER: Duration = Duration::from_secs(2);
/// A segment that lasts less takes messages by the hundred with each sync; with single publishers that wait for each
/// message it lasts longer.
const SOON_FULL: Duration = Duration::from_secs(4);
/// The first pause after a failure.
const MIN_BACK_OFF: Duration = Duration::from_millis(10);
/// The pause after many failures: a disk that has room again is noticed within this time.
const MAX_BACK_OFF: Duration = Duration::from_secs(1);
