//! Rounds that a session runs itself, at the end of its turn, instead of waking the committer's thread and being woken by
//! it. For a publisher that waits for each confirm, these two wake-ups take as long as a third of the sync.
//!
//! The session runs the round only if it is the only waiter, and the disk has recently been fast. Otherwise the thread
//! does, which writes the records of several sessions together, and blocks no session.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sync::work::{self, Blocking, Deferred};

use super::commit::CommitOutcome;
use super::pending::PendingRecords;
use super::thread::RoundLoop;
use super::{Journal, PendingGuard};
use crate::waiters::Waiter;

/// When a session runs a round itself.
#[derive(Debug, Clone, Copy)]
pub struct RoundsInTurns {
    /// Recent syncs took less than this on average: a thread of the runtime is blocked for that long.
    pub sync_below: Duration,
    /// No other session has waited for this time: with several waiters it is better to gather.
    pub alone_for: Duration,
}

impl Default for RoundsInTurns {
    fn default() -> Self {
        Self { sync_below: FAST_SYNC, alone_for: ALONE }
    }
}

/// A round at the end of a session's turn.
struct RoundInTurn {
    rounds: Weak<RoundLoop>,
}

/// The most recent waits, to distinguish a single waiter from several.
#[derive(Debug, Default)]
pub(super) struct LatestWaiters {
    /// Number of waits for the records that the next round takes.
    gathered: usize,
    /// Number of waits for those of the previous round.
    before: usize,
    /// The address of the last waiter.
    last: usize,
    /// Time of its last wait.
    at: Option<Instant>,
    /// Time of the last wait of any other.
    other_at: Option<Instant>,
}

impl LatestWaiters {
    /// Records a wait, and returns whether no other waiter has waited for this time.
    fn is_alone(&mut self, waiter: &Arc<dyn Waiter>, now: Instant, alone_for: Duration) -> bool {
        let address = Arc::as_ptr(waiter).cast::<()>() as usize;
        if self.last != address {
            self.other_at = self.at;
        }
        (self.last, self.at) = (address, Some(now));
        self.gathered += 1;
        // The time alone does not suffice: during a slow sync the other sessions wait, and do not register again.
        self.gathered == 1
            && self.before <= 1
            && self.other_at.is_none_or(|other| now.saturating_duration_since(other) >= alone_for)
    }

    /// Records that a round has taken the pending records.
    pub(super) fn begin_round(&mut self) {
        self.before = std::mem::take(&mut self.gathered);
    }
}

impl Journal {
    /// Allows sessions to run rounds themselves.
    pub(super) fn allow_rounds_in_turns(&self, rounds: &Arc<RoundLoop>) {
        // A journal is started once.
        let _ = self.in_turn.set(Arc::new(RoundInTurn { rounds: Arc::downgrade(rounds) }));
    }

    /// Defers a round for this waiter to the end of this thread's turn. Returns `false` if there is no turn, or the session
    /// should not run the round.
    pub(super) fn defer_round(&self, pending: &mut PendingGuard<'_>, waiter: &Arc<dyn Waiter>) -> bool {
        let Some(round) = self.in_turn.get() else { return false };
        let RoundsInTurns { sync_below, alone_for } = self.settings.in_turn;
        let alone = pending.latest_waiters.is_alone(waiter, Instant::now(), alone_for);
        let fast = self.figures.sync_time() < sync_below;
        let deferred = alone && fast && is_small_round(pending) && work::defer(round);
        pending.round_deferred |= deferred;
        deferred
    }

    /// Defers waking the committer's thread to the end of this thread's turn, if records are pending then. Returns `false`
    /// if there is no turn.
    pub(super) fn defer_waking(&self) -> bool {
        self.in_turn.get().is_some_and(work::defer)
    }

    /// Wakes the committer's thread if it sleeps although records are pending.
    fn wake_committer(&self) {
        let pending = self.pending.lock();
        if pending.asleep && !pending.is_empty() {
            self.notify_committer(pending);
        }
    }
}

impl RoundLoop {
    /// Runs a round in a session's turn; returns whether everything appended before is now on disk.
    fn try_in_turn(&self, blocking: Blocking<'_>) -> bool {
        // Locked while a round is in progress.
        let Some(mut committer) = self.committer.try_lock() else { return false };
        let pending = self.journal.pending.lock();
        if !is_small_round(&pending) {
            return false;
        }
        let bytes = pending.waiting();
        drop(pending);
        if bytes == 0 {
            return true;
        }
        if !committer.is_quick(bytes as u64) {
            return false;
        }
        let mut written = false;
        blocking(&mut || written = !matches!(committer.step(), CommitOutcome::Failed(_)));
        written
    }
}

impl Deferred for RoundInTurn {
    fn run(&self, blocking: Option<Blocking<'_>>) {
        // If it is gone, the threads have stopped.
        let Some(rounds) = self.rounds.upgrade() else { return };
        let wanted = std::mem::take(&mut rounds.journal.pending.lock().round_deferred);
        if !wanted {
            rounds.journal.wake_committer();
        } else if !blocking.is_some_and(|blocking| rounds.try_in_turn(blocking)) {
            rounds.journal.demand_round();
        }
    }
}

/// Whether a round is small and starts no file, and the thread has not been asked to run it.
fn is_small_round(pending: &PendingRecords) -> bool {
    let nothing_under_way = !pending.demanded && !pending.stopping && pending.flight.is_none();
    nothing_under_way && pending.waiting() <= SMALL_ROUND && !pending.begins_extent()
}

/// Several syncs of a disk that is fast enough for [`FAST_SYNC`].
const ALONE: Duration = Duration::from_millis(2);
/// A session blocks for no longer than a turn takes.
const FAST_SYNC: Duration = Duration::from_nanos(work::TURN as u64);
/// Writing this many bytes takes little more time than the sync.
const SMALL_ROUND: usize = 64 << 10;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use sync::work::Turn;

    use super::*;
    use crate::disk::simulated::SimDisk;
    use crate::journal::{Entry, JournalSettings, Lsn, QueueId, open};

    /// A journal whose rounds run in turns, or when the test calls [`RoundLoop::committer`].
    struct Rig {
        disk: SimDisk,
        rounds: Arc<RoundLoop>,
        journal: Arc<Journal>,
    }

    impl Rig {
        fn new(in_turn: RoundsInTurns) -> Self {
            let disk = SimDisk::new(1, 1 << 20);
            let settings = JournalSettings { segment_size: 1 << 16, pending_limit: 1 << 16, in_turn };
            let (committer, _) = open(Arc::new(disk.clone()), settings, Box::new(())).unwrap();
            let journal = committer.journal().clone();
            let rig = Self { disk, rounds: RoundLoop::new(committer), journal };
            // The first round starts a file, which rounds in turns do not do.
            rig.publish(&waiter());
            rig.run_round();
            rig
        }

        fn publish(&self, waiter: &Arc<dyn Waiter>) -> Lsn {
            let message = self.journal.append(&[b"message"]).unwrap();
            let queue = self.journal.queue(QueueId(1));
            let entry = Entry { position: message.to_u64(), message, expires: 0, last: true };
            let lsn = self.journal.enqueue(&queue, &[entry]);
            self.journal.wait(lsn, Arc::clone(waiter));
            lsn
        }

        /// Publishes in a turn of its own; returns whether the message is on disk at its end.
        fn publish_in_turn(&self, waiter: &Arc<dyn Waiter>) -> bool {
            let turn = Turn::begin();
            let lsn = self.publish(waiter);
            assert!(self.journal.durable() < lsn, "only at the end of the turn");
            work::run_deferred(Some(&|round| round()));
            drop(turn);
            self.journal.durable() >= lsn
        }

        /// Does what the thread does when it is woken.
        fn run_round(&self) {
            assert!(self.journal.pending.lock().demanded);
            assert!(matches!(self.rounds.committer.lock().step(), CommitOutcome::Committed));
        }
    }

    fn waiter() -> Arc<dyn Waiter> {
        // Not a constant, so that each has its own address.
        let woken = std::sync::atomic::AtomicU64::new(0);
        Arc::new(move || {
            woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        })
    }

    const ALWAYS: RoundsInTurns =
        RoundsInTurns { sync_below: Duration::MAX, alone_for: Duration::from_secs(3600) };

    #[test]
    fn the_only_waiter_runs_its_rounds_itself() {
        let rig = Rig::new(RoundsInTurns { alone_for: Duration::ZERO, ..ALWAYS });
        let waiter = waiter();
        for _ in 0..3 {
            assert!(rig.publish_in_turn(&waiter));
        }
    }

    #[test]
    fn several_waiters_leave_their_rounds_to_the_thread() {
        let rig = Rig::new(ALWAYS);
        let (one, other) = (waiter(), waiter());
        rig.publish_in_turn(&one);
        for _ in 0..2 {
            assert!(!rig.publish_in_turn(&other) && !rig.publish_in_turn(&one));
            rig.run_round();
        }
    }

    #[test]
    fn a_slow_disk_blocks_no_turn() {
        let rig = Rig::new(RoundsInTurns { sync_below: Duration::from_millis(1), alone_for: Duration::ZERO });
        rig.journal.figures.count_sync(Duration::from_millis(10));
        assert!(!rig.publish_in_turn(&waiter()));
    }

    #[test]
    fn a_round_that_fails_in_a_turn_is_repeated_by_the_thread() {
        let rig = Rig::new(RoundsInTurns { alone_for: Duration::ZERO, ..ALWAYS });
        rig.disk.fail_sync(0);
        assert!(!rig.publish_in_turn(&waiter()));
        assert!(rig.journal.failing().is_some());
        rig.run_round();
        assert!(rig.journal.failing().is_none() && rig.journal.durable() == rig.journal.end());
    }

    #[test]
    fn a_round_that_begins_a_file_is_left_to_the_thread() {
        let rig = Rig::new(RoundsInTurns { alone_for: Duration::ZERO, ..ALWAYS });
        let waiter = waiter();
        let files = || rig.journal.files.read().len();
        let before = files();
        while rig.publish_in_turn(&waiter) {}
        assert_eq!(files(), before);
        rig.run_round();
        assert_eq!(files(), before + 1);
        assert!(rig.publish_in_turn(&waiter));
    }

    #[test]
    fn records_that_nobody_waits_for_wake_a_sleeping_thread_at_the_end_of_the_turn() {
        let rig = Rig::new(ALWAYS);
        rig.journal.pending.lock().asleep = true;
        let turn = Turn::begin();
        rig.journal.append(&[b"message"]).unwrap();
        assert!(rig.journal.pending.lock().asleep);
        drop(turn);
        assert!(!rig.journal.pending.lock().asleep);
    }
}
