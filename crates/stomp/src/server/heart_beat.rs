//! Heart-beats (1.2, "Heart-beating").

use std::time::{Duration, Instant};

use crate::fault::StompFault;

/// The negotiated intervals of one connection; zero disables a direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeartBeat {
    /// The server sends something at least this often.
    send: Duration,
    /// The client has promised to send something at least this often.
    expect: Duration,
    sent: Instant,
    received: Instant,
}

/// The action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Beat,
    /// Nothing was received for two intervals.
    PeerDead,
}

impl HeartBeat {
    pub(super) fn none(now: Instant) -> Self {
        Self { send: Duration::ZERO, expect: Duration::ZERO, sent: now, received: now }
    }

    /// Negotiates from the client's header `heart-beat`: the interval that it can send at, and the one that it
    /// wants to receive at, in milliseconds.
    pub(super) fn negotiate(header: Option<&str>, now: Instant) -> Result<Self, StompFault> {
        let Some(header) = header else { return Ok(Self::none(now)) };
        let interval = |text: &str| match text.trim().parse::<u32>() {
            Ok(0) => Some(Duration::ZERO),
            Ok(millis) => Some(Duration::from_millis(millis.into()).max(MIN_INTERVAL)),
            Err(_) => None,
        };
        let both = header.split_once(',').and_then(|(can, wants)| Some((interval(can)?, interval(wants)?)));
        let (can, wants) = both.ok_or_else(|| {
            StompFault::header(format!("'heart-beat' must be two numbers with a comma, not '{header}'\n"))
        })?;
        Ok(Self { send: wants, expect: can, sent: now, received: now })
    }

    /// The values of the server's own `heart-beat` header: the intervals that it sends and expects at, in milliseconds.
    pub(super) fn answer(&self) -> (u128, u128) {
        (self.send.as_millis(), self.expect.as_millis())
    }

    /// The interval that the client has promised, if it has.
    pub(super) fn expected(&self) -> Option<Duration> {
        (!self.expect.is_zero()).then_some(self.expect)
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.sent = now;
    }

    pub(super) fn received(&mut self, now: Instant) {
        self.received = now;
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.next_beat(), self.death()].into_iter().flatten().min()
    }

    pub(super) fn poll(&self, now: Instant) -> Due {
        match (self.death(), self.next_beat()) {
            (Some(death), _) if death <= now => Due::PeerDead,
            (_, Some(beat)) if beat <= now => Due::Beat,
            _ => Due::Nothing,
        }
    }

    /// Half an interval after the last byte, which leaves as long for the network.
    fn next_beat(&self) -> Option<Instant> {
        (!self.send.is_zero()).then(|| self.sent + self.send / 2)
    }

    fn death(&self) -> Option<Instant> {
        (!self.expect.is_zero()).then(|| self.received + self.expect * 2)
    }
}

/// The shortest interval, as in RabbitMQ, which counts in seconds.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_negotiated_heart_beat_follows_the_clients_header() {
        let now = Instant::now();
        for (header, answer) in [
            (None, (0, 0)),
            (Some("0,0"), (0, 0)),
            (Some("10000,4000"), (4000, 10_000)),
            (Some(" 100 , 0 "), (0, 1000)),
        ] {
            let negotiated = HeartBeat::negotiate(header, now).unwrap();
            assert_eq!(negotiated.answer(), answer, "{header:?}");
            assert_eq!(negotiated.expected().map_or(0, |interval| interval.as_millis()), answer.1);
        }
        for header in ["", "1", "1,2,3", "-1,0", "a,b"] {
            assert!(HeartBeat::negotiate(Some(header), now).is_err(), "{header}");
        }
    }

    #[test]
    fn heart_beats_are_sent_in_time_and_a_peer_is_dead_after_two_missed() {
        let start = Instant::now();
        let mut beat = HeartBeat::negotiate(Some("4000,2000"), start).unwrap();
        assert_eq!(beat.next_deadline(), Some(start + SECOND));
        assert_eq!(beat.poll(start + SECOND / 2), Due::Nothing);
        assert_eq!(beat.poll(start + SECOND), Due::Beat);
        beat.sent(start + 7 * SECOND);
        assert_eq!(beat.poll(start + 7 * SECOND), Due::Nothing);
        assert_eq!(beat.poll(start + 8 * SECOND), Due::PeerDead);
        beat.received(start + 8 * SECOND);
        assert_eq!(beat.poll(start + 8 * SECOND), Due::Beat);
        assert_eq!(HeartBeat::none(start).next_deadline(), None);
    }
}
