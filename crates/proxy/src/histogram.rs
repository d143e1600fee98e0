//! A lock-free histogram of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in seconds. Longer durations than the last bound are in none of them.
pub const BOUNDS: [f64; 10] = [0.000_01, 0.000_03, 0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.1, 1.0, 10.0];

/// A snapshot of observed durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Durations {
    /// Number of durations between the previous bound and this one of [`BOUNDS`].
    pub buckets: [u64; BOUNDS.len()],
    /// Number of durations, those above the last bound included.
    pub count: u64,
    /// Sum of these durations.
    pub sum: Duration,
}

/// Counts durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    /// Sum in nanoseconds.
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        // In nanoseconds a u64 holds over five hundred years.
        self.sum.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Durations {
        Durations {
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed)),
            count: self.count.load(Ordering::Relaxed),
            sum: Duration::from_nanos(self.sum.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_one_bucket_or_beyond_all() {
        let histogram = Histogram::default();
        for millis in [0, 1, 2, 50, 20_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let seen = histogram.read();
        assert_eq!(seen.buckets, [1, 0, 0, 0, 1, 1, 0, 1, 0, 0]);
        assert_eq!((seen.count, seen.sum), (5, Duration::from_millis(20_053)));
    }
}
