//! Pauses publishers while the journal is far longer than its budget: a disk that keeps up with publishing may be too busy
//! to write the messages a second time, to the queues' own segments. Without a limit the next start would have to read the
//! whole journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::waiters::{WaitList, Waiter};

/// Whether publishers have to pause, and the publishers that wait.
pub(super) struct Brake {
    /// Number of journal segments at which publishers pause.
    limit: usize,
    on: AtomicBool,
    waiting: Mutex<PausedPublishers>,
}

#[derive(Default)]
struct PausedPublishers {
    publishers: WaitList,
    /// Retirement cannot make progress by itself, so there is nothing to wait for.
    idle: bool,
}

impl Brake {
    /// For a journal with a budget of `budget` segments.
    pub(super) fn new(budget: usize) -> Self {
        let limit = budget.max(1).saturating_mul(LEEWAY);
        Self { limit, on: AtomicBool::new(false), waiting: Mutex::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Updates the brake: the journal has `segments` segments now.
    pub(super) fn update(&self, segments: usize) {
        self.change(segments, |_| {});
    }

    /// The same after an attempt to retire a segment, which may have failed.
    pub(super) fn update_after_attempt(&self, segments: usize, failed: bool) {
        self.change(segments, |waiting| waiting.idle = failed);
    }

    /// Releases the brake, since no further segment will be retired.
    pub(super) fn give_up(&self) {
        self.update_after_attempt(0, true);
    }

    /// Wakes `waiter` when publishers may continue; returns it if they already may.
    pub(super) fn wait(&self, waiter: Arc<dyn Waiter>) -> Option<Arc<dyn Waiter>> {
        let mut waiting = self.waiting.lock();
        if !self.is_on() {
            return Some(waiter);
        }
        waiting.publishers.add(waiter);
        None
    }

    fn change(&self, segments: usize, change: impl FnOnce(&mut PausedPublishers)) {
        let mut waiting = self.waiting.lock();
        change(&mut waiting);
        let on = segments > self.limit && !waiting.idle;
        self.on.store(on, Ordering::Relaxed);
        let publishers = if on { WaitList::default() } else { waiting.publishers.take() };
        drop(waiting);
        publishers.wake();
    }
}

/// The multiple of its budget that the journal may reach: a burst is accepted at the journal's own speed, and a start still
/// reads half a gigabyte at most.
const LEEWAY: usize = 2;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Waiter for WakeCounter {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wait(brake: &Brake) -> (Arc<WakeCounter>, bool) {
        let reported = Arc::new(WakeCounter::default());
        let waits = brake.wait(reported.clone()).is_none();
        (reported, waits)
    }

    fn times(reported: &WakeCounter) -> usize {
        reported.0.load(Ordering::SeqCst)
    }

    #[test]
    fn publishers_wait_until_the_journal_is_short_enough() {
        let brake = Brake::new(4);
        brake.update(8);
        assert!(!wait(&brake).1);
        brake.update(9);
        let (reported, waits) = wait(&brake);
        assert!(waits && brake.is_on());
        brake.update_after_attempt(9, false);
        assert_eq!(times(&reported), 0);
        brake.update_after_attempt(8, false);
        assert!(times(&reported) == 1 && !brake.is_on());
    }

    #[test]
    fn publishers_do_not_wait_while_the_journal_makes_no_progress() {
        let brake = Brake::new(1);
        brake.update(3);
        let (reported, _) = wait(&brake);
        brake.update_after_attempt(3, true);
        assert_eq!(times(&reported), 1);
        brake.update(4);
        assert!(!brake.is_on(), "until it gets on again");
        brake.update_after_attempt(3, false);
        let (reported, waits) = wait(&brake);
        assert!(waits);
        brake.give_up();
        assert_eq!(times(&reported), 1);
    }
}
