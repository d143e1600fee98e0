//! Errors that are the client's fault.

use std::fmt;

use crate::reason::ReasonCode;

/// The client violated the protocol or exceeded a limit: its connection ends.
///
/// A client of MQTT 5.0 receives this reason code and text, in a CONNACK before it is connected and in a
/// DISCONNECT afterwards (section 4.13). Older clients only see the connection closed, unless they are
/// refused in a CONNACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MqttFault {
    /// The reason code, 0x80 or above.
    pub code: ReasonCode,
    /// A description of the error, for the client's Reason String and for the log.
    pub text: &'static str,
}

impl MqttFault {
    /// Creates a fault with this code and text.
    pub const fn new(code: ReasonCode, text: &'static str) -> Self {
        Self { code, text }
    }

    /// The bytes cannot be parsed (section 4.13.1).
    pub(crate) const fn malformed(text: &'static str) -> Self {
        Self::new(ReasonCode::MalformedPacket, text)
    }

    /// The bytes can be parsed, but are not allowed here or with these contents.
    pub(crate) const fn protocol(text: &'static str) -> Self {
        Self::new(ReasonCode::ProtocolError, text)
    }
}

impl fmt::Display for MqttFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

impl std::error::Error for MqttFault {}
