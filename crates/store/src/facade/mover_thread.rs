//! The thread that retires segments. It only decides when.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sync::BackOff;

use super::brake::Brake;
use super::retire::{Mover, Retirement};
use crate::journal::{Journal, Lsn};
use crate::waiters::Waiter;

/// Handle of the thread. Dropping it stops the thread after the current message at the latest.
pub(super) struct MoverThread {
    notifier: Arc<MoverNotifier>,
    brake: Arc<Brake>,
    thread: Option<JoinHandle<()>>,
}

/// Notifies the thread that there may be something to do.
#[derive(Default)]
pub(super) struct MoverNotifier {
    requested: Mutex<MoverRequests>,
    changed: Condvar,
}

#[derive(Default)]
struct MoverRequests {
    work: bool,
    stop: bool,
}

impl MoverThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(mover: Mover, journal: Arc<Journal>) -> io::Result<Self> {
        let (notifier, brake) = (mover.notifier().clone(), mover.brake().clone());
        let theirs = (notifier.clone(), brake.clone(), Arc::downgrade(&journal));
        journal.on_new_segment(Arc::new(move || {
            let (notifier, brake, journal) = &theirs;
            notifier.notify();
            journal.upgrade().into_iter().for_each(|journal| brake.update(journal.length_in_segments()));
        }));
        // The journal found by a restart may be over its budget.
        notifier.notify();
        let theirs = notifier.clone();
        let thread = Builder::new().name("retirement".into()).spawn(move || run(mover, &journal, &theirs))?;
        Ok(Self { notifier, brake, thread: Some(thread) })
    }
}

impl Drop for MoverThread {
    fn drop(&mut self) {
        self.notifier.change(|requested| requested.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been reported.
            drop(thread.join());
        }
        self.brake.give_up();
    }
}

impl MoverNotifier {
    pub(super) fn notify(&self) {
        self.change(|requested| requested.work = true);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.requested.lock().stop
    }

    fn change(&self, set: impl FnOnce(&mut MoverRequests)) {
        let mut requested = self.requested.lock();
        set(&mut requested);
        drop(requested);
        self.changed.notify_all();
    }

    /// Waits until there is something to do, at most for `time`. Returns `false` when the thread has to stop.
    fn wait(&self, time: Duration) -> bool {
        let mut requested = self.requested.lock();
        let idle = |requested: &mut MoverRequests| !requested.work && !requested.stop;
        self.changed.wait_while_for(&mut requested, idle, time);
        requested.work = false;
        !requested.stop
    }

    /// Waits until the log is on disk up to `lsn`; returns `false` if the thread has to stop before that.
    fn wait_for(self: &Arc<Self>, journal: &Journal, lsn: Lsn) -> bool {
        if journal.durable() < lsn {
            journal.wait(lsn, self.clone());
            let mut requested = self.requested.lock();
            self.changed.wait_while(&mut requested, |requested| journal.durable() < lsn && !requested.stop);
        }
        journal.durable() >= lsn
    }
}

impl Waiter for MoverNotifier {
    fn wake(&self) {
        self.change(|_| {});
    }
}

fn run(mut mover: Mover, journal: &Journal, notifier: &Arc<MoverNotifier>) {
    let (mut back_off, mut failed) = (BackOff::new(2 * MIN_PAUSE, MAX_PAUSE), false);
    let mut pause = SPACE_CHECK_INTERVAL;
    while notifier.wait(pause) {
        let outcome = mover.step(|lsn| notifier.wait_for(journal, lsn));
        let failed_before = std::mem::replace(&mut failed, matches!(outcome, Retirement::Failed(_)));
        pause = match outcome {
            Retirement::Idle => SPACE_CHECK_INTERVAL,
            Retirement::Done => Duration::ZERO,
            Retirement::Busy => MIN_PAUSE,
            Retirement::Failed(error) => {
                if !failed_before {
                    back_off.reset();
                    tracing::error!(%error, "cannot retire oldest journal segment");
                }
                back_off.pause()
            }
        };
    }
}

/// Time after which a segment that is still needed is tried again.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which free space is measured, since other programs may use it up.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after many failures, within which freed disk space is noticed.
const MAX_PAUSE: Duration = Duration::from_secs(5);
