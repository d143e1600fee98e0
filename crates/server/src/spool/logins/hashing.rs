//! Hashes of credentials: a fast keyed one in this process's memory, and a slow salted one for the disk.

use std::num::NonZeroU32;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};

use amqp::{Credentials, Mechanism};
use aws_lc_rs::{constant_time, hmac, pbkdf2, rand};
use tokio::sync::Semaphore;

/// OWASP's recommendation for PBKDF2 with HMAC-SHA-512 (Password Storage Cheat Sheet, 2023).
const ITERATIONS: NonZeroU32 = NonZeroU32::new(210_000).unwrap();

/// A bound on the work that a line of the file can cause, above any sensible setting.
pub(super) const MAX_ITERATIONS: u32 = 10_000_000;

const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Whether these credentials can be recognised when they are presented again: a user name and a password, in either
/// mechanism that carries these. Other mechanisms prove the identity by other means.
pub(super) fn can_be_remembered(credentials: &Credentials) -> bool {
    matches!(credentials.mechanism, Mechanism::Plain | Mechanism::AmqPlain)
        && credentials.authorize_as.is_none()
}

/// Identifies a user name and password in this process's memory. Its key is random, so that the duration of a comparison
/// reveals nothing about a password.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::spool) struct Fingerprint([u8; 32]);

/// The parameters of a slow hash. All secrets of a user share a salt, so that one hash is compared with all of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HashParameters {
    pub(super) iterations: NonZeroU32,
    pub(super) salt: [u8; SALT_BYTES],
}

/// The slow hash of a password, as in the file.
#[derive(Clone, Copy)]
pub(super) struct SecretHash(pub(super) [u8; HASH_BYTES]);

impl SecretHash {
    /// Compares in constant time.
    pub(super) fn is(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl HashParameters {
    /// New parameters with a random salt. `None` if the system has no random bytes.
    pub(super) fn new() -> Option<Self> {
        let mut salt = [0; SALT_BYTES];
        rand::fill(&mut salt).ok()?;
        Some(Self { iterations: ITERATIONS, salt })
    }

    /// Whether they equal new ones, apart from the salt.
    pub(super) fn are_current(&self) -> bool {
        self.iterations == ITERATIONS
    }

    /// Takes a tenth of a second of processor time.
    fn hash(&self, credentials: &Credentials) -> SecretHash {
        let mut hash = [0; HASH_BYTES];
        let secret = credentials.secret.expose();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, self.iterations, &self.salt, secret, &mut hash);
        SecretHash(hash)
    }
}

/// Computes hashes, slow ones one at a time.
pub(super) struct Hasher {
    /// The key of fingerprints.
    key: hmac::Key,
    one_at_a_time: Arc<Semaphore>,
    /// Number of slow hashes so far.
    #[cfg(test)]
    pub(super) runs: Arc<AtomicU64>,
}

impl Hasher {
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        // Without random bytes, neither TLS sessions nor salts could have been created.
        let _ = rand::fill(&mut key);
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            one_at_a_time: Arc::new(Semaphore::new(1)),
            #[cfg(test)]
            runs: Arc::default(),
        }
    }

    /// The same for both mechanisms. The encoding is unambiguous, so that no other user name and password yield the same
    /// input.
    pub(super) fn fingerprint(&self, credentials: &Credentials) -> Fingerprint {
        let user = credentials.username.as_bytes();
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&(user.len() as u64).to_be_bytes());
        context.update(user);
        context.update(credentials.secret.expose());
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(context.sign().as_ref());
        Fingerprint(fingerprint)
    }

    /// The slow hash. It is computed to its end on its thread, even if the caller is dropped, and the next one waits.
    /// `None` if the runtime is shutting down.
    pub(super) async fn hash(
        &self,
        parameters: HashParameters,
        credentials: &Arc<Credentials>,
    ) -> Option<SecretHash> {
        let permit = Arc::clone(&self.one_at_a_time).acquire_owned().await.ok()?;
        #[cfg(test)]
        self.runs.fetch_add(1, Ordering::Relaxed);
        let credentials = Arc::clone(credentials);
        let run = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            parameters.hash(&credentials)
        });
        run.await.ok()
    }
}
