//! Whether a connection's task has work to do, or rests until its peer or another task wakes it.

use std::sync::Arc;
// A hint that nothing waits for need not be tested in every interleaving.
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

/// The activity of one connection's task.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    state: AtomicU8,
    /// Its peer is not read: more turns would not have it do more of its peer's work. Set and cleared at the end of a turn.
    is_paused: AtomicBool,
    /// The number of its rests, which it alone counts.
    rests: AtomicU32,
}

/// It waits for its peer or another task.
const RESTS: u8 = 0;
/// It has been woken, or has more to do than fitted into its turn, and waits for a thread.
const WAITS: u8 = 1;
/// Its turn has begun, and nothing has woken it since.
const RUNS: u8 = 2;

impl Activity {
    /// If it has work to do, the number of its rests before.
    pub(crate) fn busy_since_rest(&self) -> Option<u32> {
        let is_busy = self.state.load(Ordering::Relaxed) != RESTS && !self.is_paused.load(Ordering::Relaxed);
        is_busy.then(|| self.rests.load(Ordering::Relaxed))
    }

    /// Its turn begins.
    pub(crate) fn begin(&self) {
        self.state.store(RUNS, Ordering::Relaxed);
    }

    /// Its turn is over, but not its work.
    pub(crate) fn wait(&self) {
        self.state.store(WAITS, Ordering::Relaxed);
    }

    /// Its turn is over, with nothing left to do unless it has been woken meanwhile.
    pub(crate) fn rest(&self) {
        let rests = self.state.compare_exchange(RUNS, RESTS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if rests {
            self.rests.store(self.rests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Whether its peer is not read from now on.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        // Most turns change nothing that other threads look at.
        if self.is_paused.load(Ordering::Relaxed) != is_paused {
            self.is_paused.store(is_paused, Ordering::Relaxed);
        }
    }
}

/// The waker of a connection's task, which notes that it has been woken.
struct NotingWaker {
    task: Waker,
    activity: Arc<Activity>,
}

impl Wake for NotingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.activity.wait();
        self.task.wake_by_ref();
    }
}

/// The waker that a connection's task registers, made again when the runtime has another one for the task.
#[derive(Default)]
pub(crate) struct RegisteredWaker(Option<(Waker, Waker)>);

impl RegisteredWaker {
    /// For the task that is polled with this context.
    pub(crate) fn of(&mut self, task: &Context<'_>, activity: &Arc<Activity>) -> &Waker {
        let known = self.0.take().filter(|(known, _)| known.will_wake(task.waker()));
        let (_, noting) = self.0.insert(known.unwrap_or_else(|| {
            let (task, activity) = (task.waker().clone(), Arc::clone(activity));
            let noting = NotingWaker { task: task.clone(), activity };
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
        // A spawned task: unlike other wakers, those of tokio have one table of functions, by which they are compared.
        let made = tokio::spawn(poll_fn(|task| {
            let (activity, mut registered) = (Arc::new(Activity::default()), RegisteredWaker::default());
            for _ in 0..2 {
                registered.of(task, &activity);
            }
            // One reference is ours.
            Poll::Ready(Arc::strong_count(&activity) - 1)
        }));
        assert_eq!(made.await.unwrap(), 1);
    }
}
