//! What waits in many outboxes together.

// Nobody waits for it, so that it need not be tried in every order.
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that wait in all outboxes that [count in it](crate::Outbox::count_in).
#[derive(Debug, Default)]
pub struct Tally(AtomicUsize);

impl Tally {
    /// How many there are now.
    #[inline]
    pub fn bytes(&self) -> usize {
        // What is taken away may be seen before it was added.
        usize::try_from(self.0.load(Ordering::Relaxed) as isize).unwrap_or(0)
    }

    /// So many more, or fewer if `bytes` has wrapped around.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}
