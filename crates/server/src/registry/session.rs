//! The MQTT or STOMP session of an open connection, for operators.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An MQTT or STOMP session. The connection's own task counts, and readers take no lock.
#[derive(Debug, Default)]
pub struct ClientSession {
    /// Seconds that the session outlives its connection: 0 if it ends with the connection, `u32::MAX` forever.
    expiry: u32,
    /// Set after each batch of the client's requests.
    subscriptions: AtomicU32,
    published: AtomicU64,
    delivered: AtomicU64,
}

impl ClientSession {
    /// A new connection's session, which outlives the connection for this many seconds.
    pub(crate) fn new(expiry: u32) -> Self {
        Self { expiry, ..Self::default() }
    }

    /// Seconds that the session outlives its connection: 0 if it ends with the connection, `u32::MAX` forever.
    pub fn expiry(&self) -> u32 {
        self.expiry
    }

    /// Number of the client's subscriptions, including those that the backend has not answered yet.
    pub fn subscriptions(&self) -> u32 {
        self.subscriptions.load(Ordering::Relaxed)
    }

    /// Messages that the client has published on this connection.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Messages that were sent to the client on this connection.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(crate) fn set_subscriptions(&self, count: usize) {
        self.subscriptions.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count_published(&self) {
        self.published.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_delivered(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// For a protocol that counts deliveries itself.
    pub(crate) fn set_delivered(&self, count: u64) {
        self.delivered.store(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_session() {
        let session = ClientSession::new(60);
        session.set_subscriptions(3);
        session.count_published();
        session.set_delivered(7);
        session.count_delivered();
        let reported = (session.expiry(), session.subscriptions(), session.published(), session.delivered());
        assert_eq!(reported, (60, 3, 1, 8));
        session.set_subscriptions(usize::MAX);
        assert_eq!(session.subscriptions(), u32::MAX);
    }
}
