//! Rates of messages.

use std::time::Duration;

/// A rate in messages a second, smoothed over some seconds.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::spool) struct Rate {
    total: u64,
    rate: f64,
}

/// The weight of the last interval in the rate.
const WEIGHT: f64 = 0.3;

impl Rate {
    /// Updates the rate by the new total. `interval` is the time since the last call.
    pub(in crate::spool) fn measure(&mut self, total: u64, interval: Duration) {
        let last = total.saturating_sub(self.total) as f64 / interval.as_secs_f64();
        self.total = total;
        self.rate += WEIGHT * (last - self.rate);
    }

    pub(in crate::spool) fn get(self) -> f64 {
        (self.rate * 10.0).round() / 10.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_approaches_the_measured_rate() {
        let mut rate = Rate::default();
        for second in 1..=20 {
            rate.measure(500 * second, Duration::from_secs(1));
        }
        assert!((499.0..=500.0).contains(&rate.get()), "{rate:?}");
        for _ in 0..40 {
            rate.measure(10_000, Duration::from_secs(1));
        }
        assert_eq!(rate.get(), 0.0);
    }
}
