//! The Keep Alive of one connection (section 3.1.2.10); the caller reads the clock.

use std::time::{Duration, Instant};

/// Detects that the client was silent for one and a half times its interval.
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

    /// Notes that bytes were received. A part of a large packet counts as well: on a slow network it may take
    /// longer than the interval.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = Duration::from_secs(self.interval.into()) * 3 / 2;
        (self.interval != 0).then(|| self.last_received + patience)
    }
}
