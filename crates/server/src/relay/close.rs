//! The end of a pair.

use std::fmt;
use std::io;
use std::time::Duration;

use websocket::{CloseCode, WebSocketFault, encode};

/// Time limit, after the client has closed, for the upstream to accept the remaining bytes, or else to send something or
/// end. Clients wait some ten seconds for the answer to their close frame; browsers no longer listen. Without WebSocket:
/// for the next byte in the remaining direction, once one side has closed or failed.
pub(super) const HALF_CLOSED: Duration = Duration::from_secs(30);

/// Time limit for the client to answer the close frame. Bytes that it sends meanwhile still reach the upstream.
pub(super) const CLOSE_ANSWER: Duration = Duration::from_secs(5);

/// The reason why a pair ended, for the log.
#[derive(Debug)]
pub(super) enum RelayEnd {
    /// The client closed.
    Client,
    /// The client closed the connection without a close frame.
    ClientGone,
    ClientFailed(io::Error),
    /// The client has not accepted output for too long.
    ClientStuck,
    /// The client did not answer a ping.
    ClientSilent,
    /// The client broke the protocol.
    Fault(WebSocketFault),
    /// The upstream closed.
    Upstream,
    /// The client closed, and the upstream did not close in time.
    UpstreamLingered,
    UpstreamFailed(io::Error),
    /// The server shuts down.
    Drain,
}

impl fmt::Display for RelayEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("closed by client"),
            Self::ClientGone => f.write_str("client closed the connection without a close frame"),
            Self::ClientFailed(error) => write!(f, "client: {error}"),
            Self::ClientStuck => f.write_str("client: write timed out"),
            Self::ClientSilent => f.write_str("WebSocket ping timed out"),
            Self::Fault(fault) => write!(f, "WebSocket closed by server: {fault}"),
            Self::Upstream => f.write_str("closed by upstream"),
            Self::UpstreamLingered => f.write_str("closed by client; upstream close timed out"),
            Self::UpstreamFailed(error) => write!(f, "upstream: {error}"),
            Self::Drain => f.write_str("server is shutting down"),
        }
    }
}

impl RelayEnd {
    /// The close frame for a client that has not closed itself.
    pub(super) fn close_frame(&self) -> Vec<u8> {
        let (code, text) = match self {
            Self::Fault(fault) => (fault.code, fault.reason),
            Self::UpstreamFailed(_) => (CloseCode::INTERNAL, "upstream connection failed"),
            Self::Drain => (CloseCode::GOING_AWAY, "server is shutting down"),
            _ => (CloseCode::NORMAL, ""),
        };
        let mut frame = Vec::new();
        encode::close(&mut frame, None, code, text);
        frame
    }
}
