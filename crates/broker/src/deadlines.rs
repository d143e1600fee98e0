//! The deadlines of a broker's queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use store::Waiter;
use sync::atomic::{AtomicU64, Ordering};
use sync::{Mutex, Rank};

use crate::queue::Queue;
use crate::time::Timestamp;

/// A broker's deadlines. Each queue has at most one entry.
pub(crate) struct Deadlines {
    due: Mutex<BTreeMap<(Timestamp, u64), Weak<Queue>>, { Rank::Leaf as u8 }>,
    /// The earliest deadline, in milliseconds; `u64::MAX` if there is none.
    earliest: AtomicU64,
    /// Woken when the earliest deadline has become earlier.
    waker: Option<Arc<dyn Waiter>>,
}

impl Deadlines {
    pub(crate) fn new(waker: Option<Arc<dyn Waiter>>) -> Self {
        Self { due: Mutex::default(), earliest: AtomicU64::new(u64::MAX), waker }
    }

    pub(crate) fn earliest(&self) -> Option<Timestamp> {
        let earliest = self.earliest.load(Ordering::Acquire);
        (earliest != u64::MAX).then_some(Timestamp(earliest))
    }

    /// Adds a queue's deadline, replacing its old one.
    pub(crate) fn replace(&self, old: Option<Timestamp>, new: Timestamp, queue: u64, target: &Weak<Queue>) {
        let mut due = self.due.lock();
        if let Some(old) = old {
            due.remove(&(old, queue));
        }
        due.insert((new, queue), target.clone());
        let before = self.earliest.load(Ordering::Relaxed);
        self.refresh(&due);
        drop(due);
        if new.0 < before
            && let Some(waker) = &self.waker
        {
            sync::work::wakes_another();
            waker.wake();
        }
    }

    pub(crate) fn remove(&self, deadline: Timestamp, queue: u64) {
        let mut due = self.due.lock();
        due.remove(&(deadline, queue));
        self.refresh(&due);
    }

    /// Removes and returns a queue whose deadline has passed.
    pub(crate) fn take_due(&self, now: Timestamp) -> Option<Arc<Queue>> {
        let mut due = self.due.lock();
        loop {
            let entry = due.first_entry().filter(|entry| entry.key().0 <= now)?;
            let queue = entry.remove().upgrade();
            self.refresh(&due);
            if queue.is_some() {
                return queue;
            }
        }
    }

    fn refresh(&self, due: &BTreeMap<(Timestamp, u64), Weak<Queue>>) {
        let earliest = due.first_key_value().map_or(u64::MAX, |((at, _), _)| at.0);
        self.earliest.store(earliest, Ordering::Release);
    }
}
