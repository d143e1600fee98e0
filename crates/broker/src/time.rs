//! Time, which the caller passes in.

use std::sync::atomic::{AtomicI64, Ordering};

/// Milliseconds since 1970-01-01 UTC by the broker's clock. The broker does not read a clock; the caller passes in the
/// current time. It must not go backwards, not even across a restart on the same store: deadlines are stored unchanged.
///
/// Such a monotonic clock does not follow adjustments of the wall clock. Times for clients and operators, and those that
/// other servers read, are therefore converted by [`WallOffset::wall_time`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time `millis` milliseconds later; saturates on overflow.
    #[must_use]
    pub fn after(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Whole seconds since 1970-01-01 UTC, as in a field table's timestamp.
    pub fn seconds(self) -> u64 {
        self.0 / 1000
    }
}

/// Milliseconds by which the broker's clock is ahead of the wall clock; negative if it is behind.
#[derive(Debug, Default)]
pub struct WallOffset(AtomicI64);

/// The offset for a broker whose caller passes in wall-clock time.
pub(crate) static NO_OFFSET: WallOffset = WallOffset::new();

impl WallOffset {
    /// No offset: both clocks show the same time until [`WallOffset::set`] is called.
    pub const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Milliseconds; negative if the broker's clock is behind.
    pub fn millis(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the offset after the wall clock was read and may have been adjusted.
    pub fn set(&self, millis: i64) {
        self.0.store(millis, Ordering::Relaxed);
    }

    /// The wall clock's time at a time of the broker's clock.
    pub fn wall_time(&self, time: Timestamp) -> Timestamp {
        Timestamp(time.0.saturating_add_signed(self.millis().saturating_neg()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_time_lags_behind_the_broker_time_by_the_offset() {
        let offset = WallOffset::new();
        assert_eq!(offset.wall_time(Timestamp(1_000)), Timestamp(1_000));
        offset.set(400);
        assert_eq!(offset.wall_time(Timestamp(1_000)), Timestamp(600));
        assert_eq!(offset.wall_time(Timestamp(399)), Timestamp(0));
        offset.set(-400);
        assert_eq!(offset.wall_time(Timestamp(1_000)), Timestamp(1_400));
        assert_eq!(offset.wall_time(Timestamp(u64::MAX)), Timestamp(u64::MAX));
        offset.set(i64::MIN);
        assert_eq!(offset.wall_time(Timestamp(0)), Timestamp(i64::MAX as u64));
    }
}
