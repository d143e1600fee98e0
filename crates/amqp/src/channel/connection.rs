//! The connection's own life cycle, after the handshake.

use crate::error::{Fault, ReplyCode};
use crate::frame::{Frame, FrameKind};
use crate::method::Method;

/// The state of a connection, at the server's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionLife {
    /// Open.
    #[default]
    Running,
    /// The server sent `connection.close`: everything but close and close-ok is discarded.
    Closing,
    /// Closed; close the socket once all output is sent.
    Closed,
}

/// The action to take for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionStep<'a> {
    /// The frame belongs to a channel, and is not a heartbeat.
    Channel,
    /// A heartbeat.
    Heartbeat,
    /// A method for the connection that a client may send at any time: `update-secret`.
    Deliver(Method<'a>),
    /// The client sent `connection.close`: clean up, send `connection.close-ok`, close the socket.
    Close,
    /// Send `connection.close-ok`: both ends closed at the same time. The client's `close-ok` has yet to arrive.
    AnswerClose,
    /// The client sent `connection.close-ok`: close the socket.
    Closed,
    /// Ignore it: it was sent before the client knew that the connection is closing.
    Discard,
}

impl ConnectionLife {
    /// Validates a frame and returns the action to take.
    ///
    /// # Errors
    /// While running: 504 CHANNEL_ERROR for a method that is not allowed on channel 0, 505 UNEXPECTED_FRAME for a
    /// heartbeat elsewhere or content on channel 0, 501 FRAME_ERROR for a heartbeat with a payload, 502 and 503 for
    /// methods that cannot be decoded. Answer with `connection.close` and [`Self::start_closing`].
    #[inline]
    pub fn frame<'a>(&mut self, frame: &Frame<'a>) -> Result<ConnectionStep<'a>, Fault> {
        if *self == Self::Running && frame.channel != 0 && frame.kind != FrameKind::Heartbeat {
            return Ok(ConnectionStep::Channel);
        }
        self.seldom(frame)
    }

    /// Call it when the server has sent `connection.close`.
    pub fn start_closing(&mut self) {
        if *self == Self::Running {
            *self = Self::Closing;
        }
    }

    fn seldom<'a>(&mut self, frame: &Frame<'a>) -> Result<ConnectionStep<'a>, Fault> {
        match self {
            Self::Running => self.while_running(frame),
            Self::Closing => Ok(self.while_closing(frame)),
            Self::Closed => Ok(ConnectionStep::Discard),
        }
    }

    fn while_running<'a>(&mut self, frame: &Frame<'a>) -> Result<ConnectionStep<'a>, Fault> {
        match frame.kind {
            FrameKind::Heartbeat if !frame.payload.is_empty() => {
                return Err(Fault::new(ReplyCode::FrameError, "heartbeat with a payload"));
            }
            FrameKind::Heartbeat if frame.channel == 0 => return Ok(ConnectionStep::Heartbeat),
            FrameKind::Method => {}
            _ => return Err(frame.unexpected()),
        }
        match Method::decode(frame.payload)? {
            Method::ConnectionClose(_) => {
                *self = Self::Closed;
                Ok(ConnectionStep::Close)
            }
            method @ Method::ConnectionUpdateSecret(_) => Ok(ConnectionStep::Deliver(method)),
            method => {
                let text = "unexpected method in connection state running";
                Err(Fault::new(ReplyCode::ChannelError, text).caused_by(method.ids()))
            }
        }
    }

    fn while_closing<'a>(&mut self, frame: &Frame<'a>) -> ConnectionStep<'a> {
        if frame.channel != 0 || frame.kind != FrameKind::Method {
            return ConnectionStep::Discard;
        }
        match Method::decode(frame.payload) {
            Ok(Method::ConnectionClose(_)) => ConnectionStep::AnswerClose,
            Ok(Method::ConnectionCloseOk(_)) => {
                *self = Self::Closed;
                ConnectionStep::Closed
            }
            _ => ConnectionStep::Discard,
        }
    }
}
