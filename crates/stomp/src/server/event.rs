//! Events that a connection reports to its server.

use std::fmt;

use super::form::MessageForm;
use crate::fault::StompFault;
use crate::frame::{FrameBody, Headers};
use crate::version::StompVersion;

/// A request of the client, or the end of the connection.
#[derive(Debug)]
pub enum StompEvent<'a> {
    /// The client wants to log in; always the first event.
    Connect(Box<ConnectRequest<'a>>),
    /// A request of a connected client.
    Request(Box<Request<'a>>),
    /// The connection has ended.
    Ended(StompEnd),
}

/// A CONNECT or STOMP frame: the client wants to log in.
#[derive(Debug)]
pub struct ConnectRequest<'a> {
    /// The highest version that both sides support.
    pub version: StompVersion,
    /// All headers of the frame.
    pub headers: Headers<'a>,
}

impl ConnectRequest<'_> {
    /// The header `login`: the user name.
    pub fn login(&self) -> Option<&str> {
        self.header("login")
    }

    /// The header `passcode`: the user's password.
    pub fn passcode(&self) -> Option<&str> {
        self.header("passcode")
    }

    /// The header `host`: the virtual host to open.
    pub fn host(&self) -> Option<&str> {
        self.header("host")
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        // Until now the client was not known to speak 1.0, whose values may begin with a space.
        Some(if self.version == StompVersion::V10 { value.trim_start_matches(' ') } else { value })
    }
}

/// A frame of a connected client, resolved against the connection's state.
#[derive(Debug)]
pub struct Request<'a> {
    /// All headers of the frame.
    pub headers: Headers<'a>,
    /// The command and its arguments.
    pub kind: EventKind<'a>,
}

impl Request<'_> {
    /// A copy that outlives the input, for a server that performs the request later.
    pub fn to_owned(&self) -> Request<'static> {
        Request { headers: self.headers.to_owned(), kind: self.kind.to_owned() }
    }

    /// The receipt that the client asks for, if any.
    pub fn receipt(&self) -> Option<&str> {
        self.headers.get("receipt")
    }
}

/// The request, by its command.
#[derive(Debug)]
pub enum EventKind<'a> {
    /// SEND.
    Send {
        /// Always present; not parsed.
        destination: Box<str>,
        /// The body of the message.
        body: FrameBody<'a>,
        /// The transaction whose commit the request waits for, if any.
        transaction: Option<TransactionId>,
    },
    /// SUBSCRIBE.
    Subscribe(SubscriptionRequest),
    /// UNSUBSCRIBE.
    Unsubscribe {
        /// The number of the subscription that has ended.
        number: u64,
        /// Its destination.
        destination: Box<str>,
    },
    /// ACK or NACK.
    Settle(Settle),
    /// ACK or NACK of a message whose subscription the server has cancelled: it has no effect, and is confirmed.
    SettleCancelled,
    /// BEGIN.
    Begin(TransactionId),
    /// COMMIT.
    Commit(TransactionId),
    /// ABORT.
    Abort(TransactionId),
    /// DISCONNECT: nothing more is read. The server answers with [`super::StompServerConnection::leave`].
    Disconnect,
}

impl EventKind<'_> {
    fn to_owned(&self) -> EventKind<'static> {
        match self {
            Self::Send { destination, body, transaction } => EventKind::Send {
                destination: destination.clone(),
                body: body.to_owned(),
                transaction: *transaction,
            },
            Self::Subscribe(subscribe) => EventKind::Subscribe(subscribe.clone()),
            Self::Unsubscribe { number, destination } => {
                EventKind::Unsubscribe { number: *number, destination: destination.clone() }
            }
            Self::Settle(settle) => EventKind::Settle(*settle),
            Self::SettleCancelled => EventKind::SettleCancelled,
            Self::Begin(transaction) => EventKind::Begin(*transaction),
            Self::Commit(transaction) => EventKind::Commit(*transaction),
            Self::Abort(transaction) => EventKind::Abort(*transaction),
            Self::Disconnect => EventKind::Disconnect,
        }
    }
}

/// A SUBSCRIBE, with the settings of the new subscription.
#[derive(Debug, Clone)]
pub struct SubscriptionRequest {
    /// Its number, unique on the connection.
    pub number: u64,
    /// The source; not parsed.
    pub destination: Box<str>,
    /// How its messages are acknowledged.
    pub ack: AckMode,
    /// The form in which its messages are written.
    pub form: MessageForm,
}

/// How the messages of a subscription are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// Without acknowledgements.
    Auto,
    /// An ACK covers the message and all before it.
    Client,
    /// An ACK covers a single message.
    ClientIndividual,
}

/// An ACK or NACK of one message or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle {
    /// The number of the subscription that delivered the message.
    pub subscription: u64,
    /// The delivery tag that the server gave the message.
    pub delivery_tag: u64,
    /// Whether it covers all earlier messages of the subscription, too.
    pub cumulative: bool,
    /// `true` for ACK, `false` for NACK.
    pub is_ack: bool,
    /// For NACK: whether the message is requeued.
    pub requeue: bool,
    /// The transaction whose commit the request waits for, if any.
    pub transaction: Option<TransactionId>,
}

/// A transaction's number, unique on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StompEnd {
    /// The client sent DISCONNECT.
    Disconnected,
    /// The client closed its socket without a DISCONNECT.
    Eof,
    /// The client's heart-beats stopped.
    Silent,
    /// The server ended the connection with this ERROR.
    Fault(StompFault),
}

impl fmt::Display for StompEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("closed by client"),
            Self::Eof => f.write_str("client unexpectedly closed TCP connection"),
            Self::Silent => f.write_str("missed heart-beats from client"),
            Self::Fault(fault) => write!(f, "closed by server: {fault}"),
        }
    }
}
