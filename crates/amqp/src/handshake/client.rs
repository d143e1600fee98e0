//! The client's end.

use std::fmt;
use std::sync::Arc;

use super::capabilities::Capabilities;
use super::negotiate::Negotiated;
use super::{HANDSHAKE_FRAME_MAX, LOCALE};
use crate::error::{Fault, ReplyCode};
use crate::frame::{Frame, FrameKind, PROTOCOL_HEADER, write_method};
use crate::method::{Method, connection};
use crate::sasl::{Credentials, Mechanism};
use crate::table::{FieldTable, RawTable};

/// The credentials, properties and limits that a client presents.
#[derive(Debug, Clone)]
pub struct ClientOffer {
    /// Shared, since many connections may present the same.
    pub credentials: Arc<Credentials>,
    /// The vhost's name, such as `/`.
    pub virtual_host: String,
    /// Product, version, `connection_name` and so on. The caller adds the `capabilities` ([`Capabilities::add_to`]).
    pub client_properties: FieldTable,
    /// The requested channel_max; 0 leaves it to the server.
    pub channel_max: u16,
    /// The requested frame_max in bytes, at least [`crate::frame::MIN_FRAME_MAX`]; 0 leaves it to the server.
    pub frame_max: u32,
    /// The requested heartbeat interval, in seconds; 0 leaves it to the server.
    pub heartbeat: u16,
}

/// Events of the client's end. Each except the challenge is the last one.
#[derive(Debug)]
pub enum ClientEvent {
    /// The mechanism needs another step: answer with [`ClientHandshake::respond`].
    Challenge(Vec<u8>),
    /// The connection is open.
    Opened(Box<Opened>),
    /// The server refused. Send the bytes of `poll_output`, then close the socket.
    Refused(ServerClose),
    /// The handshake cannot continue. Send the bytes of `poll_output`, then close the socket.
    Failed(ClientFailure),
}

/// Description of an open connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// The limits of this connection.
    pub negotiated: Negotiated,
    /// The properties as the server sent them.
    pub server_properties: FieldTable,
    /// Taken from the server properties.
    pub capabilities: Capabilities,
}

/// A `connection.close` of the server during the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerClose {
    /// The reply code on the wire; [`ReplyCode::from_code`] may know it.
    pub code: u16,
    /// The text as the server sent it, with the code's name in front.
    pub text: String,
    /// Class and method id to which the server attributes the error.
    pub method: (u16, u16),
}

impl fmt::Display for ServerClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

/// The reason of a failed handshake, if the server did not send one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFailure {
    /// The server answered with another protocol header: it does not speak AMQP 0-9-1.
    WrongProtocol([u8; 8]),
    /// The server does not offer the mechanism of the credentials; these are the ones it offers.
    MechanismNotOffered(String),
    /// The server closed the stream after it received the credentials: servers refuse logins this way if the client lacks
    /// `authentication_failure_close`.
    ClosedDuringLogin,
    /// The server closed the stream at any other time.
    Eof,
    /// The server broke the protocol.
    Fault(Fault),
}

impl fmt::Display for ClientFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongProtocol(header) => {
                write!(f, "not an AMQP 0-9-1 server: {}", header.escape_ascii())
            }
            Self::MechanismNotOffered(offered) => write!(f, "server offers other mechanisms: {offered}"),
            Self::ClosedDuringLogin => f.write_str("server closed the connection during login"),
            Self::Eof => f.write_str("server closed the connection during the handshake"),
            Self::Fault(fault) => write!(f, "server broke the protocol: {fault}"),
        }
    }
}

impl std::error::Error for ClientFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fault(fault) => Some(fault),
            _ => None,
        }
    }
}

/// The client's end of the handshake. See the [module](super) for the order of the calls.
#[derive(Debug)]
pub struct ClientHandshake {
    offer: ClientOffer,
    state: ClientState,
    /// Bytes to be sent; taken by [`Self::poll_output`].
    output: Vec<u8>,
    /// At most one event is pending, since each needs an answer or is the last.
    event: Option<ClientEvent>,
    /// Set from `start` on; moved out when the connection is open.
    server_properties: FieldTable,
    /// The offer at first, the negotiated limits after `tune`.
    negotiated: Negotiated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Starting,
    /// The credentials were sent.
    LoggingIn,
    /// The caller has to answer a challenge.
    ChallengePending,
    Opening,
    Open,
    Ended,
}

impl ClientHandshake {
    /// A handshake that has the protocol header ready to be sent.
    pub fn new(offer: ClientOffer) -> Self {
        Self {
            negotiated: Negotiated {
                channel_max: offer.channel_max,
                frame_max: offer.frame_max,
                heartbeat_secs: offer.heartbeat,
            },
            offer,
            state: ClientState::Starting,
            output: PROTOCOL_HEADER.to_vec(),
            event: None,
            server_properties: FieldTable::new(),
        }
    }

    /// Consumes as much of `input` as it can, and returns the number of bytes consumed.
    pub fn handle_input(&mut self, input: &[u8]) -> usize {
        let mut taken = 0;
        loop {
            match self.step(&input[taken..]) {
                0 => return taken,
                n => taken += n,
            }
        }
    }

    /// Call it when the server has closed the stream.
    pub fn handle_eof(&mut self) {
        match self.state {
            ClientState::Open | ClientState::Ended => {}
            ClientState::LoggingIn | ClientState::ChallengePending => {
                self.finish(ClientFailure::ClosedDuringLogin)
            }
            ClientState::Starting | ClientState::Opening => self.finish(ClientFailure::Eof),
        }
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.event.take()
    }

    /// Appends the bytes to be sent.
    pub fn poll_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// Answers a challenge. Does nothing if none is pending.
    pub fn respond(&mut self, response: &[u8]) {
        if self.state == ClientState::ChallengePending {
            self.state = ClientState::LoggingIn;
            self.send(connection::SecureOk { response });
        }
    }

    /// Whether the connection is open, and so the handshake is over.
    pub fn is_open(&self) -> bool {
        self.state == ClientState::Open
    }

    /// Consumes one frame and returns its length, or 0 if it consumed nothing.
    fn step(&mut self, input: &[u8]) -> usize {
        if matches!(self.state, ClientState::ChallengePending | ClientState::Open | ClientState::Ended) {
            return 0;
        }
        if self.state == ClientState::Starting && input.first() == Some(&PROTOCOL_HEADER[0]) {
            let Some(header) = input.first_chunk::<8>() else { return 0 };
            self.finish(ClientFailure::WrongProtocol(*header));
            return header.len();
        }
        match Frame::parse(input, HANDSHAKE_FRAME_MAX) {
            Ok(None) => 0,
            Ok(Some(frame)) => {
                if let Err(fault) = self.frame(frame) {
                    self.fail(fault);
                }
                frame.wire_len()
            }
            Err(fault) => {
                self.fail(fault);
                input.len()
            }
        }
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        match frame.kind {
            FrameKind::Heartbeat if frame.channel == 0 => return Ok(()),
            FrameKind::Method if frame.channel == 0 => {}
            _ => return Err(frame.unexpected()),
        }
        let method = Method::decode(frame.payload)?;
        match (self.state, method) {
            (_, Method::ConnectionClose(close)) => self.refused(&close),
            (ClientState::Starting, Method::ConnectionStart(start)) => self.start(&start)?,
            (ClientState::LoggingIn, Method::ConnectionSecure(connection::Secure { challenge })) => {
                self.state = ClientState::ChallengePending;
                self.event = Some(ClientEvent::Challenge(challenge.to_vec()));
            }
            (ClientState::LoggingIn, Method::ConnectionTune(tune)) => self.tune(&tune)?,
            (ClientState::Opening, Method::ConnectionOpenOk(_)) => self.opened(),
            _ => {
                let text = format!("unexpected {} during the handshake", method.name());
                return Err(Fault::new(ReplyCode::CommandInvalid, text).caused_by(method.ids()));
            }
        }
        Ok(())
    }

    fn start(&mut self, start: &connection::Start<'_>) -> Result<(), Fault> {
        if (start.version_major, start.version_minor) != (0, 9) {
            let text = format!("server version {}-{}", start.version_major, start.version_minor);
            return Err(Fault::new(ReplyCode::NotImplemented, text));
        }
        let mechanism: Mechanism = self.offer.credentials.mechanism;
        let mut offered = start.mechanisms.split(|&byte| byte == b' ');
        if !offered.any(|name| name == mechanism.name().as_bytes()) {
            let offered = String::from_utf8_lossy(start.mechanisms).into_owned();
            self.finish(ClientFailure::MechanismNotOffered(offered));
            return Ok(());
        }
        self.server_properties = start.server_properties.decode();
        let properties = self.offer.client_properties.encode();
        let response = self.offer.credentials.response();
        self.send(connection::StartOk {
            // The bytes were just encoded, so they are well-formed unless the caller nested the table too deeply.
            client_properties: RawTable::check(&properties).unwrap_or_default(),
            mechanism: mechanism.name(),
            response: response.expose(),
            locale: LOCALE,
        });
        self.state = ClientState::LoggingIn;
        Ok(())
    }

    /// Sends `open` right after `tune-ok`: the server answers only `open`.
    fn tune(&mut self, tune: &connection::Tune) -> Result<(), Fault> {
        self.negotiated = Negotiated::answer(self.negotiated, tune)?;
        let Negotiated { channel_max, frame_max, heartbeat_secs } = self.negotiated;
        self.send(connection::TuneOk { channel_max, frame_max, heartbeat: heartbeat_secs });
        let virtual_host = std::mem::take(&mut self.offer.virtual_host);
        self.send(connection::Open { virtual_host: &virtual_host, ..Default::default() });
        self.state = ClientState::Opening;
        Ok(())
    }

    fn opened(&mut self) {
        self.state = ClientState::Open;
        self.event = Some(ClientEvent::Opened(Box::new(Opened {
            negotiated: self.negotiated,
            capabilities: Capabilities::from_properties(&self.server_properties),
            server_properties: std::mem::take(&mut self.server_properties),
        })));
    }

    fn refused(&mut self, close: &connection::Close<'_>) {
        self.send(connection::CloseOk {});
        self.state = ClientState::Ended;
        self.event = Some(ClientEvent::Refused(ServerClose {
            code: close.reply_code,
            text: close.reply_text.to_owned(),
            method: (close.class_id, close.method_id),
        }));
    }

    /// Notifies the server, but does not wait for its `close-ok`: it has already violated the protocol.
    fn fail(&mut self, fault: Fault) {
        self.send(connection::Close {
            reply_code: fault.code.code(),
            reply_text: &fault.reply_text(),
            class_id: fault.method.0,
            method_id: fault.method.1,
        });
        self.finish(ClientFailure::Fault(fault));
    }

    fn finish(&mut self, failure: ClientFailure) {
        self.state = ClientState::Ended;
        self.event = Some(ClientEvent::Failed(failure));
    }

    fn send<'a>(&mut self, method: impl Into<Method<'a>>) {
        write_method(&mut self.output, 0, method);
    }
}
