//! What a client did wrong.

use std::borrow::Cow;
use std::fmt;

/// Why a connection ends, as the ERROR frame tells it: the header `message`, and a body that explains. Where RabbitMQ's
/// adapter has words for it, these are RabbitMQ's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong, in short.
    pub message: Cow<'static, str>,
    /// The same at length.
    pub detail: Cow<'static, str>,
}

impl Fault {
    /// A fault in these words.
    pub fn new(message: impl Into<Cow<'static, str>>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), detail: detail.into() }
    }

    /// The bytes are no frame.
    pub(crate) fn frame(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new("Invalid frame", detail)
    }

    /// A header says something that it cannot say.
    pub fn header(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new("Invalid header", detail)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.detail.trim_end())
    }
}

impl std::error::Error for Fault {}
