//! A bound on guessing passwords.
//!
//! A client of AMQP that guesses pays a connection for each try. Here many tries fit into one connection, so failures
//! are counted for each user and address: an address that guesses cannot lock the user out elsewhere.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failed logins of late.
#[derive(Default)]
pub(super) struct Attempts {
    failed: Mutex<HashMap<(Option<IpAddr>, String), Failures>>,
}

struct Failures {
    count: u32,
    /// Of the first of them.
    since: Instant,
}

impl Attempts {
    /// Whether somebody may try to log in.
    pub(super) fn may_try(&self, from: Option<IpAddr>, user: &str, now: Instant) -> bool {
        let failed = self.failed.lock();
        let failures = failed.get(&(from, user.to_owned()));
        failures.is_none_or(|failures| failures.count < MOST || failures.is_over(now))
    }

    /// A login has failed.
    pub(super) fn failed(&self, from: Option<IpAddr>, user: &str, now: Instant) {
        let mut failed = self.failed.lock();
        if failed.len() >= MOST_KNOWN {
            failed.retain(|_, failures| !failures.is_over(now));
        }
        if failed.len() >= MOST_KNOWN {
            // Somebody tries very many names. Whoever is forgotten may try a little longer.
            failed.clear();
        }
        let failures =
            failed.entry((from, user.to_owned())).or_insert_with(|| Failures { count: 0, since: now });
        if failures.is_over(now) {
            *failures = Failures { count: 0, since: now };
        }
        failures.count += 1;
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.failed.lock().len()
    }
}

impl Failures {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }
}

/// Failures of a user from an address within [`WINDOW`]: ample for a human, or a script that has not heard of a new
/// password, and nothing for who guesses.
const MOST: u32 = 30;

const WINDOW: Duration = Duration::from_secs(60);

/// Pairs remembered, each with a name of at most 255 octets.
const MOST_KNOWN: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_stops_for_a_while_and_for_nobody_else() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let (here, there) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        for _ in 0..MOST {
            assert!(attempts.may_try(here, "u", now));
            attempts.failed(here, "u", now);
        }
        assert!(!attempts.may_try(here, "u", now));
        assert!(attempts.may_try(there, "u", now), "somewhere else");
        assert!(attempts.may_try(here, "v", now), "somebody else");
        assert!(attempts.may_try(here, "u", now + WINDOW), "later");
        attempts.failed(here, "u", now + WINDOW);
        assert!(attempts.may_try(here, "u", now + WINDOW), "and counted anew");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for number in 0..=MOST_KNOWN {
            attempts.failed(None, &number.to_string(), now);
        }
        assert!(attempts.remembered() <= MOST_KNOWN);
    }
}
