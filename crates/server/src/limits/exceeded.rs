//! Which limits were exceeded, for metrics and the log.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{LimitReached, Limited, Scope};

/// How often each limit was exceeded.
#[derive(Debug, Default)]
pub struct Exceeded([[Tally; SCOPES.len()]; KINDS.len()]);

#[derive(Debug, Default)]
struct Tally {
    count: AtomicU64,
    /// The count at the last log entry.
    logged: AtomicU64,
    /// The second of the last log entry, counted from 1 since the first call; 0 before.
    logged_in: AtomicU64,
}

impl Exceeded {
    /// The counts by limit, such as `connections_per_ip`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let tallies = self.0.iter().flatten();
        NAMES.iter().copied().zip(tallies.map(|tally| tally.count.load(Ordering::Relaxed)))
    }

    /// Counts an excess and logs it at most once a second: an attacker must not fill the log.
    pub(super) fn note(&self, reached: LimitReached, alarm_only: bool) {
        static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
        let tally = &self.0[reached.what as usize][reached.scope as usize];
        let count = tally.count.fetch_add(1, Ordering::Relaxed) + 1;
        let second = BEGINNING.elapsed().as_secs() + 1;
        if tally.logged_in.swap(second, Ordering::Relaxed) == second {
            return;
        }
        let times = count.saturating_sub(tally.logged.swap(count, Ordering::Relaxed));
        if alarm_only {
            tracing::warn!(limit = %reached, times, "limit exceeded, not enforced (limits_mode = alarm)");
        } else {
            tracing::warn!(limit = %reached, times, "limit exceeded");
        }
    }
}

const KINDS: [Limited; 4] =
    [Limited::Connections, Limited::ConnectionRate, Limited::Channels, Limited::ReceiveRate];
const SCOPES: [Scope; 3] = [Scope::Total, Scope::PerIp, Scope::PerUser];

/// In the order of the variants of [`Limited`] and [`Scope`].
const NAMES: [&str; KINDS.len() * SCOPES.len()] = [
    "connections",
    "connections_per_ip",
    "connections_per_user",
    "connection_rate",
    "connection_rate_per_ip",
    "connection_rate_per_user",
    "channels",
    "channels_per_ip",
    "channels_per_user",
    "receive_rate",
    "receive_rate_per_ip",
    "receive_rate_per_user",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_a_count_of_its_own_under_its_own_name() {
        let exceeded = Exceeded::default();
        for (kind, what) in KINDS.into_iter().enumerate() {
            for (place, scope) in SCOPES.into_iter().enumerate() {
                assert_eq!((what as usize, scope as usize), (kind, place));
                for _ in 0..=(kind * SCOPES.len() + place) {
                    exceeded.note(LimitReached { what, scope, most: 1 }, false);
                }
            }
        }
        let counts: Vec<u64> = exceeded.iter().map(|(_, count)| count).collect();
        assert_eq!(counts, (1..=12).collect::<Vec<u64>>());
        assert!(exceeded.iter().any(|named| named == ("receive_rate_per_user", 12)));
        assert!(exceeded.iter().any(|named| named == ("connections_per_ip", 2)));
    }
}
