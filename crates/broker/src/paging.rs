//! How much of the queues is in memory, and which queues have something to do with the disk.
//!
//! Queues count what they hold here, a batch at a time. Above the watermark long queues are asked to let go of messages,
//! until an eighth less is held. What has to be read or written for that is done by whoever calls [`Broker::page`]: threads,
//! in a server; no queue is locked meanwhile. Who publishes faster to a long queue than that can be done
//! [waits](crate::VirtualHost::wait_for_room).

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use store::{Store, Waiter};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::broker::Broker;
use crate::queue::Queue;
use crate::time::Timestamp;

/// Told that [`Broker::page`] has something to do.
pub type PagingWaker = Arc<dyn Fn() + Send + Sync>;

/// What the queues of a broker hold, in memory and on disk. Each value is exact but for messages that several queues share:
/// of these each counts its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Bytes of memory that ready messages take.
    pub resident: u64,
    /// Ready messages that are on disk only.
    pub paged_messages: u64,
    /// Bytes of their bodies.
    pub paged_bytes: u64,
    /// Bytes of memory above which queues let go of messages; `u64::MAX` for never.
    pub watermark: u64,
}

/// A broker's paging. Its locks come behind those of queues.
pub(crate) struct Paging {
    resident: AtomicU64,
    paged_messages: AtomicU64,
    paged_bytes: AtomicU64,
    owed: AtomicU64,
    watermark: u64,
    /// More is in memory than should be.
    presses: AtomicBool,
    /// The long queues have yet to be asked.
    relief: AtomicBool,
    /// Queues that are, or were, long.
    long: Mutex<Vec<Weak<Queue>>>,
    jobs: Mutex<VecDeque<Arc<Queue>>>,
    /// Who publishes when enough has left memory.
    for_room: Mutex<Vec<Arc<dyn Waiter>>>,
    waker: Option<PagingWaker>,
    store: OnceLock<Arc<Store>>,
}

/// What a queue has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) resident: u64,
    pub(crate) paged_messages: u64,
    pub(crate) paged_bytes: u64,
    /// Bytes of memory that a long queue can let go of.
    pub(crate) owed: u64,
}

impl Broker {
    /// Does one thing that has to be done for paging: reads messages of a queue, or writes some. It waits for the disk. False
    /// when there is nothing to do.
    pub fn page(&self, now: Timestamp) -> bool {
        let paging = self.paging();
        paging.relieve();
        let Some(queue) = paging.next_job() else { return false };
        queue.page(now);
        true
    }

    /// What its queues hold.
    pub fn held(&self) -> Held {
        self.paging().held()
    }
}

impl Paging {
    pub(crate) fn new(watermark: u64, waker: Option<PagingWaker>) -> Self {
        Self {
            resident: AtomicU64::new(0),
            paged_messages: AtomicU64::new(0),
            paged_bytes: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            watermark,
            presses: AtomicBool::new(false),
            relief: AtomicBool::new(false),
            long: Mutex::default(),
            jobs: Mutex::default(),
            for_room: Mutex::default(),
            waker,
            store: OnceLock::new(),
        }
    }

    /// From now on there is a disk.
    pub(crate) fn keep(&self, store: &Arc<Store>) {
        let _ = self.store.set(store.clone());
    }

    /// Without one nothing can leave memory.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    pub(crate) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Whether more is in memory than should be.
    #[inline]
    pub(crate) fn presses(&self) -> bool {
        self.presses.load(Ordering::Relaxed)
    }

    /// A queue holds something else than before. Called under its lock.
    #[inline]
    pub(crate) fn count(&self, before: Counted, now: Counted) {
        let resident = change(&self.resident, before.resident, now.resident);
        if resident > self.watermark {
            if !self.presses() && self.store().is_some() && !self.presses.swap(true, Ordering::Relaxed) {
                self.relief.store(true, Ordering::Release);
                self.wake();
            }
        } else if self.presses() && resident < self.watermark - self.watermark / 8 {
            self.presses.store(false, Ordering::Relaxed);
        }
        if before.paged_messages != now.paged_messages {
            change(&self.paged_messages, before.paged_messages, now.paged_messages);
            change(&self.paged_bytes, before.paged_bytes, now.paged_bytes);
        }
        let paid = before.owed != now.owed && change(&self.owed, before.owed, now.owed) == 0;
        let was = (resident + before.resident).wrapping_sub(now.resident);
        if paid || was > self.limit() && resident <= self.limit() {
            // Both edges are seen by exactly one thread; whoever comes to wait afterwards sees what it has done.
            let waiting = std::mem::take(&mut *self.for_room.lock());
            waiting.iter().for_each(|waiter| waiter.wake());
        }
    }

    /// Whether far more is in memory than should be, of which something can leave.
    pub(crate) fn is_behind(&self) -> bool {
        self.presses()
            && self.resident.load(Ordering::Relaxed) > self.limit()
            && self.owed.load(Ordering::Relaxed) > 0
    }

    /// Wakes the waiter when that is over; gives it back if it is.
    pub(crate) fn wait_for_room(&self, waiter: Arc<dyn Waiter>) -> Option<Arc<dyn Waiter>> {
        let mut waiting = self.for_room.lock();
        if !self.is_behind() {
            return Some(waiter);
        }
        waiting.push(waiter);
        None
    }

    fn limit(&self) -> u64 {
        self.watermark.saturating_add(LEEWAY)
    }

    /// A queue has become long. Called under its lock.
    pub(crate) fn is_long(&self, queue: &Weak<Queue>) {
        self.long.lock().push(queue.clone());
    }

    /// A queue has something to do. It stands here once at most. Called under its lock.
    pub(crate) fn ask(&self, queue: Arc<Queue>) {
        self.jobs.lock().push_back(queue);
        self.wake();
    }

    fn next_job(&self) -> Option<Arc<Queue>> {
        self.jobs.lock().pop_front()
    }

    /// Asks all long queues to let go of messages, if there is a reason.
    fn relieve(&self) {
        if !self.relief.swap(false, Ordering::AcqRel) {
            return;
        }
        let long = std::mem::take(&mut *self.long.lock());
        let still =
            long.into_iter().filter(|queue| queue.upgrade().is_some_and(|queue| queue.is_still_long()));
        let still: Vec<_> = still.collect();
        self.long.lock().extend(still);
    }

    fn held(&self) -> Held {
        Held {
            resident: self.resident.load(Ordering::Relaxed),
            paged_messages: self.paged_messages.load(Ordering::Relaxed),
            paged_bytes: self.paged_bytes.load(Ordering::Relaxed),
            watermark: self.watermark,
        }
    }

    fn wake(&self) {
        if let Some(wake) = &self.waker {
            wake();
        }
    }
}

/// Puts a queue's new share into a sum, and returns the sum.
#[inline]
fn change(sum: &AtomicU64, before: u64, now: u64) -> u64 {
    if before <= now {
        sum.fetch_add(now - before, Ordering::Relaxed) + (now - before)
    } else {
        sum.fetch_sub(before - now, Ordering::Relaxed) - (before - now)
    }
}

/// Bytes in memory beyond the watermark from which publishers wait: the disk is kept busy, and the budget all but kept.
const LEEWAY: u64 = 32 << 20;
