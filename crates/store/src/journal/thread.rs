//! The threads that run rounds and prepare files. They only decide when.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sync::{BackOff, Mutex, Rank};

use super::PendingGuard;
use super::commit::{CommitOutcome, Committer};
use super::spares::{Preallocation, Spares};
use super::{EAGER_BYTES, Journal};

/// A journal's threads. Dropping it stops them without writing pending records; see [`RunningJournal::close`].
pub struct RunningJournal {
    rounds: Arc<RoundLoop>,
    committer: Option<JoinHandle<()>>,
    preparer: Option<JoinHandle<()>>,
}

/// Schedules a journal's rounds. Once it exists, a session may also run one itself, at the end of its turn.
pub struct RoundLoop {
    pub(super) journal: Arc<Journal>,
    /// Runs one round at a time, in any thread.
    pub(super) committer: Mutex<Committer, { Rank::Committer as u8 }>,
}

impl Committer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(self) -> io::Result<RunningJournal> {
        let spares = self.journal.spares.clone();
        // The first segment is prepared before anything is written: syncs into an unallocated file take longer.
        drop(spares.prepare(Preallocation::Zeros));
        let preparer = Builder::new().name("journal-spares".into()).spawn(move || prepare(&spares))?;
        let rounds = RoundLoop::new(self);
        let mut running =
            RunningJournal { rounds: rounds.clone(), committer: None, preparer: Some(preparer) };
        running.committer = Some(Builder::new().name("journal".into()).spawn(move || rounds.run())?);
        Ok(running)
    }
}

impl RunningJournal {
    /// Stops the threads, and writes the remaining records.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn close(mut self) -> io::Result<()> {
        self.stop();
        self.rounds.committer.lock().close()
    }

    fn stop(&mut self) {
        self.rounds.stop();
        self.rounds.journal.spares.stop();
        for thread in [self.preparer.take(), self.committer.take()].into_iter().flatten() {
            drop(thread.join());
        }
        // A session may be running a round.
        drop(self.rounds.committer.lock());
    }
}

impl Drop for RunningJournal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl RoundLoop {
    /// Takes over the committer.
    pub fn new(committer: Committer) -> Arc<Self> {
        let journal = committer.journal.clone();
        let rounds = Arc::new(Self { journal, committer: Mutex::new(committer) });
        rounds.journal.allow_rounds_in_turns(&rounds);
        rounds
    }

    /// Runs rounds on this thread until it is [stopped](Self::stop).
    pub fn run(&self) {
        let mut back_off = BackOff::new(MIN_BACK_OFF, MAX_BACK_OFF);
        while self.journal.wait_for_work() {
            let outcome = self.committer.lock().step();
            match outcome {
                CommitOutcome::Idle | CommitOutcome::Committed => back_off.reset(),
                CommitOutcome::Failed(_) => self.journal.back_off(back_off.pause()),
            }
        }
    }

    /// Makes [`Self::run`] return after the current round. No session starts another one.
    pub fn stop(&self) {
        self.journal.pending.lock().stopping = true;
        self.journal.work.notify_one();
    }
}

/// A file that will be full soon anyway is not filled with zeros first: it would be written twice, and delay pending
/// records.
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
    /// Sleeps until there is a waiter, many bytes are pending, or the pending records have waited long enough. Returns
    /// `false` when the thread has to stop.
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

    /// Sleeps until a record is appended or a round is requested. Frees memory after a while.
    fn sleep(&self, pending: &mut PendingGuard<'_>) {
        pending.asleep = true;
        let timed_out = self.work.wait_for(pending, IDLE_AFTER).timed_out();
        // A request made after the timeout, before the lock was taken again, has notified no waiting thread.
        if timed_out && pending.asleep && !pending.demanded && !pending.stopping {
            pending.free_idle_memory();
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
/// Buffers survive shorter pauses of the publishers: allocating and clearing memory again costs more than writing it.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// A segment that fills faster than this takes hundreds of messages with each sync. With single publishers that wait for
/// each message it lasts longer.
const SOON_FULL: Duration = Duration::from_secs(4);
/// The first pause after a failure.
const MIN_BACK_OFF: Duration = Duration::from_millis(10);
/// The pause after many failures, within which freed disk space is noticed.
const MAX_BACK_OFF: Duration = Duration::from_secs(1);
