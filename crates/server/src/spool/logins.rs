//! Logins that the upstream has accepted, remembered over restarts for the time in which it cannot be asked.
//!
//! A file of the spool's folder has one line for each user and virtual host: `1`, the time in milliseconds since 1970, the
//! number of iterations, and in Base64 the salt, the hash, the virtual host and the user. The hash is PBKDF2 with
//! HMAC-SHA-512 (RFC 8018) over mechanism, authorization identity and secret; it takes about a tenth of a second, once for each
//! login that is remembered, and once for each that is compared after a restart.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amqp::{Credentials, Mechanism};
use aws_lc_rs::{pbkdf2, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use broker::Timestamp;
use parking_lot::Mutex;

/// OWASP's figure for PBKDF2 with HMAC-SHA-512 (Password Storage Cheat Sheet, 2023).
const ITERATIONS: NonZeroU32 = NonZeroU32::new(210_000).unwrap();

/// More than anybody would have set, and a bound on the work that a line of the file can ask for.
const MAX_ITERATIONS: u32 = 10_000_000;

const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// The file is written again for a mere change of the time once this share of the limit has passed.
const REWRITTEN_AFTER: u32 = 16;

/// The remembered logins of a spool.
pub(super) struct RememberedLogins {
    /// Where they outlive the process; `None` for nowhere.
    path: Option<PathBuf>,
    /// How long an acceptance counts; zero for not at all.
    max_age: Duration,
    entries: Mutex<Vec<RememberedLogin>>,
    /// Held while the file is written, so that an older state does not replace a newer one.
    writing: Mutex<()>,
    /// Held while a hash is compared: clients with wrong passwords keep one thread busy at most.
    comparing: tokio::sync::Mutex<()>,
    /// Clients that were let in without asking the upstream.
    let_in: AtomicU64,
}

/// The credentials of a user in a virtual host that the upstream has accepted last.
#[derive(Clone)]
struct RememberedLogin {
    vhost: Box<str>,
    user: Box<str>,
    /// When it has accepted them, in milliseconds since 1970.
    accepted_at: u64,
    /// The same in the file.
    written_at: u64,
    /// `None` while it is being computed.
    hash: Option<SecretHash>,
    /// The credentials themselves, once a client has presented them to this process.
    known: Option<Arc<Credentials>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SecretHash {
    iterations: NonZeroU32,
    salt: [u8; SALT_BYTES],
    hash: [u8; HASH_BYTES],
}

impl SecretHash {
    /// Takes a tenth of a second. `None` if the system has no random bytes.
    fn new(credentials: &Credentials) -> Option<Self> {
        let (mut salt, mut hash) = ([0; SALT_BYTES], [0; HASH_BYTES]);
        rand::fill(&mut salt).ok()?;
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, ITERATIONS, &salt, &proof(credentials), &mut hash);
        Some(Self { iterations: ITERATIONS, salt, hash })
    }

    /// Takes as long, wherever the first difference is.
    fn matches(&self, credentials: &Credentials) -> bool {
        let Self { iterations, salt, hash } = self;
        pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA512, *iterations, salt, &proof(credentials), hash).is_ok()
    }
}

/// The bytes that a client has to present again: no part can pass for another.
fn proof(credentials: &Credentials) -> Vec<u8> {
    let other = credentials.authorize_as.as_deref().unwrap_or_default();
    let mut proof = Vec::new();
    for part in [credentials.mechanism.name().as_bytes(), other.as_bytes()] {
        proof.extend_from_slice(&(part.len() as u64).to_be_bytes());
        proof.extend_from_slice(part);
    }
    proof.extend_from_slice(credentials.secret.expose());
    proof
}

impl RememberedLogins {
    /// Reads the file. One that cannot be read is as good as none: clients then have to wait for the upstream.
    pub(super) fn open(path: Option<PathBuf>, max_age: Duration) -> Self {
        let mut entries = Vec::new();
        if let Some(path) = path.as_ref().filter(|_| !max_age.is_zero()) {
            match std::fs::read_to_string(path) {
                Ok(text) => entries.extend(text.lines().filter_map(RememberedLogin::parse)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "accepted logins are forgotten"),
            }
        }
        Self {
            path,
            max_age,
            entries: Mutex::new(entries),
            writing: Mutex::default(),
            comparing: tokio::sync::Mutex::default(),
            let_in: AtomicU64::new(0),
        }
    }

    /// Whether a client may be let in without the upstream, if its credentials are right.
    pub(super) fn has_any(&self, now: Timestamp) -> bool {
        self.entries.lock().iter().any(|entry| self.is_fresh(entry, now))
    }

    pub(super) fn let_in(&self) -> u64 {
        self.let_in.load(Ordering::Relaxed)
    }

    fn is_fresh(&self, entry: &RememberedLogin, now: Timestamp) -> bool {
        now.0.saturating_sub(entry.accepted_at) <= self.max_age.as_millis() as u64 && !self.max_age.is_zero()
    }

    /// The upstream has accepted a client's credentials. To be called within a runtime.
    pub(super) fn accepted(self: &Arc<Self>, vhost: &str, credentials: &Arc<Credentials>, now: Timestamp) {
        let can_return = matches!(credentials.mechanism, Mechanism::Plain | Mechanism::AmqPlain);
        if self.max_age.is_zero() || !can_return {
            return;
        }
        let mut entries = self.entries.lock();
        let needs_hash = match find(&mut entries, vhost, &credentials.username) {
            Some(entry) if entry.is_of(credentials) => {
                entry.accepted_at = entry.accepted_at.max(now.0);
                let due = (self.max_age / REWRITTEN_AFTER).as_millis() as u64;
                if entry.hash.is_none() || now.0.saturating_sub(entry.written_at) < due {
                    return;
                }
                false
            }
            // Other credentials, or the first ones since the start.
            Some(entry) => {
                *entry = RememberedLogin::new(vhost, credentials, now);
                true
            }
            None => {
                entries.push(RememberedLogin::new(vhost, credentials, now));
                true
            }
        };
        drop(entries);
        let (logins, vhost, credentials) =
            (Arc::clone(self), Box::<str>::from(vhost), Arc::clone(credentials));
        tokio::task::spawn_blocking(move || {
            if needs_hash {
                logins.add_hash(&vhost, &credentials);
            }
            logins.write();
        });
    }

    fn add_hash(&self, vhost: &str, credentials: &Arc<Credentials>) {
        let hash = SecretHash::new(credentials);
        if let Some(entry) = find(&mut self.entries.lock(), vhost, &credentials.username)
            // Another secret may have been accepted meanwhile.
            && entry.is_of(credentials)
        {
            entry.hash = hash;
        }
    }

    /// Whether the upstream has accepted these credentials lately, for this virtual host or for any.
    pub(super) async fn vouch_for(
        self: &Arc<Self>,
        vhost: Option<&str>,
        credentials: &Arc<Credentials>,
        now: Timestamp,
    ) -> bool {
        let is_candidate =
            |entry: &RememberedLogin| entry.concerns(vhost, credentials) && self.is_fresh(entry, now);
        let candidates: Vec<_> =
            self.entries.lock().iter().filter(|entry| is_candidate(entry)).cloned().collect();
        if candidates.iter().any(|entry| entry.is_of(credentials)) {
            return true;
        }
        for entry in candidates {
            // One with known credentials has been compared.
            let Some(hash) = entry.hash.filter(|_| entry.known.is_none()) else { continue };
            let _one = self.comparing.lock().await;
            let presented = Arc::clone(credentials);
            let compared = tokio::task::spawn_blocking(move || hash.matches(&presented)).await;
            if compared.is_ok_and(|is_same| is_same) {
                if let Some(found) = find(&mut self.entries.lock(), &entry.vhost, &entry.user)
                    && found.hash == Some(hash)
                {
                    found.known = Some(Arc::clone(credentials));
                }
                return true;
            }
        }
        false
    }

    /// A client is let in.
    pub(super) fn lets_in(&self) {
        self.let_in.fetch_add(1, Ordering::Relaxed);
    }

    /// The upstream has refused these credentials, for one virtual host or for all: they count no longer. To be called within a
    /// runtime.
    pub(super) fn refused(self: &Arc<Self>, vhost: Option<&str>, credentials: &Arc<Credentials>) {
        let is_known = self.entries.lock().iter().any(|entry| entry.concerns(vhost, credentials));
        if !is_known {
            return;
        }
        let (logins, vhost, credentials) = (Arc::clone(self), vhost.map(Box::from), Arc::clone(credentials));
        tokio::spawn(async move {
            let vhost: Option<Box<str>> = vhost;
            // Others' wrong passwords say nothing against the right one: each entry is compared.
            let entries = logins.entries.lock().clone();
            let concerned =
                entries.into_iter().filter(|entry| entry.concerns(vhost.as_deref(), &credentials));
            for RememberedLogin { vhost, accepted_at, .. } in concerned {
                if logins.vouch_for(Some(&vhost), &credentials, Timestamp(accepted_at)).await {
                    logins.forget(&vhost, &credentials);
                }
            }
        });
    }

    fn forget(self: &Arc<Self>, vhost: &str, credentials: &Credentials) {
        let is_it = |entry: &RememberedLogin| {
            *entry.vhost == *vhost && *entry.user == *credentials.username && entry.is_of(credentials)
        };
        self.entries.lock().retain(|entry| !is_it(entry));
        let logins = Arc::clone(self);
        tokio::task::spawn_blocking(move || logins.write());
    }

    /// Writes the file anew. To be called where waiting for the disk is allowed.
    fn write(&self) {
        let Some(path) = &self.path else { return };
        let _one = self.writing.lock();
        let mut text = String::new();
        for entry in self.entries.lock().iter_mut().filter(|entry| entry.hash.is_some()) {
            entry.written_at = entry.accepted_at;
            entry.append_to(&mut text);
        }
        if let Err(error) = replace(path, &text) {
            tracing::warn!(path = %path.display(), %error, "accepted logins are not remembered over a restart");
        }
    }
}

fn find<'a>(entries: &'a mut [RememberedLogin], vhost: &str, user: &str) -> Option<&'a mut RememberedLogin> {
    entries.iter_mut().find(|entry| *entry.vhost == *vhost && *entry.user == *user)
}

impl RememberedLogin {
    fn new(vhost: &str, credentials: &Arc<Credentials>, now: Timestamp) -> Self {
        Self {
            vhost: vhost.into(),
            user: credentials.username.as_str().into(),
            accepted_at: now.0,
            written_at: 0,
            hash: None,
            known: Some(Arc::clone(credentials)),
        }
    }

    /// Whether it is of this user, in this virtual host or in any.
    fn concerns(&self, vhost: Option<&str>, credentials: &Credentials) -> bool {
        *self.user == *credentials.username && vhost.is_none_or(|vhost| *self.vhost == *vhost)
    }

    fn is_of(&self, credentials: &Credentials) -> bool {
        self.known.as_ref().is_some_and(|known| **known == *credentials)
    }

    /// Appends its line; nothing before there is a hash.
    fn append_to(&self, out: &mut String) {
        let Some(SecretHash { iterations, salt, hash }) = self.hash else { return };
        let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
        let (salt, hash) = (base64(&salt), base64(&hash));
        let (vhost, user) = (base64(self.vhost.as_bytes()), base64(self.user.as_bytes()));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "1 {} {iterations} {salt} {hash} {vhost} {user}", self.accepted_at);
    }

    /// Reads a line; one of another release, or a damaged one, is as good as none.
    fn parse(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.split(' ').collect();
        let ["1", accepted_at, iterations, salt, hash, vhost, user] = parts[..] else { return None };
        let bytes = |text: &str| STANDARD.decode(text).ok();
        let name = |text: &str| Some(String::from_utf8(bytes(text)?).ok()?.into_boxed_str());
        let accepted_at = accepted_at.parse().ok()?;
        let iterations =
            iterations.parse().ok().filter(|count: &NonZeroU32| count.get() <= MAX_ITERATIONS)?;
        let (salt, hash) = (bytes(salt)?.try_into().ok()?, bytes(hash)?.try_into().ok()?);
        let hash = Some(SecretHash { iterations, salt, hash });
        let (vhost, user) = (name(vhost)?, name(user)?);
        Some(Self { vhost, user, accepted_at, written_at: accepted_at, hash, known: None })
    }
}

/// Replaces a file that nobody else may read, so that a crash leaves the old one or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests;
