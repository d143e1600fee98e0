//! The Keep Alive of one connection (section 3.1.2.10), on a clock that the caller reads.

use std::time::{Duration, Instant};

/// Ends a connection on which the client was silent for one and a half of its interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeepAlive {
    last_received: Instant,
    /// Seconds; 0 means off.
    interval: u16,
}

impl KeepAlive {
    pub(super) fn new(interval: u16, now: Instant) -> Self {
        Self { last_received: now, interval }
    }

    /// Bytes came. A part of a large packet counts as well: on a slow line it may take longer than the interval.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = Duration::from_secs(self.interval.into()) * 3 / 2;
        (self.interval != 0).then(|| self.last_received + patience)
    }
}
