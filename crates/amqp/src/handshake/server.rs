//! The server's end.

use std::borrow::Cow;
use std::sync::Arc;

use super::capabilities::Capabilities;
use super::negotiate::Negotiated;
use super::{HANDSHAKE_FRAME_MAX, LOCALE};
use crate::error::{Fault, ReplyCode};
use crate::frame::{Frame, FrameKind, PROTOCOL_HEADER, write_method};
use crate::method::{Method, connection};
use crate::sasl::{Credentials, Mechanism, Secret};
use crate::table::{FieldTable, RawTable};

/// The properties and limits that a server announces; all connections of a listener share one.
#[derive(Debug, Clone)]
pub struct ServerOffer {
    /// Product, version and so on. The caller adds the `capabilities` ([`Capabilities::add_to`]).
    pub server_properties: FieldTable,
    /// The mechanisms, in order of preference.
    pub mechanisms: Vec<Mechanism>,
    /// The most channels that a client may have open; 0 means no limit.
    pub channel_max: u16,
    /// Bytes of the largest frame; 0 means no limit.
    pub frame_max: u32,
    /// The heartbeat interval suggested to clients, in seconds; 0 means none.
    pub heartbeat: u16,
}

/// Events of the server's end.
#[derive(Debug)]
pub enum ServerEvent {
    /// Answer with [`ServerHandshake::accept_login`], [`ServerHandshake::refuse_login`] or
    /// [`ServerHandshake::challenge`].
    Authenticate(Credentials),
    /// The client's answer to a challenge; answer it like [`ServerEvent::Authenticate`].
    Response(Secret),
    /// Answer with [`ServerHandshake::accept_open`] or [`ServerHandshake::refuse_open`].
    Open(Box<OpenRequest>),
    /// The connection will not be opened. Send the bytes of `poll_output`, then close the socket.
    Ended(ServerEnd),
}

/// The request of an authenticated client to open its vhost.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRequest {
    /// Name of the virtual host that the client wants to open.
    pub virtual_host: String,
    /// The limits of this connection.
    pub negotiated: Negotiated,
    /// The properties as the client sent them.
    pub client_properties: FieldTable,
    /// Taken from the client properties.
    pub capabilities: Capabilities,
}

/// The reason why a connection was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEnd {
    /// The peer does not speak AMQP 0-9-1; the answer was the protocol header that it should have sent.
    BadProtocolHeader,
    /// [`ServerHandshake::refuse_login`] was called.
    LoginRefused,
    /// The client broke the protocol, or [`ServerHandshake::refuse_open`] was called.
    Faulted(Fault),
    /// The client gave up and sent `connection.close`.
    ClosedByPeer,
    /// The client closed its socket.
    Eof,
}

/// The server's end of the handshake. See the [module](super) for the order of the calls.
#[derive(Debug)]
pub struct ServerHandshake {
    offer: Arc<ServerOffer>,
    state: ServerState,
    /// Bytes to be sent; taken by [`Self::poll_output`].
    output: Vec<u8>,
    /// At most one event is pending, since each needs an answer or is the last.
    event: Option<ServerEvent>,
    mechanism: Mechanism,
    /// Set from `start-ok` on; moved out into the open request.
    client_properties: FieldTable,
    capabilities: Capabilities,
    /// The offer at first, the negotiated limits after `tune-ok`.
    negotiated: Negotiated,
    /// Set when the state becomes `Closing`; reported when the peer has confirmed or disconnected.
    end: Option<ServerEnd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerState {
    ProtocolHeader,
    Starting,
    /// The caller has to decide on the login.
    LoginPending,
    Securing,
    Tuning,
    Opening,
    /// The caller has to decide on the vhost.
    OpenPending,
    Open,
    /// `connection.close` was sent: everything except the answer to it is discarded.
    Closing,
    /// Like `Closing`, but frame boundaries are lost: everything is discarded until the stream ends.
    Draining,
    Ended,
}

impl ServerHandshake {
    /// A handshake that waits for a protocol header.
    pub fn new(offer: impl Into<Arc<ServerOffer>>) -> Self {
        let offer = offer.into();
        Self {
            negotiated: Negotiated {
                channel_max: offer.channel_max,
                frame_max: offer.frame_max,
                heartbeat_secs: offer.heartbeat,
            },
            offer,
            state: ServerState::ProtocolHeader,
            output: Vec::new(),
            event: None,
            mechanism: Mechanism::Plain,
            client_properties: FieldTable::new(),
            capabilities: Capabilities::default(),
            end: None,
        }
    }

    /// Consumes as much of `input` as it can, and returns the number of bytes consumed. The state machine itself answers
    /// protocol errors.
    pub fn handle_input(&mut self, input: &[u8]) -> usize {
        let mut taken = 0;
        loop {
            match self.step(&input[taken..]) {
                0 => return taken,
                n => taken += n,
            }
        }
    }

    /// Call it when the client has closed the stream.
    pub fn handle_eof(&mut self) {
        if !matches!(self.state, ServerState::Open | ServerState::Ended) {
            let end = self.end.take().unwrap_or(ServerEnd::Eof);
            self.finish(end);
        }
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.event.take()
    }

    /// Appends the bytes to be sent.
    pub fn poll_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// Accepts the credentials: sends `connection.tune`. Does nothing if no login is pending.
    pub fn accept_login(&mut self) {
        if self.state == ServerState::LoginPending {
            self.state = ServerState::Tuning;
            let Negotiated { channel_max, frame_max, heartbeat_secs } = self.negotiated;
            self.send(connection::Tune { channel_max, frame_max, heartbeat: heartbeat_secs });
        }
    }

    /// Refuses the credentials. A client with that capability receives `403 ACCESS_REFUSED - text`
    /// ([`Mechanism::refusal_text`] is RabbitMQ's); for any other the socket is closed.
    pub fn refuse_login(&mut self, text: impl Into<Cow<'static, str>>) {
        if self.state != ServerState::LoginPending {
            return;
        }
        if self.capabilities.authentication_failure_close {
            self.close(&Fault::new(ReplyCode::AccessRefused, text), ServerEnd::LoginRefused);
        } else {
            self.finish(ServerEnd::LoginRefused);
        }
    }

    /// Requests another response, for a mechanism of several steps: sends `connection.secure`.
    pub fn challenge(&mut self, challenge: &[u8]) {
        if self.state == ServerState::LoginPending {
            self.state = ServerState::Securing;
            self.send(connection::Secure { challenge });
        }
    }

    /// Accepts the vhost: sends `connection.open-ok`. Later input does not belong to the handshake.
    pub fn accept_open(&mut self) {
        if self.state == ServerState::OpenPending {
            self.state = ServerState::Open;
            self.send(connection::OpenOk { reserved_1: "" });
        }
    }

    /// Refuses the vhost: sends `connection.close` with `fault`, regardless of its code.
    pub fn refuse_open(&mut self, mut fault: Fault) {
        if self.state == ServerState::OpenPending {
            if fault.method == (0, 0) {
                fault.method = OPEN_IDS;
            }
            self.fail(fault);
        }
    }

    /// The mechanism that the client chose.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// The limits: the offer until `tune-ok`, the negotiated ones from then on.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// Whether the connection is open, and so the handshake is over.
    pub fn is_open(&self) -> bool {
        self.state == ServerState::Open
    }

    /// Whether `connection.close` was sent and only its answer, or the end of the stream, is still expected.
    pub fn is_closing(&self) -> bool {
        matches!(self.state, ServerState::Closing | ServerState::Draining)
    }

    /// Consumes one protocol header or frame and returns its length, or 0 if it consumed nothing.
    fn step(&mut self, input: &[u8]) -> usize {
        match self.state {
            ServerState::ProtocolHeader => return self.protocol_header(input),
            ServerState::LoginPending | ServerState::OpenPending | ServerState::Open | ServerState::Ended => {
                return 0;
            }
            ServerState::Draining => return input.len(),
            ServerState::Starting
            | ServerState::Securing
            | ServerState::Tuning
            | ServerState::Opening
            | ServerState::Closing => {}
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
                self.state = ServerState::Draining;
                input.len()
            }
        }
    }

    /// Validates byte by byte, since a peer of another protocol may send fewer than eight bytes and wait for an answer.
    fn protocol_header(&mut self, input: &[u8]) -> usize {
        let length = input.len().min(PROTOCOL_HEADER.len());
        let start = &input[..length];
        if start == PROTOCOL_HEADER || start == PROTOCOL_HEADER_0_9 {
            self.state = ServerState::Starting;
            self.send_start();
            return length;
        }
        if PROTOCOL_HEADER.starts_with(start) || PROTOCOL_HEADER_0_9.starts_with(start) {
            return 0;
        }
        self.output.extend_from_slice(&PROTOCOL_HEADER);
        self.finish(ServerEnd::BadProtocolHeader);
        input.len()
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        if self.state == ServerState::Closing {
            self.frame_while_closing(frame);
            return Ok(());
        }
        match frame.kind {
            FrameKind::Heartbeat if frame.channel == 0 => return Ok(()),
            FrameKind::Method if frame.channel == 0 => {}
            _ => return Err(frame.unexpected()),
        }
        let method = Method::decode(frame.payload)?;
        let state = match (self.state, method) {
            (_, Method::ConnectionClose(_)) => {
                self.send(connection::CloseOk {});
                self.finish(ServerEnd::ClosedByPeer);
                return Ok(());
            }
            (ServerState::Starting, Method::ConnectionStartOk(start_ok)) => {
                return self.start_ok(&start_ok).map_err(|fault| fault.caused_by(method.ids()));
            }
            (ServerState::Securing, Method::ConnectionSecureOk(connection::SecureOk { response })) => {
                self.state = ServerState::LoginPending;
                self.event = Some(ServerEvent::Response(Secret::new(response)));
                return Ok(());
            }
            (ServerState::Tuning, Method::ConnectionTuneOk(tune_ok)) => {
                self.negotiated = Negotiated::accept(self.negotiated, &tune_ok)?;
                self.state = ServerState::Opening;
                return Ok(());
            }
            (ServerState::Opening, Method::ConnectionOpen(open)) => {
                self.open(open.virtual_host);
                return Ok(());
            }
            (ServerState::Starting, _) => "starting",
            (ServerState::Securing, _) => "securing",
            (ServerState::Tuning, _) => "tuning",
            _ => "opening",
        };
        let text = format!("unexpected method in connection state {state}");
        Err(Fault::new(ReplyCode::ChannelError, text).caused_by(method.ids()))
    }

    fn frame_while_closing(&mut self, frame: Frame<'_>) {
        if frame.channel != 0 || frame.kind != FrameKind::Method {
            return;
        }
        match Method::decode(frame.payload) {
            Ok(Method::ConnectionClose(_)) => self.send(connection::CloseOk {}),
            Ok(Method::ConnectionCloseOk(_)) => {
                let end = self.end.take().unwrap_or(ServerEnd::Eof);
                self.finish(end);
            }
            _ => {}
        }
    }

    fn start_ok(&mut self, start_ok: &connection::StartOk<'_>) -> Result<(), Fault> {
        self.client_properties = start_ok.client_properties.decode();
        self.capabilities = Capabilities::from_properties(&self.client_properties);
        let name = start_ok.mechanism;
        let invalid =
            |what| Fault::new(ReplyCode::CommandInvalid, format!("{what} authentication mechanism '{name}'"));
        self.mechanism = Mechanism::from_name(name).ok_or_else(|| invalid("unknown"))?;
        if !self.offer.mechanisms.contains(&self.mechanism) {
            return Err(invalid("invalid"));
        }
        let credentials = Credentials::parse(self.mechanism, start_ok.response)?;
        self.state = ServerState::LoginPending;
        self.event = Some(ServerEvent::Authenticate(credentials));
        Ok(())
    }

    fn open(&mut self, virtual_host: &str) {
        self.state = ServerState::OpenPending;
        self.event = Some(ServerEvent::Open(Box::new(OpenRequest {
            virtual_host: virtual_host.to_owned(),
            negotiated: self.negotiated,
            client_properties: std::mem::take(&mut self.client_properties),
            capabilities: self.capabilities,
        })));
    }

    fn send_start(&mut self) {
        let offer = Arc::clone(&self.offer);
        let properties = offer.server_properties.encode();
        let mechanisms = offer.mechanisms.iter().map(|mechanism| mechanism.name());
        let mechanisms = mechanisms.collect::<Vec<_>>().join(" ");
        self.send(connection::Start {
            version_major: 0,
            version_minor: 9,
            // The bytes were just encoded, so they are well-formed unless the caller nested the table too deeply.
            server_properties: RawTable::check(&properties).unwrap_or_default(),
            mechanisms: mechanisms.as_bytes(),
            locales: LOCALE.as_bytes(),
        });
    }

    fn fail(&mut self, fault: Fault) {
        if !self.is_closing() {
            self.close(&fault.clone(), ServerEnd::Faulted(fault));
        }
    }

    fn close(&mut self, fault: &Fault, end: ServerEnd) {
        self.send(connection::Close {
            reply_code: fault.code.code(),
            reply_text: &fault.reply_text(),
            class_id: fault.method.0,
            method_id: fault.method.1,
        });
        self.event = None;
        self.end = Some(end);
        self.state = ServerState::Closing;
    }

    fn finish(&mut self, end: ServerEnd) {
        self.state = ServerState::Ended;
        self.event = Some(ServerEvent::Ended(end));
    }

    fn send<'a>(&mut self, method: impl Into<Method<'a>>) {
        write_method(&mut self.output, 0, method);
    }
}

/// Protocol header of AMQP 0-9; RabbitMQ treats it as 0-9-1, and some old clients still send it.
const PROTOCOL_HEADER_0_9: [u8; 8] = *b"AMQP\x01\x01\x00\x09";
/// Class and method id of `connection.open`.
const OPEN_IDS: (u16, u16) = (10, 40);
