//! Logins that the upstream has accepted, remembered over restarts for times when it cannot be asked.
//!
//! A user name and a password are one identity, in whichever mechanism. In memory they are recognised by a
//! [`Fingerprint`]. On disk there is a slow hash, PBKDF2 with HMAC-SHA-512 (RFC 8018), which takes about a tenth of a
//! second: once per remembered secret, and once per secret that has to be compared with the file's after a restart.
//!
//! The work is bounded. Slow hashes are computed one at a time. Few passwords wait to be compared; further ones are
//! treated as unknown. A password that did not match is not compared again for a while. Users without remembered logins
//! cost nothing.

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

/// If only the time of an acceptance changes, the file is written once this fraction of the limit has passed.
const REWRITTEN_AFTER: u32 = 16;

/// The maximum of passwords that are being compared or wait for it: clients would not wait for more than about a second.
const MAX_COMPARISONS: usize = 16;
/// The same limit for one user, so that wrong passwords for one user do not block the others.
const MAX_COMPARISONS_OF_USER: usize = 4;

/// How long a password that did not match is not compared again.
const MISMATCH_TTL: Duration = Duration::from_secs(60);
/// The maximum of remembered mismatches; the oldest are forgotten first.
const MAX_MISMATCHES: usize = 1024;

/// The pause after a slow hash that no client waits for, as a multiple of its duration: tokens that change all the time
/// must not keep a processor busy.
const HASHING_PAUSE: u32 = 3;

/// The remembered logins of a spool.
pub(super) struct RememberedLogins {
    /// The file; `None` to remember logins in memory only.
    path: Option<PathBuf>,
    /// How long an acceptance is valid; zero to remember nothing.
    max_age: Duration,
    hasher: Hasher,
    state: Mutex<LoginState>,
    /// Locked during a write of the file, so that an older state does not replace a newer one.
    writing: Mutex<()>,
}

#[derive(Default)]
struct LoginState {
    /// By user name.
    users: HashMap<Box<str>, UserLogins>,
    mismatches: VecDeque<(Fingerprint, Instant)>,
    /// Passwords that are being compared, each shared by all clients that present it.
    comparisons: HashMap<Fingerprint, Comparison>,
    /// Number of the upstream's answers so far: a late refusal must not undo a later acceptance.
    answers: u64,
    /// Whether the file has to be written.
    is_dirty: bool,
    /// Whether a task is computing hashes and writing the file.
    is_working: bool,
}

struct Comparison {
    user: Box<str>,
    /// Dangling once no client waits for it.
    outcome: Weak<OnceCell<bool>>,
}

impl RememberedLogins {
    /// Reads the file. If it cannot be read, nothing is remembered, and clients wait for the upstream.
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

    /// The oldest time of a valid acceptance.
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

    /// Records that the upstream has accepted a client's credentials. Must be called within a runtime.
    pub(super) fn accepted(self: &Arc<Self>, vhost: &str, credentials: &Arc<Credentials>, now: Timestamp) {
        if self.max_age.is_zero() || !can_be_remembered(credentials) {
            return;
        }
        let fingerprint = self.fingerprint(credentials);
        let mut state = self.state.lock();
        let answer = state.next_answer();
        state.mismatches.retain(|(other, _)| *other != fingerprint);
        // Parameters of an older release are replaced.
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

    /// Records that the upstream has refused these credentials, for one virtual host or for all: they are not valid any
    /// more. Must be called within a runtime.
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
        // It may be known by its slow hash only.
        let must_be_hashed = state
            .users
            .get(&*credentials.username)
            .is_some_and(|user| user.compare(fingerprint, vhost, 0) == Known::MustBeHashed);
        if vhost.is_none() && !is_mismatch {
            // It is treated as a mismatch at once, since there may be no capacity to compare it, for as long as its
            // acceptance would be valid.
            state.add_mismatch(fingerprint, self.max_age);
        }
        self.work(state);
        if !must_be_hashed || is_mismatch {
            return;
        }
        let (logins, vhost, credentials) =
            (Arc::clone(self), vhost.map(Box::<str>::from), Arc::clone(credentials));
        tokio::spawn(async move {
            // A wrong password of another client must not invalidate the correct one.
            if logins.matches(fingerprint, &credentials).await {
                let mut state = logins.state.lock();
                state.forget(&credentials.username, fingerprint, vhost.as_deref(), answer);
                logins.work(state);
            }
        });
    }

    /// Whether the upstream has accepted these credentials recently enough, for this virtual host or for any.
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

    /// Compares credentials as far as possible without a slow hash. Returns the fingerprint as well, if it was computed.
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
        // It was refused recently, or did not match.
        if state.is_mismatch(fingerprint) {
            return (Known::No, None);
        }
        (user.compare(fingerprint, vhost, since), Some(fingerprint))
    }

    /// Compares credentials with their user's slow hashes. Returns false if too many comparisons wait.
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

    /// Forgets expired logins, also in the file. Called periodically, within a runtime.
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

    /// Starts the task that computes hashes and writes the file, if there is something to do.
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
                // A failed write is repeated with the next change.
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
        // The secret may have been refused meanwhile.
        if let Some(user) = state.users.get_mut(user).filter(|user| user.parameters == *parameters)
            && let Some(hash) = hash
        {
            user.record_hash(*fingerprint, hash);
            state.is_dirty = true;
        }
    }

    /// Writes the file; returns whether that succeeded. Blocks on the disk.
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

    /// The comparison of a password, shared with one that is in progress; `None` if too many wait.
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

    /// A password whose slow hash has to be computed.
    fn unhashed(&self) -> Option<Unhashed> {
        self.users.iter().find_map(|(name, user)| user.unhashed(name))
    }
}
