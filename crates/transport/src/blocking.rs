//! Waiting for a disk on a thread of the runtime, which is worth it for some hundred microseconds: to hand the wait to
//! another thread takes as long.
//!
//! Meanwhile no other thread may be looking after sockets and timers, for the runtime leaves that to one of its threads at
//! a time. So a thread beside the runtime watches, and wakes another one of it if the disk takes longer than expected. A turn
//! that runs over wakes another one itself.

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
    /// A thread has blocked since the last look.
    used: bool,
    /// The watching thread sleeps until it is woken.
    asleep: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { blocked: None, used: false, asleep: false });
/// The watching thread, from the first use on; `None` if the system had none to give.
static WATCHING: OnceLock<Option<Thread>> = OnceLock::new();

/// Runs what may block this thread, for [`sync::work::run_deferred`], so that the runtime's other tasks continue.
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

/// Has another thread look after sockets, timers and the tasks that this one holds up, for [`sync::work::on_overrun`].
pub(crate) fn relieve() {
    if let Ok(runtime) = Handle::try_current()
        && runtime.runtime_flavor() == RuntimeFlavor::MultiThread
    {
        // The first task takes the place of the one in the LIFO slot, which others could not take; the second makes sure that
        // a thread is woken: none is for a task that comes into that slot while it is free.
        drop(runtime.spawn(async {}));
        drop(runtime.spawn(async {}));
    }
}

/// Ends the watch, also if the work panics.
struct Unwatch;

impl Drop for Unwatch {
    fn drop(&mut self) {
        WATCHED.lock().blocked = None;
    }
}

/// Has this thread watched until [`Unwatch`]; returns `false` if that cannot be.
fn watch(runtime: Handle) -> bool {
    let spawn = || thread::Builder::new().name("blocked-turns".into()).spawn(look_after).ok();
    let Some(watching) = WATCHING.get_or_init(|| Some(spawn()?.thread().clone())) else { return false };
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

/// Polls while turns block, and sleeps otherwise.
fn look_after() {
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
            // A task from outside of the runtime wakes one of its threads, which then looks after all that waits.
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

/// Ten times a usual sync of a fast disk, and short beside what a client notices.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Looks without a blocked turn after which the watching thread sleeps.
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
        // All threads rest meanwhile. The one that continues has been looking after the timers, and does so no longer.
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
    fn a_task_that_a_turn_has_woken_goes_on_while_it_runs_over() {
        let turn = async {
            let (notify, (sender, receiver)) = (Arc::new(Notify::new()), mpsc::sync_channel(1));
            let woken = Arc::clone(&notify);
            let other = tokio::spawn(async move {
                woken.notified().await;
                sender.send(()).unwrap();
            });
            // It waits by then, and comes into this thread's LIFO slot.
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
