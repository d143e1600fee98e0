//! Detects dead peers. Browsers answer pings by themselves, but a page cannot send any.

use std::time::{Duration, Instant};

/// Pings a silent peer, and drops it if it stays silent. Any byte counts as a sign of life.
#[derive(Debug)]
pub(crate) struct Pings {
    /// How long a peer may be silent before it is pinged, and then again before it is dropped. Zero turns pings off.
    interval: Duration,
    last_received: Instant,
    pinged: bool,
}

/// The action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PingAction {
    None,
    Ping,
    PeerDead,
}

impl Pings {
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, last_received: now, pinged: false }
    }

    /// Called when bytes were received, or when the peer was not read.
    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = now;
        self.pinged = false;
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        (!self.interval.is_zero()).then(|| self.last_received + self.interval * (1 + u32::from(self.pinged)))
    }

    pub(crate) fn poll(&mut self, now: Instant) -> PingAction {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return PingAction::None;
        }
        if std::mem::replace(&mut self.pinged, true) {
            return PingAction::PeerDead;
        }
        // The peer has a whole interval to answer, even if the ping is late.
        self.last_received = now - self.interval;
        PingAction::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[test]
    fn a_silent_peer_is_pinged_once_and_then_disconnected() {
        let start = Instant::now() + INTERVAL;
        let mut pings = Pings::new(INTERVAL, start);
        assert_eq!(pings.poll(start + INTERVAL / 2), PingAction::None);
        let late = start + INTERVAL + Duration::from_secs(5);
        assert_eq!(pings.poll(late), PingAction::Ping);
        assert_eq!(pings.next_deadline(), Some(late + INTERVAL));
        assert_eq!(pings.poll(late + INTERVAL / 2), PingAction::None);
        assert_eq!(pings.poll(late + INTERVAL), PingAction::PeerDead);
    }

    #[test]
    fn received_bytes_restart_the_interval() {
        let start = Instant::now();
        let mut pings = Pings::new(INTERVAL, start);
        assert_eq!(pings.poll(start + INTERVAL), PingAction::Ping);
        pings.received(start + INTERVAL);
        assert_eq!(pings.next_deadline(), Some(start + INTERVAL * 2));
        assert_eq!(pings.poll(start + INTERVAL * 2), PingAction::Ping);
    }

    #[test]
    fn an_interval_of_zero_disables_pings() {
        let start = Instant::now();
        let mut pings = Pings::new(Duration::ZERO, start);
        assert_eq!(pings.next_deadline(), None);
        assert_eq!(pings.poll(start + INTERVAL), PingAction::None);
    }
}
