//! Errors that are the client's fault.

use std::borrow::Cow;
use std::fmt;

/// The reason why a connection ends, as the ERROR frame reports it: the header `message`, and a body that
/// explains it. RabbitMQ's wording is used wherever its adapter has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StompFault {
    /// A short description, for the header `message`.
    pub message: Cow<'static, str>,
    /// The explanation in the body of the ERROR frame.
    pub detail: Cow<'static, str>,
    /// An external auth backend authorizes the request, and has not been queried yet. The request has changed nothing, and is
    /// repeated with the answer; the client never sees this fault.
    pub is_unasked: bool,
}

impl StompFault {
    /// Creates a fault with this message and explanation.
    pub fn new(message: impl Into<Cow<'static, str>>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), detail: detail.into(), is_unasked: false }
    }

    /// The bytes are not a valid frame.
    pub(crate) fn frame(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new("Invalid frame", detail)
    }

    /// A header has an invalid value.
    pub fn header(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new("Invalid header", detail)
    }
}

impl fmt::Display for StompFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.detail.trim_end())
    }
}

impl std::error::Error for StompFault {}
