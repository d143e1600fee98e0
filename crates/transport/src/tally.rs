//! The sum of the bytes that wait in several outboxes.

// Nothing waits for it, so it need not be tested in every interleaving.
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pending bytes of all outboxes that [count towards it](crate::Outbox::count_towards).
#[derive(Debug, Default)]
pub struct Tally(AtomicUsize);

impl Tally {
    /// The current sum in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        // A subtraction may be seen before the addition that it belongs to.
        usize::try_from(self.0.load(Ordering::Relaxed) as isize).unwrap_or(0)
    }

    /// Adds `bytes`, or subtracts if `bytes` is a wrapped negative number.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}
