//! Which connections are at work, so that they need not make room for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many requests of a connection are at work; with HTTP/1.1 one at most, but for an answer that is still sent.
/// Among the extensions of every request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Work(Arc<AtomicUsize>);

/// Keeps a connection from having to make room: from a good login on, and for as long as its answer says so.
#[derive(Debug)]
pub(crate) struct AtWork(Work);

impl Work {
    /// A request is worth keeping its connection for. Never before somebody has logged in: strangers could keep all
    /// connections so.
    pub(crate) fn begin(&self) -> AtWork {
        self.0.fetch_add(1, Ordering::Relaxed);
        AtWork(self.clone())
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Clone for AtWork {
    fn clone(&self) -> Self {
        self.0.begin()
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
