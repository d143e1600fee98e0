//! The logins of the clients that need a log, and the order in which the upstream is asked to let one of them read it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::upstream::multiplexing::{LoginKey, UpstreamLogin};

/// Time after which a login that was refused is tried again: permissions may have been granted.
pub(super) const REFUSAL_TTL: Duration = Duration::from_secs(60);

/// Logins refused in that time above which clients do not wait for further ones, and none is tried again: where each client has
/// a user of its own, and none has permission, clients are not to wait for each other.
pub(super) const MAX_REFUSALS: usize = 8;

/// Logins that have had the log, and are remembered: there are seldom more users for whom it is meant.
const MAX_PROVEN: usize = 16;

/// Logins at which those that are gone are removed.
const MIN_PRUNED: usize = 1024;

/// The logins of one log. Sans-IO.
#[derive(Default)]
pub(super) struct LogLogins {
    /// Logins with clients, and logins refused recently.
    logins: HashMap<LoginKey, LoginUse>,
    clients: usize,
    /// Logins with clients that have not been tried upstream since they were added, in their order.
    untried: BTreeMap<u64, UpstreamLogin>,
    /// The last number there.
    arrivals: u64,
    /// Logins that have read the log, the last one first, whether they have clients or not.
    proven: VecDeque<LoginKey>,
    /// When the upstream has refused logins, the last few times.
    refusals: VecDeque<Instant>,
    /// When one was refused again.
    retried: Option<Instant>,
    /// Number of `logins` at which those that are gone are removed.
    pruned_at: usize,
}

#[derive(Default)]
struct LoginUse {
    clients: usize,
    /// Its number among those that were not tried.
    arrival: Option<u64>,
    /// When the upstream has refused it the log.
    refused: Option<Instant>,
}

impl LogLogins {
    /// Adds a client. Returns whether it is worth waiting for the upstream's answer to its login, if none has the log.
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

    /// The login to be tried next: first one that has had the log, then each that has come, then those that were refused.
    pub(super) fn next(&self, now: Instant) -> Option<UpstreamLogin> {
        let due = || {
            let all = self.logins.iter().filter(|(_, known)| known.clients > 0 && known.may_retry(now));
            // The login that was refused first; the others are untried.
            all.min_by_key(|(_, known)| (known.refused.is_none(), known.refused))
        };
        let proven = self.proven.iter().find(|key| self.is_used(key)).map(|key| &key.0);
        // However many come that are refused, one is asked about again: it may have got permission.
        let is_due_again = self.retried.is_none_or(|at| at + REFUSAL_TTL <= now);
        let again =
            || due().filter(|(_, known)| is_due_again && known.refused.is_some()).map(|(key, _)| &key.0);
        let untried = || self.untried.first_key_value().map(|(_, login)| login);
        let refused = || due().filter(|_| self.may_try(now)).map(|(key, _)| &key.0);
        proven.or_else(again).or_else(untried).or_else(refused).cloned()
    }

    /// Whether clients are to wait for the logins that are still to be tried.
    pub(super) fn is_worth_waiting(&self, now: Instant) -> bool {
        let is_known = self.proven.iter().any(|key| self.is_used(key));
        is_known || (self.may_try(now) && self.next(now).is_some())
    }

    /// Whether a login is to read on, or be tried. One whose clients have gone does until another one is known to do.
    pub(super) fn needs(&self, login: &UpstreamLogin) -> bool {
        let key = LoginKey(login.clone());
        self.clients == 0 || self.is_used(&key) || !self.proven.iter().any(|key| self.is_used(key))
    }

    /// The upstream has given a login the log.
    pub(super) fn handle_accepted(&mut self, login: &UpstreamLogin) {
        self.tried(login, None);
        self.proven.truncate(MAX_PROVEN - 1);
        self.proven.push_front(LoginKey(login.clone()));
    }

    /// The upstream has refused a login the log.
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
            // Its clients have gone, and may come back.
            self.logins.insert(key, LoginUse { refused, ..LoginUse::default() });
        }
    }

    /// When a login that was refused is to be tried again.
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
    /// Whether it was not refused, or long ago.
    fn may_retry(&self, now: Instant) -> bool {
        self.refused.is_none_or(|at| at + REFUSAL_TTL <= now)
    }
}
