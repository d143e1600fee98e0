//! When each client is asked to leave during a drain: all at once, or spread over time, so that a fleet of clients does
//! not reconnect elsewhere in one moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Server, Shared};
use crate::mqtt::MqttBackend;

impl Server {
    /// Stops accepting, closes each client with 320 CONNECTION_FORCED at its own time within `spread`, and then waits for
    /// at most `timeout` until all have left. Returns the number of connections left.
    pub async fn drain(&self, spread: Duration, timeout: Duration) -> usize {
        let departures = self.shared.start_draining(spread, timeout);
        // Ends accepting, and connections that have not logged in.
        self.shared.emptied.notify_waiters();
        self.shared.nudge_all();
        self.shared.ask_clients_to_leave(departures).await;
        // Only once the last client has been asked to leave: earlier ones share subscriptions and sessions as usual.
        self.shared.subscriptions.drain();
        if let Some(MqttBackend::Upstream(hub)) = self.shared.mqtt.get() {
            hub.drain();
        }
        let accepting = std::mem::take(&mut *self.shared.accepting.lock());
        let all_gone = async {
            for task in accepting {
                // A panicked task has also released its socket.
                let _ = task.await;
            }
            self.shared.emptied().await;
            if let Some(MqttBackend::Upstream(hub)) = self.shared.mqtt.get() {
                hub.finished().await;
            }
        };
        // After a timeout as well, the count below is the result.
        let _ = tokio::time::timeout(timeout, all_gone).await;
        self.shared.connections.lock().len()
    }
}

impl Server {
    /// After a drain: requeues the unacknowledged messages of detached MQTT sessions on the embedded broker, whose
    /// clients reconnect to another process.
    pub fn release_mqtt_deliveries(&self) {
        if let Some(MqttBackend::Broker(hub)) = self.shared.mqtt.get() {
            hub.release_deliveries(self.shared.clock.timestamp(Instant::now()));
        }
    }
}

impl Shared {
    /// Starts the drain, unless it has started: clients are asked to leave within `spread` from now on, and have
    /// `timeout` after that.
    pub(crate) fn start_draining(&self, spread: Duration, timeout: Duration) -> DrainSchedule {
        *self.departures.get_or_init(|| DrainSchedule::new(Instant::now(), spread, timeout))
    }

    /// How long a client that is handed over to another process may take, if that is not `usual`: there has to be time to
    /// close it.
    pub(crate) fn leave_timeout(&self, usual: Duration) -> Duration {
        self.departures.get().map_or(usual, |departures| usual.min(departures.timeout / 2))
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.departures.get().is_some()
    }

    /// Whether the server drains, and this connection's time to leave has come. Reads the clock, since a turn's time may
    /// be before the nudge that started the turn.
    pub(crate) fn must_leave(&self, connection: u64) -> bool {
        let has_come = |departures: &DrainSchedule| departures.time_of(connection) <= Instant::now();
        self.all_must_leave.load(Ordering::Acquire) || self.departures.get().is_some_and(has_come)
    }

    /// Wakes the task of every connection.
    fn nudge_all(&self) {
        let outboxes: Vec<_> =
            self.connections.lock().iter().map(|(_, (_, outbox))| Arc::clone(outbox)).collect();
        outboxes.iter().for_each(|outbox| outbox.nudge());
    }

    /// Nudges each connection at its time to leave; returns when all have been nudged, or none is left.
    async fn ask_clients_to_leave(&self, departures: DrainSchedule) {
        let mut leaving: Vec<_> = self
            .connections
            .lock()
            .iter()
            .map(|(_, (id, outbox))| (departures.time_of(*id), Arc::clone(outbox)))
            .collect();
        leaving.sort_unstable_by_key(|(time, _)| *time);
        let leave = async {
            for (time, outbox) in leaving {
                tokio::time::sleep_until(time.into()).await;
                outbox.nudge();
            }
            tokio::time::sleep_until(departures.end().into()).await;
        };
        tokio::select! {
            () = leave => {}
            () = self.emptied() => {}
        }
        // Also those that were being accepted at the start, or that another process hands over, now or later.
        self.all_must_leave.store(true, Ordering::Release);
        self.nudge_all();
    }

    /// Waits until no connection is left.
    async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.connections.lock().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Waits until the server drains and this connection's time to leave has come.
    pub(crate) async fn wait_for_drain_slot(&self, connection: u64) {
        self.drain_begun().await;
        if let Some(departures) = self.departures.get() {
            tokio::time::sleep_until(departures.time_of(connection).into()).await;
        }
    }

    pub(crate) async fn drain_begun(&self) {
        loop {
            let changed = self.emptied.notified();
            if self.is_draining() {
                return;
            }
            changed.await;
        }
    }
}

/// 2^64 divided by the golden ratio: its multiples modulo 2^64 are evenly spread for any count (Knuth, The Art of
/// Computer Programming, vol. 3, section 6.4).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The times at which clients are asked to leave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainSchedule {
    begun: Instant,
    /// The time from the first client's departure to the last one's.
    spread: Duration,
    /// The time that clients have to leave after that.
    timeout: Duration,
}

impl DrainSchedule {
    pub(crate) fn new(begun: Instant, spread: Duration, timeout: Duration) -> Self {
        Self { begun, spread, timeout }
    }

    /// When this connection is asked to leave. The times are spread evenly over the whole period for any set of numbers.
    pub(crate) fn time_of(&self, connection: u64) -> Instant {
        let share = u32::try_from(connection.wrapping_mul(GOLDEN) >> 32).unwrap_or(u32::MAX);
        self.begun + self.spread.mul_f64(f64::from(share) / f64::from(u32::MAX))
    }

    /// When the last client is asked to leave.
    pub(crate) fn end(&self) -> Instant {
        self.begun + self.spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_evenly_over_the_spread_for_any_range_of_numbers() {
        let (begun, spread) = (Instant::now(), Duration::from_secs(10));
        let departures = DrainSchedule::new(begun, spread, Duration::ZERO);
        for numbers in [1..1001_u64, 7_000_000..7_001_000] {
            let mut by_second = [0; 10];
            for number in numbers {
                let time = departures.time_of(number);
                assert!(time >= begun && time <= departures.end());
                let second = usize::try_from((time - begun).as_secs()).unwrap();
                by_second[second] += 1;
            }
            assert!(by_second.iter().all(|clients| (95..=105).contains(clients)), "{by_second:?}");
        }
    }

    #[test]
    fn without_a_spread_all_clients_leave_at_once() {
        let begun = Instant::now();
        let departures = DrainSchedule::new(begun, Duration::ZERO, Duration::ZERO);
        assert!([0, 1, u64::MAX].iter().all(|number| departures.time_of(*number) == begun));
    }
}
