//! Heartbeat timing (specification section 4.2.7) on a clock that the caller reads.
//!
//! A heartbeat is sent after half an interval without other output, so that the peer sees several before it gives up;
//! the peer counts as dead after two whole intervals without a single byte from it.

use std::time::{Duration, Instant};

/// The action that [`Heartbeat::poll`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatAction {
    /// Nothing is due before [`Heartbeat::next_deadline`].
    None,
    /// Send [`crate::frame::HEARTBEAT`]. It already counts as sent.
    SendHeartbeat,
    /// Close the socket.
    PeerDead,
}

/// The heartbeat of one connection, for both directions.
#[derive(Debug, Clone, Copy)]
pub struct Heartbeat {
    last_received: Instant,
    last_sent: Instant,
    /// 0 means off.
    interval_secs: u16,
}

impl Heartbeat {
    /// Starts at `now`. An interval of 0 turns heartbeats off.
    pub fn new(interval_secs: u16, now: Instant) -> Self {
        Self { last_received: now, last_sent: now, interval_secs }
    }

    /// Notes that bytes of any kind were received.
    #[inline]
    pub fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// Notes that bytes of any kind were sent.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// When to call [`Self::poll`] next; `None` if heartbeats are off.
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.interval_secs != 0).then(|| self.send_at().min(self.dead_at()))
    }

    /// The action due at `now`.
    pub fn poll(&mut self, now: Instant) -> HeartbeatAction {
        if self.interval_secs == 0 {
            HeartbeatAction::None
        } else if now >= self.dead_at() {
            HeartbeatAction::PeerDead
        } else if now >= self.send_at() {
            self.last_sent = now;
            HeartbeatAction::SendHeartbeat
        } else {
            HeartbeatAction::None
        }
    }

    fn send_at(&self) -> Instant {
        self.last_sent + Duration::from_secs(self.interval_secs.into()) / 2
    }

    fn dead_at(&self) -> Instant {
        self.last_received + Duration::from_secs(self.interval_secs.into()) * SILENT_INTERVALS
    }
}

/// Silent intervals after which a peer counts as dead: one heartbeat may be lost or late.
const SILENT_INTERVALS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: f64) -> Duration {
        Duration::from_secs_f64(n)
    }

    #[test]
    fn a_silent_sender_sends_every_half_interval() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(10, start);
        assert_eq!(heartbeat.next_deadline(), Some(start + seconds(5.0)));
        assert_eq!(heartbeat.poll(start + seconds(4.9)), HeartbeatAction::None);
        assert_eq!(heartbeat.poll(start + seconds(5.0)), HeartbeatAction::SendHeartbeat);
        assert_eq!(heartbeat.poll(start + seconds(5.1)), HeartbeatAction::None);
        assert_eq!(heartbeat.poll(start + seconds(10.0)), HeartbeatAction::SendHeartbeat);
    }

    #[test]
    fn traffic_takes_the_place_of_heartbeats() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(10, start);
        heartbeat.sent(start + seconds(4.0));
        assert_eq!(heartbeat.poll(start + seconds(6.0)), HeartbeatAction::None);
        assert_eq!(heartbeat.next_deadline(), Some(start + seconds(9.0)));
    }

    #[test]
    fn a_peer_is_dead_after_two_silent_intervals() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(10, start);
        heartbeat.received(start + seconds(1.0));
        heartbeat.sent(start + seconds(20.0));
        assert_eq!(heartbeat.next_deadline(), Some(start + seconds(21.0)));
        assert_eq!(heartbeat.poll(start + seconds(20.9)), HeartbeatAction::None);
        assert_eq!(heartbeat.poll(start + seconds(21.0)), HeartbeatAction::PeerDead);
    }

    #[test]
    fn odd_intervals_are_halved_exactly() {
        let start = Instant::now();
        assert_eq!(Heartbeat::new(1, start).next_deadline(), Some(start + seconds(0.5)));
    }

    #[test]
    fn an_interval_of_zero_is_off() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(0, start);
        assert_eq!(heartbeat.next_deadline(), None);
        assert_eq!(heartbeat.poll(start + seconds(1e6)), HeartbeatAction::None);
    }

    #[test]
    fn a_heartbeat_takes_a_few_words() {
        assert!(size_of::<Heartbeat>() <= 5 * size_of::<u64>());
    }
}
