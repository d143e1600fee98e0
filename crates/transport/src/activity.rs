//! Whether a connection's task has work to do, or is idle until its peer or another task wakes it.

use std::sync::Arc;
// A hint that nothing waits for need not be tested in every interleaving.
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

/// The activity of one connection's task.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    state: AtomicU8,
    /// Reading from the peer is paused: more turns would not process more of its input. Updated at the end of each turn.
    is_paused: AtomicBool,
    /// Number of times that the task has become idle; only the task itself increments it.
    rests: AtomicU32,
}

/// It is idle, and waits for its peer or another task.
const IDLE: u8 = 0;
/// It has been woken, or has more work than fitted into its turn, and waits for a thread.
const READY: u8 = 1;
/// Its turn has begun, and nothing has woken it since.
const RUNNING: u8 = 2;

impl Activity {
    /// Number of times that the task was idle before, if it has work to do now.
    pub(crate) fn busy_since_rest(&self) -> Option<u32> {
        let is_busy = self.state.load(Ordering::Relaxed) != IDLE && !self.is_paused.load(Ordering::Relaxed);
        is_busy.then(|| self.rests.load(Ordering::Relaxed))
    }

    /// Its turn begins.
    pub(crate) fn begin(&self) {
        self.state.store(RUNNING, Ordering::Relaxed);
    }

    /// Its turn is over, but not its work.
    pub(crate) fn wait(&self) {
        self.state.store(READY, Ordering::Relaxed);
    }

    /// Its turn is over. It becomes idle unless it has been woken meanwhile.
    pub(crate) fn rest(&self) {
        let rests = self.state.compare_exchange(RUNNING, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if rests {
            self.rests.store(self.rests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Sets whether reading from its peer is paused from now on.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        // Most turns change nothing that other threads read.
        if self.is_paused.load(Ordering::Relaxed) != is_paused {
            self.is_paused.store(is_paused, Ordering::Relaxed);
        }
    }
}

/// The waker of a connection's task, which records that the task has been woken.
struct RecordingWaker {
    task: Waker,
    activity: Arc<Activity>,
}

impl Wake for RecordingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.activity.wait();
        self.task.wake_by_ref();
    }
}

/// The waker that a connection's task registers. It is created again when the runtime has another waker for the task.
#[derive(Default)]
pub(crate) struct RegisteredWaker(Option<(Waker, Waker)>);

impl RegisteredWaker {
    /// For the task that is polled with this context.
    pub(crate) fn of(&mut self, task: &Context<'_>, activity: &Arc<Activity>) -> &Waker {
        let known = self.0.take().filter(|(known, _)| known.will_wake(task.waker()));
        let (_, noting) = self.0.insert(known.unwrap_or_else(|| {
            let (task, activity) = (task.waker().clone(), Arc::clone(activity));
            let noting = RecordingWaker { task: task.clone(), activity };
            (task, Waker::from(Arc::new(noting)))
        }));
        noting
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[test]
    fn a_task_that_is_woken_during_its_turn_does_not_rest_after_it() {
        let (activity, mut registered) = (Arc::new(Activity::default()), RegisteredWaker::default());
        let task = Context::from_waker(Waker::noop());
        let is_idle = || activity.busy_since_rest().is_none();
        assert!(is_idle());
        let waker = registered.of(&task, &activity).clone();
        waker.wake_by_ref();
        assert!(!is_idle(), "it waits for a thread");
        activity.begin();
        assert!(!is_idle(), "it runs");
        activity.rest();
        assert!(is_idle());
        activity.begin();
        waker.wake_by_ref();
        activity.rest();
        assert_eq!(activity.busy_since_rest(), Some(1), "there is something new");
        activity.set_paused(true);
        assert!(is_idle(), "its peer is not read");
    }

    #[tokio::test]
    async fn a_waker_is_made_once_for_a_task() {
        // A spawned task: wakers of tokio's tasks, unlike others, share one vtable, by which they are compared.
        let made = tokio::spawn(poll_fn(|task| {
            let (activity, mut registered) = (Arc::new(Activity::default()), RegisteredWaker::default());
            for _ in 0..2 {
                registered.of(task, &activity);
            }
            // This test holds one reference.
            Poll::Ready(Arc::strong_count(&activity) - 1)
        }));
        assert_eq!(made.await.unwrap(), 1);
    }
}
