//! Limits in bytes, of one client and of all clients together.
//!
//! An example, with 8 MiB for each client and 256 MiB for all: a client that uses 8 MiB has to wait until some of
//! its bytes are released. When all clients use 256 MiB, each client that uses any has to wait, also one that uses
//! 1 KiB; a client that uses nothing may still begin. So every client makes progress, a client that waits always
//! has bytes whose release ends its wait, and the total is exceeded by one batch of each client at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limits, and the bytes in use.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    /// Bytes of one client from which on it may not add more.
    each: usize,
    /// The same for all clients together.
    all: usize,
    bytes: AtomicUsize,
}

/// Bytes of one client in a quota, until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaShare {
    quota: Arc<Quota>,
    bytes: usize,
}

impl Quota {
    pub(crate) fn new(each: usize, all: usize) -> Arc<Self> {
        Arc::new(Self { each, all, bytes: AtomicUsize::new(0) })
    }

    /// Bytes in use by all clients together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether all clients together are below their limit.
    pub(crate) fn has_capacity(&self) -> bool {
        self.bytes() < self.all
    }

    /// Whether a client that uses `own` bytes may add more.
    pub(crate) fn admits(&self, own: usize) -> bool {
        own == 0 || (own < self.each && self.has_capacity())
    }
}

impl QuotaShare {
    pub(crate) fn new(quota: &Arc<Quota>, bytes: usize) -> Self {
        let mut share = Self { quota: quota.clone(), bytes: 0 };
        share.set(bytes);
        share
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Updates the bytes that the client uses.
    #[inline]
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            // One addition, which wraps around if there are fewer bytes than before.
            self.quota.bytes.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_a_client_with_nothing_may_begin_and_all_others_wait_at_either_limit() {
        let quota = Quota::new(10, 15);
        let mut one = QuotaShare::new(&quota, 9);
        assert!(quota.admits(one.bytes()));
        one.set(10);
        assert!(!quota.admits(one.bytes()), "its own limit");
        let other = QuotaShare::new(&quota, 5);
        assert_eq!(quota.bytes(), 15);
        assert!(!quota.admits(other.bytes()) && quota.admits(0), "the limit of all");
        drop(one);
        assert_eq!(quota.bytes(), 5);
        assert!(quota.admits(other.bytes()));
    }
}
