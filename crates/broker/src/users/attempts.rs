//! A limit on guessing passwords, the same for all protocols.
//!
//! Failures are counted per user and [network](crate::network_of), so that an attacker can lock out neither the user
//! elsewhere nor other users in the same network. Repeated attempts with the same password count once: many clients may
//! share a network, and one with an outdated password does not prevent the others from logging in.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sync::{Mutex, Rank};

/// Recent failed logins.
#[derive(Default)]
pub(crate) struct Attempts {
    failed: Mutex<HashMap<(Option<IpAddr>, String), Failures>, { Rank::Leaf as u8 }>,
    /// Hashes the failed passwords, which are not stored themselves.
    hasher: RandomState,
}

struct Failures {
    /// Hashes of distinct passwords.
    hashes: Vec<u64>,
    /// The time of the first failure.
    since: Instant,
}

impl Attempts {
    /// Whether a login may be attempted.
    pub(crate) fn may_try(&self, from: Option<IpAddr>, user: &str, now: Instant) -> bool {
        let failed = self.failed.lock();
        let failures = failed.get(&(from, user.to_owned()));
        failures.is_none_or(|failures| failures.hashes.len() < MAX_ATTEMPTS || failures.is_over(now))
    }

    /// Records a failed login.
    pub(crate) fn failed(&self, from: Option<IpAddr>, user: &str, password: &[u8], now: Instant) {
        let mut failed = self.failed.lock();
        if failed.len() >= MAX_KNOWN {
            failed.retain(|_, failures| !failures.is_over(now));
        }
        if failed.len() >= MAX_KNOWN {
            // Very many names are being tried. Clearing all entries gives the attacker only a few more attempts.
            failed.clear();
        }
        let none = || Failures { hashes: Vec::new(), since: now };
        let failures = failed.entry((from, user.to_owned())).or_insert_with(none);
        if failures.is_over(now) {
            *failures = none();
        }
        let hash = self.hasher.hash_one(password);
        if !failures.hashes.contains(&hash) && failures.hashes.len() < MAX_ATTEMPTS {
            failures.hashes.push(hash);
        }
    }

    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.failed.lock().len()
    }
}

impl Failures {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }
}

/// Distinct wrong passwords for a user from one network within [`WINDOW`]: plenty for a human, and useless for a client
/// that guesses.
const MAX_ATTEMPTS: usize = 30;

const WINDOW: Duration = Duration::from_secs(60);

/// Pairs stored, each with a name of at most 255 bytes and [`MAX_ATTEMPTS`] hashes.
const MAX_KNOWN: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(attempts: &Attempts, from: Option<IpAddr>, now: Instant) {
        for number in 0..MAX_ATTEMPTS {
            assert!(attempts.may_try(from, "u", now));
            attempts.failed(from, "u", number.to_string().as_bytes(), now);
        }
    }

    #[test]
    fn guessing_is_blocked_for_a_while_for_that_user_and_network_only() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let (here, there) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        guess(&attempts, here, now);
        assert!(!attempts.may_try(here, "u", now));
        assert!(attempts.may_try(there, "u", now), "from another network");
        assert!(attempts.may_try(here, "v", now), "for another user");
        assert!(attempts.may_try(here, "u", now + WINDOW), "later");
        attempts.failed(here, "u", b"x", now + WINDOW);
        assert!(attempts.may_try(here, "u", now + WINDOW), "and counted anew");
    }

    #[test]
    fn repeated_attempts_with_one_old_password_do_not_lock_out_others() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for _ in 0..10 * MAX_ATTEMPTS {
            attempts.failed(None, "u", b"old", now);
        }
        assert!(attempts.may_try(None, "u", now));
    }

    #[test]
    fn remembered_attempts_are_bounded() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for number in 0..=MAX_KNOWN {
            attempts.failed(None, &number.to_string(), b"x", now);
        }
        assert!(attempts.remembered() <= MAX_KNOWN);
    }
}
