//! The memory budget for the messages that wait for slow clients.
//!
//! A message counts once, regardless of the number of inboxes in which it waits; each inbox counts its entry. An inbox
//! may hold at most what the others have left ([`InboxBudget::left`]). So the more clients are slow, the less may wait
//! for each, and some is always left for clients that are not. With 256 MiB, three clients that do not read may have 64
//! MiB each, and 64 MiB are left; `mqtt_queue_max` is usually lower. A small number of bytes may wait for each client in
//! any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget of all inboxes of a server.
#[derive(Debug)]
pub(crate) struct InboxBudget {
    limit: usize,
    used: AtomicUsize,
}

/// A message's share of the budget, returned when it is dropped.
#[derive(Debug)]
pub(super) struct InboxShare {
    budget: Arc<InboxBudget>,
    bytes: usize,
}

impl InboxBudget {
    /// A budget of this many bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Bytes that wait in all inboxes.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Takes bytes even if they exceed the budget: the caller has checked, and drops messages if necessary.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> InboxShare {
        self.use_up(bytes);
        InboxShare { budget: Arc::clone(self), bytes }
    }

    /// As [`Self::take`], for bytes that the caller gives back with [`Self::give_back`].
    pub(super) fn use_up(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back bytes taken with [`Self::use_up`].
    pub(super) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for InboxShare {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}
