//! Stored passwords, in RabbitMQ's format (RabbitMQ, "Credentials and Passwords"): four bytes of salt, then
//! the digest of salt and password; in base64 in files.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

/// A salted digest of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    algorithm: Algorithm,
    salt: [u8; SALT_LEN],
    digest: Box<[u8]>,
}

/// A stored hash that cannot be used.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub(crate) enum PasswordHashError {
    /// `hashing_algorithm` is none that comes with RabbitMQ.
    #[error(
        "hashing_algorithm '{0}' is none of rabbit_password_hashing_sha256, rabbit_password_hashing_sha512 and \
         rabbit_password_hashing_md5"
    )]
    Algorithm(String),
    /// `password_hash` is not base64.
    #[error("password_hash is not base64: {0}")]
    Base64(#[source] base64::DecodeError),
    /// The length is not that of salt and digest.
    #[error("password_hash has {found} bytes, not the {expected} of salt and digest")]
    Length {
        /// Bytes in `password_hash`.
        found: usize,
        /// Bytes of salt and digest, by the algorithm.
        expected: usize,
    },
}

/// The digests that come with RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
    /// The algorithm of RabbitMQ before 3.6, whose users keep it until they change their passwords. It is broken: no new
    /// password uses it.
    Md5,
}

impl PasswordHash {
    /// Computes the digest of a password, with new salt.
    pub fn new(password: &[u8]) -> Self {
        // Seeded from the operating system; a salt has to differ, and need not be secret.
        let salt = (RandomState::new().hash_one(0) as u32).to_le_bytes();
        Self { algorithm: Algorithm::Sha256, salt, digest: Algorithm::Sha256.digest(&salt, password) }
    }

    /// Parses `password_hash` and `hashing_algorithm` of RabbitMQ's definitions; without an algorithm it is
    /// SHA-256.
    ///
    /// # Errors
    /// The hash or the algorithm is invalid.
    pub(crate) fn parse(base64: &str, algorithm: Option<&str>) -> Result<Self, PasswordHashError> {
        let algorithm = match algorithm {
            None | Some("rabbit_password_hashing_sha256") => Algorithm::Sha256,
            Some("rabbit_password_hashing_sha512") => Algorithm::Sha512,
            Some("rabbit_password_hashing_md5") => Algorithm::Md5,
            Some(other) => return Err(PasswordHashError::Algorithm(other.to_owned())),
        };
        let bytes = STANDARD.decode(base64).map_err(PasswordHashError::Base64)?;
        match bytes.split_first_chunk::<SALT_LEN>() {
            Some((salt, digest)) if digest.len() == algorithm.digest_len() => {
                Ok(Self { algorithm, salt: *salt, digest: digest.into() })
            }
            _ => Err(PasswordHashError::Length {
                found: bytes.len(),
                expected: SALT_LEN + algorithm.digest_len(),
            }),
        }
    }

    /// `password_hash` and `hashing_algorithm` of RabbitMQ's definitions.
    pub fn write(&self) -> (String, &'static str) {
        let bytes = [&self.salt, &*self.digest].concat();
        let algorithm = match self.algorithm {
            Algorithm::Sha256 => "rabbit_password_hashing_sha256",
            Algorithm::Sha512 => "rabbit_password_hashing_sha512",
            Algorithm::Md5 => "rabbit_password_hashing_md5",
        };
        (STANDARD.encode(bytes), algorithm)
    }

    /// Whether this is the password, in constant time.
    pub(crate) fn matches(&self, password: &[u8]) -> bool {
        self.algorithm.digest(&self.salt, password).ct_eq(&self.digest).into()
    }

    /// Does the work of [`PasswordHash::matches`] for a user that does not exist, so that its time does not
    /// reveal that.
    pub(super) fn matches_nobody(password: &[u8]) {
        let none = Self {
            algorithm: Algorithm::Sha256,
            salt: [0; SALT_LEN],
            digest: vec![0; Algorithm::Sha256.digest_len()].into(),
        };
        std::hint::black_box(none.matches(password));
    }
}

impl Algorithm {
    fn digest(self, salt: &[u8], password: &[u8]) -> Box<[u8]> {
        match self {
            Self::Sha256 => {
                Sha256::new().chain_update(salt).chain_update(password).finalize().as_slice().into()
            }
            Self::Sha512 => {
                Sha512::new().chain_update(salt).chain_update(password).finalize().as_slice().into()
            }
            Self::Md5 => Md5::new().chain_update(salt).chain_update(password).finalize().as_slice().into(),
        }
    }

    fn digest_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
            Self::Md5 => 16,
        }
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// Bytes of salt in front of the digest.
const SALT_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// From RabbitMQ's documentation: the password `test12` with the salt 908DC60A.
    const DOCUMENTED: &str = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";

    #[test]
    fn the_example_of_rabbitmqs_documentation_is_understood() {
        for algorithm in [None, Some("rabbit_password_hashing_sha256")] {
            let hash = PasswordHash::parse(DOCUMENTED, algorithm).unwrap();
            assert!(hash.matches(b"test12"));
            assert!(!hash.matches(b"test1"));
        }
    }

    #[test]
    fn sha_512_is_understood() {
        let digest = Algorithm::Sha512.digest(b"salt", b"secret");
        let text = STANDARD.encode([b"salt", &*digest].concat());
        let hash = PasswordHash::parse(&text, Some("rabbit_password_hashing_sha512")).unwrap();
        assert!(hash.matches(b"secret"));
        assert!(PasswordHash::parse(&text, None).is_err(), "as long as SHA-256 it is not");
    }

    /// RabbitMQ 4.3.6 takes this hash for the password `pw`.
    #[test]
    fn md5_of_an_old_rabbitmq_is_understood() {
        let (text, algorithm) = ("YWJjZODzy6NRiTHUYpNJdsHFvNQ=", "rabbit_password_hashing_md5");
        let hash = PasswordHash::parse(text, Some(algorithm)).unwrap();
        assert!(hash.matches(b"pw") && !hash.matches(b"wp"));
        assert_eq!(hash.write(), (text.to_owned(), algorithm));
    }

    #[test]
    fn one_password_has_many_hashes() {
        let (one, other) = (PasswordHash::new(b"guest"), PasswordHash::new(b"guest"));
        assert!(one.matches(b"guest") && other.matches(b"guest"));
        assert_ne!(one.salt, other.salt);
    }

    #[test]
    fn malformed_password_hashes_are_refused_with_the_reason() {
        let refused = |hash, algorithm| PasswordHash::parse(hash, algorithm).unwrap_err().to_string();
        assert!(refused("!", None).starts_with("password_hash is not base64"));
        assert_eq!(refused("AAAA", None), "password_hash has 3 bytes, not the 36 of salt and digest");
        assert!(refused(DOCUMENTED, Some("rabbit_password_hashing_sha1")).contains("_sha1' is none of"));
    }

    #[test]
    fn debug_output_holds_no_digest() {
        assert_eq!(format!("{:?}", PasswordHash::new(b"x")), "PasswordHash { algorithm: Sha256, .. }");
    }
}
