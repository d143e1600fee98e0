//! Reply codes and the errors that end a channel or a connection.

use std::borrow::Cow;
use std::fmt;

use crate::wire::{DecodeError, truncate_to_short};

macro_rules! reply_codes {
    ($($code:literal $name:ident $wire:literal $hard:literal),* $(,)?) => {
        /// Reply codes of AMQP 0-9-1 (specification, section 1.2) and RabbitMQ.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "named as in the specification")]
        pub enum ReplyCode { $($name),* }

        impl ReplyCode {
            /// The number on the wire.
            pub const fn code(self) -> u16 {
                match self { $(Self::$name => $code),* }
            }

            /// The name that starts the reply text, such as `NOT_FOUND`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $wire),* }
            }

            /// Whether the error ends the whole connection, rather than one channel.
            pub const fn is_hard(self) -> bool {
                match self { $(Self::$name => $hard),* }
            }

            /// The code with this number.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reply_codes! {
    200 Success "REPLY_SUCCESS" false,
    311 ContentTooLarge "CONTENT_TOO_LARGE" false,
    312 NoRoute "NO_ROUTE" false,
    313 NoConsumers "NO_CONSUMERS" false,
    320 ConnectionForced "CONNECTION_FORCED" true,
    402 InvalidPath "INVALID_PATH" true,
    403 AccessRefused "ACCESS_REFUSED" false,
    404 NotFound "NOT_FOUND" false,
    405 ResourceLocked "RESOURCE_LOCKED" false,
    406 PreconditionFailed "PRECONDITION_FAILED" false,
    501 FrameError "FRAME_ERROR" true,
    502 SyntaxError "SYNTAX_ERROR" true,
    503 CommandInvalid "COMMAND_INVALID" true,
    504 ChannelError "CHANNEL_ERROR" true,
    505 UnexpectedFrame "UNEXPECTED_FRAME" true,
    506 ResourceError "RESOURCE_ERROR" true,
    530 NotAllowed "NOT_ALLOWED" true,
    540 NotImplemented "NOT_IMPLEMENTED" true,
    541 InternalError "INTERNAL_ERROR" true,
}

/// An error as it is sent to the peer: in `channel.close`, or in `connection.close` if [`Fault::is_hard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The reply code that is sent to the peer.
    pub code: ReplyCode,
    /// The explanation, without the code's name in front.
    pub text: Cow<'static, str>,
    /// Class and method id of the offending method; (0, 0) if no single method caused the fault.
    pub method: (u16, u16),
    /// Ends the connection even if the code by itself would end only the channel, as RabbitMQ does while a connection
    /// is being opened.
    pub on_connection: bool,
    /// An external auth backend authorizes the operation, and has not been queried yet. The operation has changed nothing,
    /// and is repeated with the answer; the peer never sees this fault.
    pub is_unasked: bool,
}

impl Fault {
    /// A fault that no method caused, or to which [`Fault::caused_by`] adds the method.
    pub fn new(code: ReplyCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into(), method: (0, 0), on_connection: code.is_hard(), is_unasked: false }
    }

    /// The fault that a server announced in a close method: its text begins with the code's name, which
    /// [`Self::reply_text`] adds again. An unknown code counts as 541 INTERNAL_ERROR.
    pub fn announced(code: u16, text: &str, method: (u16, u16)) -> Self {
        let code = ReplyCode::from_code(code).unwrap_or(ReplyCode::InternalError);
        let bare = match text.strip_prefix(code.name()) {
            Some("") => "",
            Some(rest) => rest.strip_prefix(" - ").unwrap_or(text),
            None => text,
        };
        Self::new(code, bare.to_owned()).caused_by(method)
    }

    /// Names the offending method.
    #[must_use]
    pub fn caused_by(mut self, method: (u16, u16)) -> Self {
        self.method = method;
        self
    }

    /// Makes the fault end the connection, regardless of its code.
    #[must_use]
    pub fn on_connection(mut self) -> Self {
        self.on_connection = true;
        self
    }

    /// Marks the operation as one to repeat once an external auth backend has authorized it ([`Self::is_unasked`]).
    #[must_use]
    pub fn unasked(mut self) -> Self {
        self.is_unasked = true;
        self
    }

    /// Whether it ends the connection.
    pub fn is_hard(&self) -> bool {
        self.on_connection
    }

    /// `NAME - text`, cut to the 255 bytes of a short string.
    pub fn reply_text(&self) -> String {
        let name = self.code.name();
        // Like RabbitMQ's INTERNAL_ERROR, which has no explanation.
        let mut text = if self.text.is_empty() { name.to_owned() } else { format!("{name} - {}", self.text) };
        text.truncate(truncate_to_short(&text).len());
        text
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} - {}", self.code.code(), self.code.name(), self.text)
    }
}

impl std::error::Error for Fault {}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::UnknownMethod { class_id, method_id } => {
                Self::new(ReplyCode::CommandInvalid, error.to_string()).caused_by((class_id, method_id))
            }
            _ => Self::new(ReplyCode::SyntaxError, error.to_string()),
        }
    }
}
