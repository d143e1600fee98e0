//! The deadlines of a broker's queues, and the queues whose dead letters wait for the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use store::Waiter;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Mutex, Rank};

use crate::paging::Paging;
use crate::queue::Queue;
use crate::time::Timestamp;

/// A broker's deadlines. Each queue has at most one entry.
pub(crate) struct Deadlines {
    due: Mutex<BTreeMap<(Timestamp, u64), Weak<Queue>>, { Rank::Leaf as u8 }>,
    /// The earliest deadline, in milliseconds; `u64::MAX` if there is none.
    earliest: AtomicU64,
    /// Queues for [`Queue::continue_dead_lettering`], in order.
    awaiting_capacity: Mutex<VecDeque<Weak<Queue>>, { Rank::Leaf as u8 }>,
    capacity: Arc<AwaitedCapacity>,
}

/// The capacity of the store that dead letters wait for.
struct AwaitedCapacity {
    is_awaited: AtomicBool,
    /// Woken when the earliest deadline moves forward, when a queue has dead letters, or when there is capacity for them.
    waker: Option<Arc<dyn Waiter>>,
}

impl AwaitedCapacity {
    fn wake_timer(&self) {
        if let Some(waker) = &self.waker {
            sync::work::wakes_another();
            waker.wake();
        }
    }
}

impl Waiter for AwaitedCapacity {
    fn wake(&self) {
        self.is_awaited.store(false, Ordering::Release);
        self.wake_timer();
    }
}

impl Deadlines {
    pub(crate) fn new(waker: Option<Arc<dyn Waiter>>) -> Self {
        let capacity = Arc::new(AwaitedCapacity { is_awaited: AtomicBool::new(false), waker });
        Self {
            due: Mutex::default(),
            earliest: AtomicU64::new(u64::MAX),
            awaiting_capacity: Mutex::default(),
            capacity,
        }
    }

    /// Adds a queue for [`Queue::continue_dead_lettering`].
    pub(crate) fn await_capacity(&self, queue: Weak<Queue>) {
        self.awaiting_capacity.lock().push_back(queue);
        self.capacity.wake_timer();
    }

    /// Removes and returns the next queue for [`Queue::continue_dead_lettering`].
    pub(crate) fn take_awaiting_capacity(&self) -> Option<Arc<Queue>> {
        let mut queues = self.awaiting_capacity.lock();
        std::iter::from_fn(|| queues.pop_front()).find_map(|queue| queue.upgrade())
    }

    pub(crate) fn has_awaiting_capacity(&self) -> bool {
        !self.awaiting_capacity.lock().is_empty()
    }

    /// Wakes the timer when there may be capacity for dead letters again.
    pub(crate) fn wait_for_capacity(&self, paging: &Paging) {
        if !self.capacity.is_awaited.swap(true, Ordering::AcqRel) {
            paging.wait_for_capacity(Arc::<AwaitedCapacity>::clone(&self.capacity));
        }
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
        if new.0 < before {
            self.capacity.wake_timer();
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
