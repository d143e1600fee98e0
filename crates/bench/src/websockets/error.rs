//! Errors of single connections of a fleet.

use std::error::Error;
use std::fmt;
use std::io;

use amqp::handshake::ClientFailure;
use websocket::handshake::UpgradeError;
use websocket::{CloseFrame, WebSocketFault};

use crate::error::ClientError;

/// The reason why a connection could not be opened, or was lost.
#[derive(Debug)]
pub enum MemberError {
    /// There is no TCP connection.
    Connect(io::Error),
    /// The socket failed.
    Lost(io::Error),
    /// The server closed the socket without a close frame.
    EndOfStream,
    /// The server sent a close frame.
    Closed(Option<CloseFrame>),
    /// The server does not upgrade to WebSocket.
    Upgrade(UpgradeError),
    /// The server violates RFC 6455.
    WebSocket(WebSocketFault),
    /// The AMQP handshake failed.
    Login(ClientFailure),
    /// The AMQP server closed the channel, or violated the protocol.
    Amqp(ClientError),
    /// The MQTT server refused the login with this code.
    MqttLogin(u8),
    /// The server refused, with this text.
    Refused(String),
    /// The server did something that the study does not expect.
    Unexpected(&'static str),
    /// The connection was not subscribed in time.
    TimedOut,
}

impl fmt::Display for MemberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(cause) => write!(f, "cannot connect: {cause}"),
            Self::Lost(cause) => write!(f, "connection lost: {cause}"),
            Self::EndOfStream => f.write_str("the server closed the connection"),
            Self::Closed(Some(close)) => write!(f, "closed by the server: {} {}", close.code, close.reason),
            Self::Closed(None) => f.write_str("closed by the server"),
            Self::Upgrade(cause) => cause.fmt(f),
            Self::WebSocket(fault) => write!(f, "the server broke the protocol: {fault}"),
            Self::Login(failure) => failure.fmt(f),
            Self::Amqp(cause) => cause.fmt(f),
            Self::MqttLogin(code) => write!(f, "the login was refused with code {code}"),
            Self::Refused(text) => f.write_str(text),
            Self::Unexpected(text) => f.write_str(text),
            Self::TimedOut => f.write_str("it was not subscribed in time"),
        }
    }
}

impl Error for MemberError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Connect(cause) | Self::Lost(cause) => Some(cause),
            Self::Upgrade(cause) => Some(cause),
            Self::WebSocket(fault) => Some(fault),
            Self::Login(failure) => Some(failure),
            Self::Amqp(cause) => Some(cause),
            Self::EndOfStream
            | Self::Closed(_)
            | Self::MqttLogin(_)
            | Self::Refused(_)
            | Self::Unexpected(_)
            | Self::TimedOut => None,
        }
    }
}

impl From<ClientError> for MemberError {
    fn from(cause: ClientError) -> Self {
        Self::Amqp(cause)
    }
}
