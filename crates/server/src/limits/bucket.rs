//! Token buckets.

use std::time::{Duration, Instant};

/// A token bucket: it refills at a rate per second and holds at most one second's worth of tokens. A caller
/// that takes more than the bucket has leaves it in debt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    /// Returns a bucket that is full.
    pub(super) fn full(rate: usize, now: Instant) -> Self {
        Self { level: rate as f64, at: now }
    }

    /// Takes a token if there is one.
    pub(super) fn take_one(&mut self, rate: usize, now: Instant) -> bool {
        self.fill(rate, now);
        let is_there = self.level >= 1.0;
        if is_there {
            self.level -= 1.0;
        }
        is_there
    }

    /// Takes tokens even if the bucket has too few. Returns when the debt will be paid off, if there is one.
    pub(super) fn charge(&mut self, tokens: usize, rate: usize, now: Instant) -> Option<Instant> {
        self.fill(rate, now);
        self.level -= tokens as f64;
        (self.level < 0.0).then(|| now + Duration::from_secs_f64(-self.level / rate as f64))
    }

    /// Whether every token that was taken has been refilled.
    pub(super) fn is_full(&self, rate: usize, now: Instant) -> bool {
        self.level_at(rate, now) >= rate as f64
    }

    fn fill(&mut self, rate: usize, now: Instant) {
        self.level = self.level_at(rate, now);
        self.at = now;
    }

    fn level_at(&self, rate: usize, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.level + elapsed * rate as f64).min(rate as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_tokens_are_refilled_at_the_rate() {
        let now = Instant::now();
        let mut bucket = Bucket::full(2, now);
        assert!(bucket.take_one(2, now));
        assert!(bucket.take_one(2, now));
        assert!(!bucket.take_one(2, now));
        assert!(!bucket.take_one(2, now + Duration::from_millis(400)));
        assert!(bucket.take_one(2, now + Duration::from_millis(500)));
        assert!(!bucket.is_full(2, now + Duration::from_millis(1400)));
        assert!(bucket.is_full(2, now + Duration::from_millis(1500)));
    }

    #[test]
    fn charging_an_overdrawn_bucket_waits_until_the_debt_is_refilled() {
        let now = Instant::now();
        let mut bucket = Bucket::full(100, now);
        assert_eq!(bucket.charge(100, 100, now), None);
        assert_eq!(bucket.charge(50, 100, now), Some(now + Duration::from_millis(500)));
        let later = now + Duration::from_millis(500);
        assert_eq!(bucket.charge(0, 100, later), None);
        assert_eq!(bucket.charge(1, 100, later), Some(later + Duration::from_millis(10)));
    }
}
