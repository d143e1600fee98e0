//! Errors of single connections of a fleet.

use std::io;

use amqp::handshake::ClientFailure;
use websocket::handshake::UpgradeError;
use websocket::{CloseFrame, WebSocketFault};

use crate::error::ClientError;

/// The reason why a connection could not be opened, or was lost.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// There is no TCP connection.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The socket failed.
    #[error("connection lost: {0}")]
    Lost(#[source] io::Error),
    /// The server closed the socket without a close frame.
    #[error("the server closed the connection")]
    EndOfStream,
    /// The server sent a close frame.
    #[error("closed by the server{}", .0.as_ref().map_or(String::new(), |close| format!(": {} {}", close.code, close.reason)))]
    Closed(Option<CloseFrame>),
    /// The server does not upgrade to WebSocket.
    #[error(transparent)]
    Upgrade(UpgradeError),
    /// The server violates RFC 6455.
    #[error("the server broke the protocol: {0}")]
    WebSocket(#[source] WebSocketFault),
    /// The AMQP handshake failed.
    #[error(transparent)]
    Login(ClientFailure),
    /// The AMQP server closed the channel, or violated the protocol.
    #[error(transparent)]
    Amqp(#[from] ClientError),
    /// The MQTT server refused the login with this code.
    #[error("the login was refused with code {0}")]
    MqttLogin(u8),
    /// The server refused, with this text.
    #[error("{0}")]
    Refused(String),
    /// The server did something that the study does not expect.
    #[error("{0}")]
    Unexpected(&'static str),
    /// The connection was not subscribed in time.
    #[error("subscription timed out")]
    TimedOut,
}
