//! The state into which an operator puts a spool, and the rates of its messages.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// The state of a spool, until its process ends or an operator changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SpoolCourse {
    /// It accepts publishes and forwards them.
    Running,
    /// It accepts publishes and forwards none.
    Paused,
    /// It forwards what it has and accepts nothing: publishers are blocked until it is empty, and publish directly to the
    /// upstream then.
    Draining,
}

impl SpoolCourse {
    /// One word, for operators.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Draining => "draining",
        }
    }
}

/// The course, as all threads see it.
#[derive(Debug)]
pub(super) struct Course(AtomicU8);

impl Course {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(SpoolCourse::Running as u8))
    }

    pub(super) fn get(&self) -> SpoolCourse {
        let course = self.0.load(Ordering::Acquire);
        let courses = [SpoolCourse::Running, SpoolCourse::Paused, SpoolCourse::Draining];
        courses.into_iter().find(|known| *known as u8 == course).unwrap_or(SpoolCourse::Running)
    }

    pub(super) fn set(&self, course: SpoolCourse) {
        self.0.store(course as u8, Ordering::Release);
    }
}

/// A rate in messages a second, smoothed over some seconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Rate {
    total: u64,
    rate: f64,
}

/// The share of the last interval in the rate.
const WEIGHT: f64 = 0.3;

impl Rate {
    /// The total is this, an interval after the call before.
    pub(super) fn measure(&mut self, total: u64, interval: Duration) {
        let last = total.saturating_sub(self.total) as f64 / interval.as_secs_f64();
        self.total = total;
        self.rate += WEIGHT * (last - self.rate);
    }

    pub(super) fn get(self) -> f64 {
        (self.rate * 10.0).round() / 10.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_approaches_what_happens() {
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
