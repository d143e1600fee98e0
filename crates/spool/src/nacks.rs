//! How long the broker has nacked the messages of a destination, or of an exchange.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::envelope::Envelope;
use crate::item::{DestinationKey, DestinationKeys};

/// The longest gap between two nacks that still counts: three of the longest pauses. Nothing is known about an outage.
const MAX_GAP: Duration = Duration::from_secs(30);

/// Tracked destinations and exchanges. Beyond that, the run of their exchange counts.
const MAX_RUNS: usize = 8_192;

/// How often to look for runs that have ended without a confirm.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Runs of nacks without a confirm in between. They outlive connections, but outages do not count.
///
/// A run of an exchange is needed if each message has a different routing key and therefore a different destination, such
/// as messages to a full queue through a fanout exchange.
#[derive(Debug, Default)]
pub(crate) struct Nacks {
    /// By destination, and by exchange but for the default one, whose keys are independent queues.
    by_key: HashMap<DestinationKey, NackRun>,
    swept_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct NackRun {
    lasted: Duration,
    last: Instant,
}

impl Nacks {
    /// Records a nack. Returns how long the broker has nacked everything for its destination, or for its exchange.
    pub(crate) fn nacked(
        &mut self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
        now: Instant,
    ) -> Duration {
        let exchange = envelope.exchange();
        let of_exchange = (!exchange.is_empty()).then(|| self.add(keys.of_exchange(exchange), now));
        let of_destination = self.add(destination, now);
        of_destination.max(of_exchange.unwrap_or_default())
    }

    fn add(&mut self, key: DestinationKey, now: Instant) -> Duration {
        if let Some(run) = self.by_key.get_mut(&key) {
            run.lasted += MAX_GAP.min(now.saturating_duration_since(run.last));
            run.last = now;
            return run.lasted;
        }
        let may_sweep = self.swept_at.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP_INTERVAL);
        if self.by_key.len() >= MAX_RUNS && may_sweep {
            self.swept_at = Some(now);
            self.by_key.retain(|_, run| now.saturating_duration_since(run.last) <= SWEEP_INTERVAL);
        }
        if self.by_key.len() < MAX_RUNS {
            self.by_key.insert(key, NackRun { lasted: Duration::ZERO, last: now });
        }
        Duration::ZERO
    }

    /// Ends the run of a message that the broker has confirmed, or has refused in another way.
    pub(crate) fn ended(&mut self, keys: &DestinationKeys, destination: DestinationKey, envelope: &Envelope) {
        if !self.by_key.is_empty() {
            self.by_key.remove(&destination);
            self.by_key.remove(&keys.of_exchange(envelope.exchange()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::SpooledMessage;

    fn envelope<'a>(exchange: &'a str, routing_key: &'a str) -> Envelope {
        let message = SpooledMessage {
            vhost: "/",
            user: "guest",
            exchange,
            routing_key,
            accepted_at: 0,
            id: [0; 16],
            properties: &[0, 0],
            body: &[],
        };
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        Envelope::decode(bytes.into()).unwrap()
    }

    struct Bench {
        nacks: Nacks,
        keys: DestinationKeys,
        now: Instant,
    }

    impl Bench {
        fn nacked(&mut self, exchange: &str, key: &str) -> u64 {
            let destination = self.keys.of(exchange, key);
            self.nacks.nacked(&self.keys, destination, &envelope(exchange, key), self.now).as_secs()
        }
    }

    fn bench() -> Bench {
        Bench { nacks: Nacks::default(), keys: DestinationKeys::default(), now: Instant::now() }
    }

    #[test]
    fn a_run_lasts_until_a_confirm_and_an_outage_does_not_count() {
        let mut bench = bench();
        assert_eq!(bench.nacked("", "q"), 0);
        bench.now += Duration::from_secs(10);
        assert_eq!(bench.nacked("", "q"), 10);
        bench.now += Duration::from_secs(10_000);
        assert_eq!(bench.nacked("", "q"), 10 + MAX_GAP.as_secs());
        assert_eq!(bench.nacked("", "other"), 0, "keys of the default exchange are independent");
        bench.nacks.ended(&bench.keys, bench.keys.of("", "q"), &envelope("", "q"));
        assert_eq!(bench.nacked("", "q"), 0);
    }

    #[test]
    fn messages_with_different_routing_keys_share_the_run_of_their_exchange() {
        let mut bench = bench();
        for number in 0..3 {
            assert_eq!(bench.nacked("fan", &number.to_string()), 20 * number);
            bench.now += Duration::from_secs(20);
        }
    }

    #[test]
    fn the_number_of_runs_is_limited() {
        let mut bench = bench();
        for number in 0..2 * MAX_RUNS {
            bench.nacked("fan", &number.to_string());
        }
        assert_eq!(bench.nacks.by_key.len(), MAX_RUNS);
        bench.now += 2 * SWEEP_INTERVAL;
        bench.nacked("fan", "new");
        assert!(bench.nacks.by_key.len() <= 2, "{}", bench.nacks.by_key.len());
    }
}
