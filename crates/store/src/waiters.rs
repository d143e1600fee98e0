//! Waiters: for data to be on disk, for capacity, for work.

use std::collections::BTreeMap;
use std::sync::Arc;

use sync::{Mutex, Rank};

/// A task or thread that waits for an event: data on disk, capacity, or work.
pub trait Waiter: Send + Sync {
    /// The event has happened. Called once for each wait, from the thread that caused it, with no lock held except a
    /// queue's or the journal's committer: it may only wake a task or thread.
    fn wake(&self);
}

impl<F: Fn() + Send + Sync> Waiter for F {
    fn wake(&self) {
        self();
    }
}

/// The waiters for one event. The owner takes all waiters under its lock, and wakes them after releasing it.
#[derive(Default)]
pub struct WaitList(Vec<Arc<dyn Waiter>>);

impl WaitList {
    /// Adds a waiter, which is woken once for each time it was added.
    pub fn add(&mut self, waiter: Arc<dyn Waiter>) {
        self.0.push(waiter);
    }

    /// Adds a waiter unless it is in the list, in time proportional to the length of the list.
    pub fn add_once(&mut self, waiter: &Arc<dyn Waiter>) {
        if !self.0.iter().any(|other| Arc::ptr_eq(other, waiter)) {
            self.0.push(Arc::clone(waiter));
        }
    }

    /// Removes all waiters, for the caller to wake.
    pub fn take(&mut self) -> Self {
        Self(std::mem::take(&mut self.0))
    }

    /// Wakes all waiters. Call it without a lock.
    pub fn wake(self) {
        self.0.iter().for_each(|waiter| waiter.wake());
    }
}

/// The waiters, by the number they wait for.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Mutex<WaiterList, { Rank::Leaf as u8 }>,
}

#[derive(Default)]
struct WaiterList {
    by_number: BTreeMap<u64, WaitList>,
    /// All numbers up to this one have been reached.
    reached: u64,
}

impl Waiters {
    /// Wakes `waiter` once `number` is reached; at once if it has been.
    pub(crate) fn wait(&self, number: u64, waiter: Arc<dyn Waiter>) {
        let mut waiting = self.waiting.lock();
        if number > waiting.reached {
            waiting.by_number.entry(number).or_default().add(waiter);
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
        now.into_values().for_each(WaitList::wake);
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
