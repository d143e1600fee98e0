//! Why a token, a set of keys or a service cannot be used. The texts are for operators, and quote nothing of a secret.

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
    /// No such algorithm, `none` among them, or one that this server does not verify.
    #[error("token algorithm not allowed")]
    Algorithm,
    /// The header demands an extension (RFC 7515, section 4.1.11).
    #[error("unsupported critical header in token (crit)")]
    Critical,
    /// `kid` is not a string (RFC 7515, section 4.1.4).
    #[error("token kid is not a string")]
    KeyId,
    /// No key has the identifier in the token's header, or none fits a token without one.
    #[error("no key for the token's kid and algorithm")]
    UnknownKey,
    /// The signature is not that of the key.
    #[error("invalid signature")]
    Signature,
    /// The claims are no JSON object.
    #[error("claims are not a JSON object")]
    Claims,
    /// `aud` does not name this resource server.
    #[error("the token is not for this resource server (aud)")]
    Audience,
    /// `exp` is missing, or no number.
    #[error("the token has no valid exp claim")]
    NoExpiry,
    /// `exp` is past.
    #[error("the token has expired at timestamp {expired_at} (validated at {now})")]
    Expired {
        /// Seconds since 1970.
        expired_at: u64,
        /// Seconds since 1970.
        now: u64,
    },
    /// `nbf` is still to come, or no number.
    #[error("the token is not valid yet (nbf)")]
    NotYetValid,
    /// More scopes, or longer ones, than are kept.
    #[error("the token has too many scopes")]
    TooManyScopes,
    /// The user's name is empty, or longer than 255 bytes.
    #[error("the user's name in the token is empty or too long")]
    UserName,
    /// A renewed token is for somebody else.
    #[error("the new token is for another user")]
    OtherUser,
}

/// The reason why keys cannot be had.
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
    /// The member `keys` is missing, or no list (RFC 7517, section 5).
    #[error("not a JSON Web Key Set: it has no list of keys")]
    NoKeys,
    /// More keys than are kept.
    #[error("the JSON Web Key Set has more than {0} keys")]
    TooManyKeys(usize),
    /// More bytes than are read.
    #[error("the JSON Web Key Set has more than {0} bytes")]
    TooLarge(usize),
    /// None of the keys verifies signatures with an algorithm that is accepted.
    #[error("the JSON Web Key Set has no usable verification key")]
    NoUsableKey,
    /// The service that has them cannot be asked.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The reason why a service gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The connection cannot be made, or breaks.
    #[error("{0}")]
    Connection(#[source] io::Error),
    /// No HTTP, or an answer that breaks off.
    #[error("{0}")]
    Http(#[source] hyper::Error),
    /// Too slow.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// Another status than 200.
    #[error("status {0}")]
    Status(u16),
    /// The answer is longer than any that is expected.
    #[error("response has more than {0} bytes")]
    TooLong(usize),
    /// The request cannot be written.
    #[error("{0}")]
    Request(#[source] hyper::http::Error),
    /// The CA certificates cannot be read.
    #[error("{0}")]
    Tls(#[source] transport::tls::TlsError),
}

/// The reason why an HTTP auth backend lets nobody in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpAuthBackendError {
    /// It refuses.
    #[error("{0}")]
    Denied(String),
    /// The answer is neither `allow` nor `deny`.
    #[error("response is neither allow nor deny")]
    NoAnswer,
    /// Too many requests are under way.
    #[error("too many pending requests")]
    Busy,
    /// It cannot be asked.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl HttpAuthBackendError {
    /// A refusal, perhaps with the auth backend's reason.
    pub(crate) fn denied(why: Option<String>) -> Self {
        Self::Denied(why.map_or_else(|| "denied".to_owned(), |why| format!("denied: {why}")))
    }
}
