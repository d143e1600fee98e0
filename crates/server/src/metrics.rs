//! Counters of the front end, as plain atomics that anyone may read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What the listeners and sessions have done since the process started.
        #[derive(Debug, Default)]
        pub struct Metrics { $($(#[$doc])* pub $name: Counter),* }
    };
}

counters! {
    /// Connections accepted.
    connections_opened,
    /// Connections that have ended.
    connections_closed,
    /// Connections turned away by a limit.
    connections_refused,
    /// Logins refused.
    logins_refused,
    /// Channels opened.
    channels_opened,
    /// Channels closed, by whichever side or with their connection.
    channels_closed,
    /// Octets received from clients.
    bytes_received,
    /// Messages published with confirms on.
    messages_to_confirm,
    /// Messages confirmed to their publishers.
    messages_confirmed,
    /// Messages returned to their publishers as unroutable.
    messages_returned,
}

/// A number that goes up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}
