//! Bytes per second of a connection, computed only when an operator requests them.

use broker::Timestamp;
use parking_lot::Mutex;

/// The counts at the last call, if there was one.
#[derive(Default)]
pub(super) struct ByteRates(Mutex<Option<Box<ByteSample>>>);

struct ByteSample {
    at: Timestamp,
    received: u64,
    sent: u64,
    rates: (f64, f64),
}

impl ByteRates {
    /// Bytes received and sent per second between two calls that are at least [`STEP`] apart; zero at the first call.
    pub(super) fn look(&self, received: u64, sent: u64, now: Timestamp) -> (f64, f64) {
        let mut last = self.0.lock();
        let Some(look) = &mut *last else {
            *last = Some(Box::new(ByteSample { at: now, received, sent, rates: (0.0, 0.0) }));
            return (0.0, 0.0);
        };
        let millis = now.0.saturating_sub(look.at.0);
        if millis >= STEP {
            let rate = |count: u64, before: u64| count.saturating_sub(before) as f64 * 1000.0 / millis as f64;
            let rates = (rate(received, look.received), rate(sent, look.sent));
            **look = ByteSample { at: now, received, sent, rates };
        }
        look.rates
    }
}

/// The shortest period, in milliseconds, for which a rate is computed.
const STEP: u64 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_measured_between_two_readings() {
        let rates = ByteRates::default();
        assert_eq!(rates.look(1_000, 10, Timestamp(0)), (0.0, 0.0), "a rate needs two readings");
        assert_eq!(rates.look(9_000, 90, Timestamp(STEP - 1)), (0.0, 0.0), "too soon");
        assert_eq!(rates.look(11_000, 10, Timestamp(STEP)), (2_000.0, 0.0));
        assert_eq!(rates.look(12_000, 20, Timestamp(STEP + 1)), (2_000.0, 0.0), "as it was");
        assert_eq!(rates.look(12_000, 20, Timestamp(3 * STEP)), (100.0, 1.0));
        assert_eq!(rates.look(12_000, 20, Timestamp(4 * STEP)), (0.0, 0.0));
    }
}
