//! What a client did wrong.

use std::fmt;

use crate::reason::ReasonCode;

/// The client broke the protocol or asked for too much: its connection ends.
///
/// A client of MQTT 5.0 is told: in a CONNACK before it is connected, in a DISCONNECT afterwards, both with this reason
/// code and text (section 4.13). Older clients see the connection closed and nothing else, except when they are refused
/// in a CONNACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Why; 0x80 or above.
    pub code: ReasonCode,
    /// What was wrong, for the client's Reason String and for the log.
    pub text: &'static str,
}

impl Fault {
    /// A fault with this code and text.
    pub const fn new(code: ReasonCode, text: &'static str) -> Self {
        Self { code, text }
    }

    /// The bytes cannot be parsed (section 4.13.1).
    pub(crate) const fn malformed(text: &'static str) -> Self {
        Self::new(ReasonCode::MalformedPacket, text)
    }

    /// The bytes can be parsed, but not at this place or with these contents.
    pub(crate) const fn protocol(text: &'static str) -> Self {
        Self::new(ReasonCode::ProtocolError, text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

impl std::error::Error for Fault {}
