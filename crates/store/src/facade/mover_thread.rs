//! The thread that retires segments. It decides only when.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::brake::Brake;
use super::retire::{Mover, Retirement};
use crate::journal::{Journal, Lsn};
use crate::waiters::Waiter;

/// Handle of the thread. Dropping it stops the thread, between two messages at the latest.
pub(super) struct MoverThread {
    bell: Arc<MoverBell>,
    brake: Arc<Brake>,
    thread: Option<JoinHandle<()>>,
}

/// Notifies the thread that there may be something to do.
#[derive(Default)]
pub(super) struct MoverBell {
    rung: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    work: bool,
    stop: bool,
}

impl MoverThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(mover: Mover, journal: Arc<Journal>) -> io::Result<Self> {
        let (bell, brake) = (mover.bell().clone(), mover.brake().clone());
        let theirs = (bell.clone(), brake.clone(), Arc::downgrade(&journal));
        journal.on_new_segment(Arc::new(move || {
            let (bell, brake, journal) = &theirs;
            bell.ring();
            journal.upgrade().into_iter().for_each(|journal| brake.look(journal.length_in_segments()));
        }));
        // The journal found by a restart may be over its budget.
        bell.ring();
        let theirs = bell.clone();
        let thread = Builder::new().name("retirement".into()).spawn(move || run(mover, &journal, &theirs))?;
        Ok(Self { bell, brake, thread: Some(thread) })
    }
}

impl Drop for MoverThread {
    fn drop(&mut self) {
        self.bell.change(|rung| rung.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been reported.
            drop(thread.join());
        }
        self.brake.give_up();
    }
}

impl MoverBell {
    pub(super) fn ring(&self) {
        self.change(|rung| rung.work = true);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.rung.lock().stop
    }

    fn change(&self, set: impl FnOnce(&mut Rung)) {
        let mut rung = self.rung.lock();
        set(&mut rung);
        drop(rung);
        self.changed.notify_all();
    }

    /// Waits until there is something to do, at most for `time`. `false` when it is time to stop.
    fn wait(&self, time: Duration) -> bool {
        let mut rung = self.rung.lock();
        let idle = |rung: &mut Rung| !rung.work && !rung.stop;
        self.changed.wait_while_for(&mut rung, idle, time);
        rung.work = false;
        !rung.stop
    }

    /// Waits until the log is on disk up to `lsn`; `false` if it is time to stop before that.
    fn wait_for(self: &Arc<Self>, journal: &Journal, lsn: Lsn) -> bool {
        if journal.durable() < lsn {
            journal.wait(lsn, self.clone());
            let mut rung = self.rung.lock();
            self.changed.wait_while(&mut rung, |rung| journal.durable() < lsn && !rung.stop);
        }
        journal.durable() >= lsn
    }
}

impl Waiter for MoverBell {
    fn wake(&self) {
        self.change(|_| {});
    }
}

fn run(mut mover: Mover, journal: &Journal, bell: &Arc<MoverBell>) {
    let (mut back_off, mut failed) = (SHORTEST_PAUSE, false);
    let mut pause = LOOK_AGAIN;
    while bell.wait(pause) {
        let outcome = mover.step(|lsn| bell.wait_for(journal, lsn));
        let failed_before = std::mem::replace(&mut failed, matches!(outcome, Retirement::Failed(_)));
        pause = match outcome {
            Retirement::Idle => LOOK_AGAIN,
            Retirement::Done => Duration::ZERO,
            Retirement::Busy => SHORTEST_PAUSE,
            Retirement::Failed(error) => {
                if !failed_before {
                    back_off = SHORTEST_PAUSE;
                    tracing::error!(%error, "the journal's oldest segment cannot be retired");
                }
                back_off = (back_off * 2).min(LONGEST_PAUSE);
                back_off
            }
        };
    }
}

/// A segment that is still needed is tried again after this time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which free space is measured, since other programs may use it up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The pause after many failures: a disk that has room again is noticed within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
