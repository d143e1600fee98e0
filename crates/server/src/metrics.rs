//! Counters of the front end, as plain atomics that anyone may read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use broker::FrontEnd;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What the listeners and sessions have done since the process started.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
            confirms: [Confirms; 3],
        }
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
    /// Bytes received from clients.
    bytes_received,
    /// Messages returned to their publishers as unroutable.
    messages_returned,
}

/// What the clients of one front end are told about their messages.
#[derive(Debug, Default)]
pub struct Confirms {
    /// Messages published with confirms on, or what stands for them.
    pub wanted: Counter,
    /// Messages confirmed to their publishers.
    pub given: Counter,
}

impl Metrics {
    /// Of the clients of a front end.
    pub fn confirms(&self, of: FrontEnd) -> &Confirms {
        &self.confirms[of as usize]
    }
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
