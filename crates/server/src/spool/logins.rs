//! Logins that the upstream has accepted, remembered over restarts for the time in which it cannot be asked.
//!
//! A user name and a password are one identity, whichever mechanism carries them. In this process they are recognised by a
//! [`Fingerprint`]; on disk is a slow hash, PBKDF2 with HMAC-SHA-512 (RFC 8018), which takes about a tenth of a second: once
//! for each secret that is remembered, and once for each that is compared with those of the file after a restart.
//!
//! The work is bounded. Slow hashes are computed one at a time. Of passwords that have to be compared, few wait for their turn;
//! more are answered as if they were unknown. One that did not match is not compared again for a while. Users of whom nothing
//! is remembered cost nothing.

mod file;
mod hashing;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use amqp::Credentials;
use broker::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OnceCell;

pub(super) use self::hashing::Fingerprint;
use self::hashing::{HashParameters, Hasher, can_be_remembered};
use self::record::{Known, Unhashed, UserLogins};
use crate::private_file::{remove_private_file, replace_private_file};

/// The file is written again for a mere change of the time once this share of the limit has passed.
const REWRITTEN_AFTER: u32 = 16;

/// Passwords that are compared, or wait for that, at a time: more than a second would be longer than their clients wait.
const MAX_COMPARISONS: usize = 16;
/// The same limit for one user, so that wrong passwords for one user do not block the others.
const MAX_COMPARISONS_OF_USER: usize = 4;

/// How long a password that did not match is not compared again.
const MISMATCH_TTL: Duration = Duration::from_secs(60);
/// How many of these are remembered, the last ones.
const MAX_MISMATCHES: usize = 1024;

/// The pause after a slow hash that no client waits for, as a multiple of its time: tokens that change all the time must not
/// keep a processor busy.
const HASHING_PAUSE: u32 = 3;

/// The remembered logins of a spool.
pub(super) struct RememberedLogins {
    /// Where they outlive the process; `None` for nowhere.
    path: Option<PathBuf>,
    /// How long an acceptance counts; zero for not at all.
    max_age: Duration,
    hasher: Hasher,
    state: Mutex<LoginState>,
    /// Locked while the file is written, so that an older state does not replace a newer one.
    writing: Mutex<()>,
}

#[derive(Default)]
struct LoginState {
    /// By name.
    users: HashMap<Box<str>, UserLogins>,
    mismatches: VecDeque<(Fingerprint, Instant)>,
    /// Passwords that are being compared, each by all clients that present it.
    comparisons: HashMap<Fingerprint, Comparison>,
    /// Number of answers of the upstream so far: a refusal that takes effect late must not undo a later acceptance.
    answers: u64,
    /// Set when the file has to be written; cleared when it is.
    is_dirty: bool,
    /// Set while a task computes hashes and writes the file.
    is_working: bool,
}

struct Comparison {
    user: Box<str>,
    /// Gone once no client waits for it.
    outcome: Weak<OnceCell<bool>>,
}

impl RememberedLogins {
    /// Reads the file. One that cannot be read is as good as none: clients then have to wait for the upstream.
    pub(super) fn open(path: Option<PathBuf>, max_age: Duration, now: Timestamp) -> Self {
        let mut state = LoginState::default();
        if let Some(path) = &path {
            let outcome = if max_age.is_zero() {
                remove_private_file(path).map(|()| Vec::new())
            } else {
                file::read(path)
            };
            let lines = outcome.unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "cannot read login cache");
                Vec::new()
            });
            for line in lines {
                let user = state.users.entry(line.user.clone());
                user.or_insert_with(|| UserLogins::new(line.parameters)).add_line(line, now.0);
            }
        }
        let writing = Mutex::default();
        let logins = Self { path, max_age, hasher: Hasher::new(), state: Mutex::new(state), writing };
        if logins.forget_expired(now) {
            logins.write();
        }
        logins
    }

    /// The time from which on an acceptance counts.
    fn since(&self, now: Timestamp) -> u64 {
        now.0.saturating_sub(self.max_age.as_millis() as u64)
    }

    /// Whether any login is remembered.
    pub(super) fn has_any(&self, now: Timestamp) -> bool {
        let since = self.since(now);
        self.state.lock().users.values().any(|user| user.has_any(None, since))
    }

    /// Whether any login of this user is remembered.
    pub(super) fn has_user(&self, user: &str, now: Timestamp) -> bool {
        let since = self.since(now);
        self.state.lock().users.get(user).is_some_and(|user| user.has_any(None, since))
    }

    pub(super) fn fingerprint(&self, credentials: &Credentials) -> Fingerprint {
        self.hasher.fingerprint(credentials)
    }

    /// The upstream has accepted a client's credentials. To be called within a runtime.
    pub(super) fn accepted(self: &Arc<Self>, vhost: &str, credentials: &Arc<Credentials>, now: Timestamp) {
        if self.max_age.is_zero() || !can_be_remembered(credentials) {
            return;
        }
        let fingerprint = self.fingerprint(credentials);
        let mut state = self.state.lock();
        let answer = state.next_answer();
        state.mismatches.retain(|(other, _)| *other != fingerprint);
        // A user whose parameters are those of an older release gets new ones.
        let is_old = |user: &UserLogins| !user.parameters.are_current();
        if state.users.get(&*credentials.username).is_none_or(is_old) {
            let Some(parameters) = HashParameters::new() else { return };
            state.users.insert(credentials.username.as_str().into(), UserLogins::new(parameters));
        }
        let Some(user) = state.users.get_mut(&*credentials.username) else { return };
        let rewritten_after = (self.max_age / REWRITTEN_AFTER).as_millis() as u64;
        let accepted = (vhost, now.0, answer);
        if user.accepted((fingerprint, credentials), accepted, rewritten_after) {
            state.is_dirty = true;
        }
        self.work(state);
    }

    /// The upstream has refused these credentials, for one virtual host or for all: they count no longer. To be called within a
    /// runtime.
    pub(super) fn refused(self: &Arc<Self>, vhost: Option<&str>, credentials: &Arc<Credentials>) {
        if !can_be_remembered(credentials) {
            return;
        }
        let mut state = self.state.lock();
        let answer = state.next_answer();
        if !state.users.contains_key(&*credentials.username) {
            return;
        }
        let fingerprint = self.fingerprint(credentials);
        let is_mismatch = state.is_mismatch(fingerprint);
        state.forget(&credentials.username, fingerprint, vhost, answer);
        // It may be one of those of which only the slow hash is known.
        let must_be_hashed = state
            .users
            .get(&*credentials.username)
            .is_some_and(|user| user.compare(fingerprint, vhost, 0) == Known::MustBeHashed);
        if vhost.is_none() && !is_mismatch {
            // It counts no longer from now on, whether or not it can be compared.
            // That is so for as long as it could count: there may be no room to compare it.
            state.add_mismatch(fingerprint, self.max_age);
        }
        self.work(state);
        if !must_be_hashed || is_mismatch {
            return;
        }
        let (logins, vhost, credentials) =
            (Arc::clone(self), vhost.map(Box::<str>::from), Arc::clone(credentials));
        tokio::spawn(async move {
            // Others' wrong passwords say nothing against the right one.
            if logins.matches(fingerprint, &credentials).await {
                let mut state = logins.state.lock();
                state.forget(&credentials.username, fingerprint, vhost.as_deref(), answer);
                logins.work(state);
            }
        });
    }

    /// Whether the upstream has accepted these credentials lately, for this virtual host or for any.
    pub(super) async fn are_remembered(
        self: &Arc<Self>,
        vhost: Option<&str>,
        credentials: &Arc<Credentials>,
        now: Timestamp,
    ) -> bool {
        match self.compare(vhost, credentials, now) {
            (Known::Fresh, _) => true,
            (Known::MustBeHashed, Some(fingerprint)) => {
                self.matches(fingerprint, credentials).await
                    && self.compare(vhost, credentials, now).0 == Known::Fresh
            }
            _ => false,
        }
    }

    /// Compares credentials as far as that is possible at once; with their fingerprint, if it was needed.
    fn compare(
        &self,
        vhost: Option<&str>,
        credentials: &Credentials,
        now: Timestamp,
    ) -> (Known, Option<Fingerprint>) {
        if self.max_age.is_zero() || !can_be_remembered(credentials) {
            return (Known::No, None);
        }
        let since = self.since(now);
        let state = self.state.lock();
        let user = state.users.get(&*credentials.username).filter(|user| user.has_any(vhost, since));
        let Some(user) = user else { return (Known::No, None) };
        let fingerprint = self.fingerprint(credentials);
        // Refused a moment ago, or compared in vain.
        if state.is_mismatch(fingerprint) {
            return (Known::No, None);
        }
        (user.compare(fingerprint, vhost, since), Some(fingerprint))
    }

    /// Compares credentials with the slow hashes of their user. Returns false without doing so if too many comparisons wait.
    async fn matches(&self, fingerprint: Fingerprint, credentials: &Arc<Credentials>) -> bool {
        let Some(outcome) = self.state.lock().comparison(fingerprint, &credentials.username) else {
            tracing::debug!(user = credentials.username, "too many concurrent logins: offline check skipped");
            return false;
        };
        *outcome.get_or_init(|| self.hash_and_compare(fingerprint, credentials)).await
    }

    async fn hash_and_compare(&self, fingerprint: Fingerprint, credentials: &Arc<Credentials>) -> bool {
        let parameters = self.state.lock().users.get(&*credentials.username).map(|user| user.parameters);
        let Some(parameters) = parameters else { return false };
        let Some(hash) = self.hasher.hash(parameters, credentials).await else { return false };
        let mut state = self.state.lock();
        let user = state.users.get_mut(&*credentials.username);
        let Some(user) = user.filter(|user| user.parameters == parameters) else { return false };
        let is_same = user.record_hash(fingerprint, hash);
        if !is_same {
            state.add_mismatch(fingerprint, MISMATCH_TTL);
        }
        is_same
    }

    /// Forgets logins that count no longer, also in the file. To be called now and then, within a runtime.
    pub(super) fn expire(self: &Arc<Self>, now: Timestamp) {
        self.forget_expired(now);
        self.work(self.state.lock());
    }

    fn forget_expired(&self, now: Timestamp) -> bool {
        let since = self.since(now);
        let mut state = self.state.lock();
        let mut has_changed = false;
        state.users.retain(|_, user| {
            has_changed |= user.forget_before(since);
            !user.is_empty()
        });
        state.is_dirty |= has_changed;
        has_changed
    }

    /// Starts the task that computes hashes and writes the file, if there is work for it.
    fn work(self: &Arc<Self>, mut state: MutexGuard<'_, LoginState>) {
        if state.is_dirty && !state.is_working {
            state.is_working = true;
            drop(state);
            let logins = Arc::clone(self);
            tokio::spawn(async move { logins.hash_and_write().await });
        }
    }

    async fn hash_and_write(self: Arc<Self>) {
        let mut is_written = true;
        loop {
            let unhashed = {
                let mut state = self.state.lock();
                let unhashed = state.unhashed();
                // A write that has failed is tried again with the next change.
                if unhashed.is_none() && !(state.is_dirty && is_written) {
                    state.is_working = false;
                    return;
                }
                unhashed
            };
            let began = Instant::now();
            if let Some(unhashed) = &unhashed {
                self.add_hash(unhashed).await;
            }
            let took = began.elapsed();
            let logins = Arc::clone(&self);
            is_written = tokio::task::spawn_blocking(move || logins.write()).await.unwrap_or(false);
            if unhashed.is_some() {
                tokio::time::sleep(took * HASHING_PAUSE).await;
            }
        }
    }

    async fn add_hash(&self, unhashed: &Unhashed) {
        let Unhashed { user, fingerprint, parameters, credentials } = unhashed;
        let hash = self.hasher.hash(*parameters, credentials).await;
        let mut state = self.state.lock();
        // It may have been refused meanwhile.
        if let Some(user) = state.users.get_mut(user).filter(|user| user.parameters == *parameters)
            && let Some(hash) = hash
        {
            user.record_hash(*fingerprint, hash);
            state.is_dirty = true;
        }
    }

    /// Writes the file again; returns whether that has worked. To be called where waiting for the disk is allowed.
    fn write(&self) -> bool {
        let Some(path) = &self.path else {
            self.state.lock().is_dirty = false;
            return true;
        };
        let _one = self.writing.lock();
        let mut text = String::new();
        {
            let mut state = self.state.lock();
            state.is_dirty = false;
            state.users.iter_mut().for_each(|(name, user)| user.append_to(name, &mut text));
        }
        let Err(error) = replace_private_file(path, text.as_bytes()) else { return true };
        tracing::warn!(path = %path.display(), %error, "cannot write login cache: lost on restart");
        self.state.lock().is_dirty = true;
        false
    }
}

impl LoginState {
    fn next_answer(&mut self) -> u64 {
        self.answers += 1;
        self.answers
    }

    fn is_mismatch(&self, fingerprint: Fingerprint) -> bool {
        let now = transport::now();
        self.mismatches.iter().any(|(other, until)| *other == fingerprint && now < *until)
    }

    fn add_mismatch(&mut self, fingerprint: Fingerprint, holds: Duration) {
        let now = transport::now();
        while self.mismatches.len() >= MAX_MISMATCHES
            || self.mismatches.front().is_some_and(|(_, until)| *until <= now)
        {
            self.mismatches.pop_front();
        }
        self.mismatches.push_back((fingerprint, now + holds));
    }

    fn forget(&mut self, name: &str, fingerprint: Fingerprint, vhost: Option<&str>, answer: u64) {
        let Some(user) = self.users.get_mut(name) else { return };
        self.is_dirty |= user.forget(fingerprint, vhost, answer);
        if user.is_empty() {
            self.users.remove(name);
        }
    }

    /// The comparison of a password, joined to one that is already under way; `None` if too many wait.
    fn comparison(&mut self, fingerprint: Fingerprint, user: &str) -> Option<Arc<OnceCell<bool>>> {
        self.comparisons.retain(|_, comparison| comparison.outcome.strong_count() > 0);
        if let Some(comparison) = self.comparisons.get(&fingerprint) {
            return comparison.outcome.upgrade();
        }
        let of_user = self.comparisons.values().filter(|comparison| *comparison.user == *user).count();
        if self.comparisons.len() >= MAX_COMPARISONS || of_user >= MAX_COMPARISONS_OF_USER {
            return None;
        }
        let outcome = Arc::default();
        self.comparisons
            .insert(fingerprint, Comparison { user: user.into(), outcome: Arc::downgrade(&outcome) });
        Some(outcome)
    }

    /// A password whose slow hash is missing.
    fn unhashed(&self) -> Option<Unhashed> {
        self.users.iter().find_map(|(name, user)| user.unhashed(name))
    }
}
