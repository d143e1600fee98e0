//! Time, which the caller passes in.

/// Milliseconds since 1970-01-01 UTC. The broker has no clock; the caller passes in the current time, which
/// must not go backwards (a wall time taken once, plus a monotonic clock).
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
