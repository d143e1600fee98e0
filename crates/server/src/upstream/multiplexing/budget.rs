//! The memory that the messages for all slow clients may take together.
//!
//! A message takes its part once, however many inboxes it waits in; each inbox adds its entry. An inbox may hold no more than
//! the others have left ([`InboxBudget::left`]): the more clients are slow, the less each of them may have waiting, and there
//! is always some for those that are not. With 256 MiB, three clients that do not read have 64 MiB each at most, and 64 MiB
//! are left; `mqtt_queue_max` is usually lower. Some messages may wait for each client in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget of all inboxes of a server.
#[derive(Debug)]
pub(crate) struct InboxBudget {
    limit: usize,
    used: AtomicUsize,
}

/// A message's part of the budget, given back when this is dropped.
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

    /// Takes bytes whether or not they are left: the caller has looked, and drops what is too much.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> InboxShare {
        self.use_up(bytes);
        InboxShare { budget: Arc::clone(self), bytes }
    }

    /// As [`Self::take`], to be given back by the caller.
    pub(super) fn use_up(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns bytes that were used up.
    pub(super) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for InboxShare {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}
