//! Pages out short queues when the long ones cannot free enough memory: a hundred thousand short queues take as much memory
//! as a long one.
//!
//! A sweep visits all queues, some at a time, and pages out messages until less than the watermark is in memory: first from
//! queues that take more than 16 KiB, then from all, but only messages that need no write. Messages that consumers load
//! stay until the next sweep, which starts when much more is in memory than at the end of this one.

use std::sync::{Arc, Weak};

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Mutex, Rank};

use super::LEEWAY;
use crate::broker::Broker;
use crate::queue::Extent;
use crate::time::Timestamp;
use crate::vhost::VirtualHost;

/// The state of a sweep.
pub(super) struct Sweep {
    /// Set when a sweep is due, cleared when it is done.
    is_wanted: AtomicBool,
    /// Set while a thread performs a step.
    is_busy: AtomicBool,
    /// Bytes in memory above which the next sweep is due.
    threshold: AtomicU64,
    /// The position of the current sweep.
    cursor: Mutex<Option<Cursor>, { Rank::Leaf as u8 }>,
}

/// A position among the queues.
struct Cursor {
    extent: Extent,
    /// The virtual hosts at the start of the sweep; the first `done` of them have been visited.
    vhosts: Vec<Weak<VirtualHost>>,
    done: usize,
    /// The first slot of the next one that has not been visited.
    slot: usize,
}

impl Sweep {
    pub(super) fn new() -> Self {
        Self {
            is_wanted: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            threshold: AtomicU64::new(0),
            cursor: Mutex::default(),
        }
    }

    /// Whether this number of bytes in memory, which is above the watermark, makes a sweep due.
    pub(super) fn is_due(&self, resident: u64) -> bool {
        resident > self.threshold.load(Ordering::Relaxed).max(LEEWAY)
            && !self.is_wanted.load(Ordering::Relaxed)
            && !self.is_wanted.swap(true, Ordering::AcqRel)
    }

    /// Requests a sweep, regardless of the bytes in memory.
    pub(super) fn want(&self) {
        self.is_wanted.store(true, Ordering::Release);
    }

    /// Whether a sweep is due or in progress.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// Called when less than the watermark is in memory: the next excess makes a sweep due.
    pub(super) fn begin_anew(&self) {
        self.threshold.store(0, Ordering::Relaxed);
    }

    fn end(&self, resident: u64) {
        self.threshold.store(resident.saturating_add(growth(resident)), Ordering::Relaxed);
        self.is_wanted.store(false, Ordering::Release);
    }
}

impl Broker {
    /// Does a step of the sweep, if one is due. Returns false if there is nothing to do.
    pub(super) fn sweep(&self, now: Timestamp) -> bool {
        let paging = self.paging();
        let sweep = &paging.sweep;
        // The paging threads are woken when the last long queue has paged out.
        if !sweep.is_wanted() || paging.has_long_queues() || sweep.is_busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        let cursor = sweep.cursor.lock().take();
        let cursor = cursor.unwrap_or_else(|| self.first_queue(Extent::Short));
        let next = self.sweep_some(cursor, now).filter(|_| paging.is_over_watermark());
        if next.is_none() {
            sweep.end(paging.resident.known());
            if !paging.is_over_watermark() {
                sweep.begin_anew();
            }
        }
        *sweep.cursor.lock() = next;
        sweep.is_busy.store(false, Ordering::Release);
        true
    }

    fn first_queue(&self, extent: Extent) -> Cursor {
        let vhosts = self.all_vhosts().iter().map(Arc::downgrade).collect();
        Cursor { extent, vhosts, done: 0, slot: 0 }
    }

    /// Visits the next queues. Returns the position after them; `None` at the end of the sweep.
    fn sweep_some(&self, cursor: Cursor, now: Timestamp) -> Option<Cursor> {
        let Some(vhost) = cursor.vhosts.get(cursor.done) else {
            return (cursor.extent == Extent::Short).then(|| self.first_queue(Extent::Stored));
        };
        let mut queues = Vec::new();
        let slot = vhost.upgrade().and_then(|vhost| {
            vhost.with_topology(|topology| topology.queues_from(cursor.slot, STEP, &mut queues))
        });
        if !queues.iter().all(|queue| queue.evict(cursor.extent, now)) && cursor.extent == Extent::Short {
            // The next queue could not be written either.
            return Some(self.first_queue(Extent::Stored));
        }
        let done = cursor.done + usize::from(slot.is_none());
        Some(Cursor { done, slot: slot.unwrap_or(0), ..cursor })
    }
}

/// Bytes by which memory has to grow above `bytes` before another sweep is worthwhile.
pub(super) fn growth(bytes: u64) -> u64 {
    (bytes / GROWTH).max(MIN_GROWTH)
}

/// Queues visited in one step.
const STEP: usize = 64;

/// The growth before the next sweep, as a fraction of the bytes in memory: an earlier one would find little to do.
const GROWTH: u64 = 16;

/// The same in bytes, so that a few queues are not visited constantly.
const MIN_GROWTH: u64 = 4 << 20;
