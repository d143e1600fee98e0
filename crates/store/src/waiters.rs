//! Waiters for data to be on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use sync::{Mutex, Rank};

/// A callback that waits for data to be on disk.
pub trait Waiter: Send + Sync {
    /// The awaited data is on disk. Called once for each wait, from the thread that writes, without any lock held: it
    /// may only wake a task or thread.
    fn wake(&self);
}

/// The waiters, by the number they wait for.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Mutex<WaiterList, { Rank::Leaf as u8 }>,
}

#[derive(Default)]
struct WaiterList {
    by_number: BTreeMap<u64, Vec<Arc<dyn Waiter>>>,
    /// All numbers up to this one have been reached.
    reached: u64,
}

impl Waiters {
    /// Wakes `waiter` once `number` is reached; at once if it has been.
    pub(crate) fn wait(&self, number: u64, waiter: Arc<dyn Waiter>) {
        let mut waiting = self.waiting.lock();
        if number > waiting.reached {
            waiting.by_number.entry(number).or_default().push(waiter);
            return;
        }
        drop(waiting);
        waiter.wake();
    }

    /// Wakes the waiters of all numbers up to `number`, which are on disk.
    pub(crate) fn reach(&self, number: u64) {
        let mut waiting = self.waiting.lock();
        if number <= waiting.reached {
            return;
        }
        waiting.reached = number;
        let later = waiting.by_number.split_off(&(number + 1));
        let now = std::mem::replace(&mut waiting.by_number, later);
        drop(waiting);
        now.values().flatten().for_each(|waiter| waiter.wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Waiter for Woken {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_wait_is_answered_once_and_never_early() {
        let (waiters, woken) = (Waiters::default(), Arc::new(Woken::default()));
        let count = || woken.0.load(Ordering::Relaxed);
        waiters.wait(3, woken.clone());
        waiters.wait(5, woken.clone());
        waiters.reach(2);
        assert_eq!(count(), 0);
        waiters.reach(4);
        waiters.reach(4);
        assert_eq!(count(), 1);
        waiters.wait(4, woken.clone());
        assert_eq!(count(), 2);
        waiters.reach(9);
        assert_eq!(count(), 3);
    }
}
