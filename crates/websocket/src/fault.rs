//! Protocol violations of a peer.

use std::fmt;

use crate::close::CloseCode;

/// A peer broke the protocol: the connection must be failed (RFC 6455, 7.1.7), with this code and reason in the last
/// close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketFault {
    /// 1002, 1007 or 1009.
    pub code: CloseCode,
    /// Description of the violation, for the peer and for the log.
    pub reason: &'static str,
}

impl WebSocketFault {
    pub(crate) const fn protocol(reason: &'static str) -> Self {
        Self { code: CloseCode::PROTOCOL_ERROR, reason }
    }
}

impl fmt::Display for WebSocketFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.reason)
    }
}

impl std::error::Error for WebSocketFault {}
