//! What a connection tells its server.

use std::fmt;

use super::form::MessageForm;
use crate::fault::Fault;
use crate::frame::{Headers, Payload};
use crate::version::Version;

/// What a client wants, or what has become of it.
#[derive(Debug)]
pub enum Event<'a> {
    /// The first event.
    Connect(Box<Connect<'a>>),
    /// A request of a client that is connected.
    Request(Box<Request<'a>>),
    /// The connection is over.
    Ended(End),
}

/// CONNECT or STOMP.
#[derive(Debug)]
pub struct Connect<'a> {
    /// What was negotiated.
    pub version: Version,
    /// All headers.
    pub headers: Headers<'a>,
}

impl Connect<'_> {
    /// The user's name.
    pub fn login(&self) -> Option<&str> {
        self.header("login")
    }

    /// The user's password.
    pub fn passcode(&self) -> Option<&str> {
        self.header("passcode")
    }

    /// The virtual host.
    pub fn host(&self) -> Option<&str> {
        self.header("host")
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        // Only now is it known to be a client of 1.0, whose values may begin with a space.
        Some(if self.version == Version::V10 { value.trim_start_matches(' ') } else { value })
    }
}

/// A frame of a connected client, with what the connection knows of it.
#[derive(Debug)]
pub struct Request<'a> {
    /// All headers.
    pub headers: Headers<'a>,
    /// What is wanted.
    pub kind: Kind<'a>,
}

impl Request<'_> {
    /// What the client wants to have confirmed.
    pub fn receipt(&self) -> Option<&str> {
        self.headers.get("receipt")
    }
}

/// What is wanted.
#[derive(Debug)]
pub enum Kind<'a> {
    /// SEND.
    Send {
        /// Never missing; not looked at.
        destination: Box<str>,
        /// The message.
        body: Payload<'a>,
        /// Not before this is committed.
        transaction: Option<TransactionId>,
    },
    /// SUBSCRIBE.
    Subscribe(SubscribeEvent),
    /// UNSUBSCRIBE.
    Unsubscribe {
        /// The subscription that was.
        number: u64,
        /// Its destination.
        destination: Box<str>,
    },
    /// ACK or NACK.
    Settle(Settle),
    /// BEGIN.
    Begin(TransactionId),
    /// COMMIT.
    Commit(TransactionId),
    /// ABORT.
    Abort(TransactionId),
    /// DISCONNECT: nothing more is read. To be answered with [`super::Connection::leave`].
    Disconnect,
}

/// A new subscription.
#[derive(Debug)]
pub struct SubscribeEvent {
    /// Its number on the connection, never used again.
    pub number: u64,
    /// Where from; not looked at.
    pub destination: Box<str>,
    /// How its messages are acknowledged.
    pub ack: AckMode,
    /// The form of its messages.
    pub form: MessageForm,
}

/// How the messages of a subscription are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// They are not.
    Auto,
    /// Each with all before it.
    Client,
    /// Each by itself.
    ClientIndividual,
}

/// ACK or NACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle {
    /// The subscription that the message came through.
    pub subscription: u64,
    /// Its delivery tag, as the server gave it.
    pub delivery_tag: u64,
    /// With all of the subscription before it.
    pub cumulative: bool,
    /// ACK; otherwise NACK.
    pub is_ack: bool,
    /// Of NACK: whether the message goes back to its queue.
    pub requeue: bool,
    /// Not before this is committed.
    pub transaction: Option<TransactionId>,
}

/// A transaction's number on its connection, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The client disconnected.
    Disconnected,
    /// The client closed its socket without that.
    Eof,
    /// No heart-beat came.
    Silent,
    /// The client was told this.
    Fault(Fault),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("closed by client"),
            Self::Eof => f.write_str("client went away without disconnecting"),
            Self::Silent => f.write_str("missed heart-beats from client"),
            Self::Fault(fault) => write!(f, "closed by server: {fault}"),
        }
    }
}
