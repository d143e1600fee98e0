//! The logins of a log's clients, and the order in which they are tried for reading it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::upstream::multiplexing::{LoginKey, UpstreamLogin};

/// The time after which a refused login is tried again, since permissions may have been granted.
pub(super) const REFUSAL_TTL: Duration = Duration::from_secs(60);

/// Recent refusals at which clients no longer wait for further logins, and refused logins are not tried again. If each
/// client has its own user, and none has permission, clients must not wait for each other.
pub(super) const MAX_REFUSALS: usize = 8;

/// The maximum of remembered logins that have read the log: few users are meant to have that permission.
const MAX_PROVEN: usize = 16;

/// Logins at which unused ones are removed.
const MIN_PRUNED: usize = 1024;

/// The logins of one log. Sans-IO.
#[derive(Default)]
pub(super) struct LogLogins {
    /// Logins with clients, and logins refused recently.
    logins: HashMap<LoginKey, LoginUse>,
    clients: usize,
    /// Logins with clients that have not been tried since they were added, in order.
    untried: BTreeMap<u64, UpstreamLogin>,
    /// The last number in `untried`.
    arrivals: u64,
    /// Logins that have read the log, most recent first, with or without clients.
    proven: VecDeque<LoginKey>,
    /// The times of the last refusals.
    refusals: VecDeque<Instant>,
    /// When a refused login was last refused again.
    retried: Option<Instant>,
    /// The size of `logins` at which unused ones are removed.
    pruned_at: usize,
}

#[derive(Default)]
struct LoginUse {
    clients: usize,
    /// Its number in `untried`, if it has not been tried.
    arrival: Option<u64>,
    /// When the upstream refused it.
    refused: Option<Instant>,
}

impl LogLogins {
    /// Adds a client. Returns whether clients should wait for this login to be tried, if no other one has the log.
    pub(super) fn join(&mut self, login: &UpstreamLogin, now: Instant) -> bool {
        if self.logins.len() >= self.pruned_at {
            self.logins.retain(|_, known| known.clients > 0 || !known.may_retry(now));
            self.pruned_at = MIN_PRUNED.max(2 * self.logins.len());
        }
        self.clients += 1;
        let key = LoginKey(login.clone());
        let is_proven = self.proven.contains(&key);
        let known = self.logins.entry(key).or_default();
        known.clients += 1;
        if known.clients == 1 && known.may_retry(now) {
            self.arrivals += 1;
            known.arrival = Some(self.arrivals);
            self.untried.insert(self.arrivals, login.clone());
        }
        let is_untried = known.arrival.is_some();
        is_proven || (is_untried && self.may_try(now))
    }

    pub(super) fn leave(&mut self, login: &UpstreamLogin) {
        let key = LoginKey(login.clone());
        let Some(known) = self.logins.get_mut(&key) else { return };
        self.clients -= 1;
        known.clients -= 1;
        if known.clients == 0 {
            known.arrival.take().and_then(|arrival| self.untried.remove(&arrival));
            if known.refused.is_none() {
                self.logins.remove(&key);
            }
        }
    }

    pub(super) fn has_clients(&self) -> bool {
        self.clients > 0
    }

    /// The login to try next: first one that has read the log, then untried ones, then refused ones.
    pub(super) fn next(&self, now: Instant) -> Option<UpstreamLogin> {
        let due = || {
            let all = self.logins.iter().filter(|(_, known)| known.clients > 0 && known.may_retry(now));
            // The login whose refusal is the oldest.
            all.min_by_key(|(_, known)| (known.refused.is_none(), known.refused))
        };
        let proven = self.proven.iter().find(|key| self.is_used(key)).map(|key| &key.0);
        // Even if untried logins keep coming, one refused login is tried per [`REFUSAL_TTL`], since it may have been
        // granted permission.
        let is_due_again = self.retried.is_none_or(|at| at + REFUSAL_TTL <= now);
        let again =
            || due().filter(|(_, known)| is_due_again && known.refused.is_some()).map(|(key, _)| &key.0);
        let untried = || self.untried.first_key_value().map(|(_, login)| login);
        let refused = || due().filter(|_| self.may_try(now)).map(|(key, _)| &key.0);
        proven.or_else(again).or_else(untried).or_else(refused).cloned()
    }

    /// Whether clients should wait for the logins that are still to be tried.
    pub(super) fn is_worth_waiting(&self, now: Instant) -> bool {
        let is_known = self.proven.iter().any(|key| self.is_used(key));
        is_known || (self.may_try(now) && self.next(now).is_some())
    }

    /// Whether a login should keep reading, or be tried. A login without clients keeps reading until another proven login
    /// has clients.
    pub(super) fn needs(&self, login: &UpstreamLogin) -> bool {
        let key = LoginKey(login.clone());
        self.clients == 0 || self.is_used(&key) || !self.proven.iter().any(|key| self.is_used(key))
    }

    /// Called when a login may read the log.
    pub(super) fn handle_accepted(&mut self, login: &UpstreamLogin) {
        self.tried(login, None);
        self.proven.truncate(MAX_PROVEN - 1);
        self.proven.push_front(LoginKey(login.clone()));
    }

    /// Called when the upstream has refused the log to a login.
    pub(super) fn handle_refused(&mut self, login: &UpstreamLogin, now: Instant) {
        if self.logins.get(&LoginKey(login.clone())).is_some_and(|known| known.refused.is_some()) {
            self.retried = Some(now);
        }
        self.tried(login, Some(now));
        if self.refusals.len() == MAX_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(now);
    }

    fn tried(&mut self, login: &UpstreamLogin, refused: Option<Instant>) {
        let key = LoginKey(login.clone());
        self.proven.retain(|proven| *proven != key);
        if let Some(known) = self.logins.get_mut(&key) {
            known.arrival.take().and_then(|arrival| self.untried.remove(&arrival));
            known.refused = refused;
        } else if refused.is_some() {
            // The login has no clients any more, but may have some again.
            self.logins.insert(key, LoginUse { refused, ..LoginUse::default() });
        }
    }

    /// When a refused login has to be tried again.
    pub(super) fn next_retry(&self, now: Instant) -> Option<Instant> {
        let used = self.logins.values().filter(|known| known.clients > 0);
        let refused = used.filter_map(|known| known.refused).min()?;
        let first = if self.may_try(now) { None } else { self.refusals.front().copied() };
        Some(first.map_or(refused, |first| first.max(refused)) + REFUSAL_TTL)
    }

    fn is_used(&self, key: &LoginKey) -> bool {
        self.logins.get(key).is_some_and(|known| known.clients > 0)
    }

    fn may_try(&self, now: Instant) -> bool {
        self.refusals.len() < MAX_REFUSALS || self.refusals.front().is_none_or(|at| *at + REFUSAL_TTL <= now)
    }
}

impl LoginUse {
    /// Whether it was not refused recently.
    fn may_retry(&self, now: Instant) -> bool {
        self.refused.is_none_or(|at| at + REFUSAL_TTL <= now)
    }
}
