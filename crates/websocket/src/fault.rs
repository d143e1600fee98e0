//! Protocol violations of a peer.

use crate::close::CloseCode;

/// A peer broke the protocol: the connection must be failed (RFC 6455, 7.1.7), with this code and reason in the last
/// close frame.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("{code} {reason}")]
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
