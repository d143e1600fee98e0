//! Errors of tokens, key sets and services. The texts are for operators, and quote no secret.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why a token is refused.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum TokenError {
    /// Three parts of base64url with dots between them are expected (RFC 7519, section 3).
    #[error("not a JSON Web Token")]
    NotAToken,
    /// Longer than any that an authorization server makes.
    #[error("token too long")]
    TooLong,
    /// The algorithm is unknown, `none`, or not supported.
    #[error("token algorithm not allowed")]
    Algorithm,
    /// The header demands an extension (RFC 7515, section 4.1.11).
    #[error("unsupported critical header in token (crit)")]
    Critical,
    /// `kid` is not a string (RFC 7515, section 4.1.4).
    #[error("token kid is not a string")]
    KeyId,
    /// No key has the identifier in the token's header, or none matches a token without one.
    #[error("no key for the token's kid and algorithm")]
    UnknownKey,
    /// The signature does not match the key.
    #[error("invalid signature")]
    Signature,
    /// The claims are not a JSON object.
    #[error("claims are not a JSON object")]
    Claims,
    /// `aud` does not name this resource server.
    #[error("the token is not for this resource server (aud)")]
    Audience,
    /// `exp` is missing, or not a number.
    #[error("the token has no valid exp claim")]
    NoExpiry,
    /// `exp` is in the past.
    #[error("the token has expired at timestamp {expired_at} (validated at {now})")]
    Expired {
        /// Seconds since 1970.
        expired_at: u64,
        /// Seconds since 1970.
        now: u64,
    },
    /// `nbf` is in the future, or not a number.
    #[error("the token is not valid yet (nbf)")]
    NotYetValid,
    /// The number or size of the scopes exceeds the limit.
    #[error("the token has too many scopes")]
    TooManyScopes,
    /// The user's name is empty, or longer than 255 bytes.
    #[error("the user's name in the token is empty or too long")]
    UserName,
    /// A renewed token names another user.
    #[error("the new token is for another user")]
    OtherUser,
}

/// The reason why keys cannot be obtained.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
    /// Not JSON.
    #[error("not a JSON Web Key Set: {0}")]
    Json(#[source] serde_json::Error),
    /// The member `keys` is missing, or not a list (RFC 7517, section 5).
    #[error("not a JSON Web Key Set: it has no list of keys")]
    NoKeys,
    /// The set has more keys than allowed.
    #[error("the JSON Web Key Set has more than {0} keys")]
    TooManyKeys(usize),
    /// The set has more bytes than allowed.
    #[error("the JSON Web Key Set has more than {0} bytes")]
    TooLarge(usize),
    /// None of the keys is for verifying signatures with a supported algorithm.
    #[error("the JSON Web Key Set has no usable verification key")]
    NoUsableKey,
    /// The service with the keys cannot be queried.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The reason why a request to a service fails.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The connection failed.
    #[error("{0}")]
    Connection(#[source] io::Error),
    /// The response is not HTTP, or incomplete.
    #[error("{0}")]
    Http(#[source] hyper::Error),
    /// The request timed out.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The status is not an accepted one.
    #[error("status {0}")]
    Status(u16),
    /// The response is longer than allowed.
    #[error("response has more than {0} bytes")]
    TooLong(usize),
    /// The request cannot be encoded.
    #[error("{0}")]
    Request(#[source] hyper::http::Error),
    /// The CA certificates cannot be read.
    #[error("{0}")]
    Tls(#[source] transport::tls::TlsError),
}

/// The reason why an HTTP auth backend refuses a user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpAuthBackendError {
    /// It refuses.
    #[error("{0}")]
    Denied(String),
    /// The answer is neither `allow` nor `deny`.
    #[error("response is neither allow nor deny")]
    NoAnswer,
    /// Too many requests are in progress.
    #[error("too many pending requests")]
    Busy,
    /// The service cannot be queried.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl HttpAuthBackendError {
    /// A refusal, with the auth backend's reason if it gave one.
    pub(crate) fn denied(why: Option<String>) -> Self {
        Self::Denied(why.map_or_else(|| "denied".to_owned(), |why| format!("denied: {why}")))
    }
}
