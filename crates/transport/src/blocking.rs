//! Waits for a disk on a thread of the runtime, which pays off up to some hundred microseconds: handing the wait over to
//! another thread takes as long.
//!
//! Only one thread of the runtime at a time polls sockets and timers, and it may be the one that blocks. A watchdog thread
//! outside of the runtime therefore wakes another runtime thread if the disk takes longer than expected. A turn that
//! exceeds its budget wakes another thread itself.

use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sync::work;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// The thread of a runtime that blocks.
struct Blocked {
    since: Instant,
    runtime: Handle,
    /// Another thread has been woken.
    relieved: bool,
}

#[derive(Default)]
struct Watched {
    blocked: Option<Blocked>,
    /// A thread has blocked since the last check.
    used: bool,
    /// The watchdog sleeps until it is woken.
    asleep: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { blocked: None, used: false, asleep: false });
/// The watchdog thread, from the first use on; `None` if the system could not start one.
static WATCHDOG: OnceLock<Option<Thread>> = OnceLock::new();

/// Runs work that may block this thread, for [`sync::work::run_deferred`], while the runtime's other tasks continue.
#[expect(
    clippy::disallowed_methods,
    reason = "another thread takes over the sessions meanwhile, which is the point here"
)]
pub(crate) fn run_blocking(work: &mut dyn FnMut()) {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            // The task that a thread has woken last is in its LIFO slot, from which no other thread takes it.
            if work::has_woken_another() || !watch(runtime) {
                block_in_place(work);
            } else {
                let _blocked = Unwatch;
                work();
            }
        }
        // There is no other thread, as in tests.
        _ => work(),
    }
}

/// Makes another thread poll sockets and timers and run the tasks that this one delays, for [`sync::work::on_overrun`].
pub(crate) fn relieve() {
    if let Ok(runtime) = Handle::try_current()
        && runtime.runtime_flavor() == RuntimeFlavor::MultiThread
    {
        // The first task replaces the one in the LIFO slot, which other threads could not take. The second makes sure that
        // a thread is woken: a task that enters a free LIFO slot wakes none.
        drop(runtime.spawn(async {}));
        drop(runtime.spawn(async {}));
    }
}

/// Ends the watch, even if the work panics.
struct Unwatch;

impl Drop for Unwatch {
    fn drop(&mut self) {
        WATCHED.lock().blocked = None;
    }
}

/// Starts to watch this thread until [`Unwatch`]; returns `false` without a watchdog thread.
fn watch(runtime: Handle) -> bool {
    let spawn = || thread::Builder::new().name("blocked-turns".into()).spawn(run_watchdog).ok();
    let Some(watching) = WATCHDOG.get_or_init(|| Some(spawn()?.thread().clone())) else { return false };
    let mut watched = WATCHED.lock();
    if watched.blocked.is_some() {
        return false;
    }
    watched.blocked = Some(Blocked { since: Instant::now(), runtime, relieved: false });
    watched.used = true;
    let asleep = std::mem::take(&mut watched.asleep);
    drop(watched);
    if asleep {
        watching.unpark();
    }
    true
}

/// Checks periodically while turns block, and sleeps otherwise.
fn run_watchdog() {
    let mut unused = 0;
    loop {
        thread::sleep(CHECK_INTERVAL);
        let mut watched = WATCHED.lock();
        if let Some(blocked) = watched.blocked.as_mut().filter(|blocked| !blocked.relieved)
            && blocked.since.elapsed() >= CHECK_INTERVAL
        {
            blocked.relieved = true;
            let runtime = blocked.runtime.clone();
            drop(watched);
            // A task from outside of the runtime wakes one of its threads, which then polls sockets and timers and runs
            // ready tasks.
            drop(runtime.spawn(async {}));
            continue;
        }
        unused = if std::mem::take(&mut watched.used) || watched.blocked.is_some() { 0 } else { unused + 1 };
        watched.asleep = unused >= CHECKS_BEFORE_SLEEP;
        while watched.asleep {
            drop(watched);
            thread::park();
            watched = WATCHED.lock();
        }
    }
}

/// Ten times a usual sync of a fast disk, and too short for a client to notice.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Checks without a blocked turn after which the watchdog sleeps.
const CHECKS_BEFORE_SLEEP: u32 = 50;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::{Arc, mpsc};

    use tokio::sync::Notify;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const PAUSE: Duration = Duration::from_millis(50);

    /// Blocks its thread until a timer of another task has fired, within a turn.
    async fn block_once(within: impl FnOnce(&mut dyn FnMut()) + Send) -> Result<(), mpsc::RecvTimeoutError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let other = tokio::spawn(async move {
            tokio::time::sleep(2 * PAUSE).await;
            sender.send(()).unwrap();
        });
        // All threads are idle meanwhile. The one that continues has polled the timers until now.
        tokio::time::sleep(PAUSE).await;
        let turn = work::Turn::begin();
        let mut answer = Ok(());
        within(&mut || answer = receiver.recv_timeout(PATIENCE));
        drop(turn);
        other.await.unwrap();
        answer
    }

    #[test]
    fn timers_go_on_while_a_turn_waits_for_the_disk() {
        for _ in 0..10 {
            let answer = runtime().block_on(async { tokio::spawn(block_once(run_blocking)).await.unwrap() });
            assert_eq!(answer, Ok(()));
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }

    /// Charges more than a turn may cost, and blocks.
    fn run_over(block: &mut dyn FnMut()) {
        work::on_overrun(relieve);
        work::charge(2 * work::TURN, 1);
        block();
    }

    #[test]
    fn timers_go_on_while_a_turn_runs_over() {
        let answer = runtime().block_on(async { tokio::spawn(block_once(run_over)).await.unwrap() });
        assert_eq!(answer, Ok(()));
    }

    #[test]
    fn a_task_that_a_turn_has_woken_runs_while_the_turn_runs_over() {
        let turn = async {
            let (notify, (sender, receiver)) = (Arc::new(Notify::new()), mpsc::sync_channel(1));
            let woken = Arc::clone(&notify);
            let other = tokio::spawn(async move {
                woken.notified().await;
                sender.send(()).unwrap();
            });
            // The task is waiting by now, and enters this thread's LIFO slot.
            tokio::time::sleep(PAUSE).await;
            let turn = work::Turn::begin();
            notify.notify_one();
            let mut answer = Ok(());
            run_over(&mut || answer = receiver.recv_timeout(PATIENCE));
            drop(turn);
            other.await.unwrap();
            answer
        };
        let answer = runtime().block_on(async { tokio::spawn(turn).await.unwrap() });
        assert_eq!(answer, Ok(()));
    }
}
