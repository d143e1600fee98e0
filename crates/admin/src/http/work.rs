//! Records which connections are at work, and so need not make room for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of a connection's requests that are at work. With HTTP/1.1 this is at most one, apart from a
/// response that is still being sent. Every request carries this as an extension.
#[derive(Debug, Clone, Default)]
pub(crate) struct ActiveRequests(Arc<AtomicUsize>);

/// Protects a connection from being closed to make room, from a successful login until the handler or the
/// response body drops it.
#[derive(Debug)]
pub(crate) struct ActiveRequest(ActiveRequests);

impl ActiveRequests {
    /// Starts work on a request that its connection is to be kept for. Never called before a login: strangers
    /// could hold all connections that way.
    pub(crate) fn begin(&self) -> ActiveRequest {
        self.0.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(self.clone())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Clone for ActiveRequest {
    fn clone(&self) -> Self {
        self.0.begin()
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
