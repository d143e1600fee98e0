//! The handshake with a broker, in two steps: login up to `connection.tune`, then `connection.open`.
//!
//! A client names its virtual host only after its login has succeeded, so the two steps are separate.
//! [`amqp::ClientHandshake`] cannot be used because it needs the virtual host from the start.

use std::io;

use amqp::frame::{HEADER_LEN, MIN_FRAME_MAX, OVERHEAD, PROTOCOL_HEADER, write_method};
use amqp::handshake::{HANDSHAKE_FRAME_MAX, LOCALE};
use amqp::method::connection;
use amqp::{Capabilities, Credentials, Fault, FieldTable, Frame, FrameKind, Method, RawTable, ReplyCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use transport::Stream;

use super::connect::connect;
use crate::client_properties::ClientProperties;
use crate::config::PoolConfig;
use crate::pool::Endpoint;
use crate::refusal::{Refusal, announced_fault};

/// A connection whose credentials the broker has accepted, and which has no virtual host yet.
#[derive(Debug)]
pub(crate) struct LoggedInConnection {
    stream: Stream,
    tune: connection::Tune,
    pub(crate) server_properties: FieldTable,
}

/// Limits of a connection that is open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TunedLimits {
    pub(crate) channel_max: u16,
    pub(crate) frame_max: u32,
    pub(crate) heartbeat_secs: u16,
}

impl LoggedInConnection {
    /// Connects and logs in.
    pub(crate) async fn login(
        endpoint: &Endpoint,
        credentials: &Credentials,
        announced: &ClientProperties,
        config: &PoolConfig,
    ) -> Result<Self, Refusal> {
        let login = async {
            let (mut stream, mut input) = (Box::pin(connect(endpoint, config)).await?, Vec::new());
            let server_properties = start(&mut stream, &mut input, credentials, announced).await?;
            // A broker with authentication_failure_close sends a close method with the reason, so if it just closes the
            // stream, that is an outage (S7). Other brokers refuse a login by closing the stream.
            let explains = Capabilities::from_properties(&server_properties).authentication_failure_close;
            let closed = |refusal| match refusal {
                HandshakeError::Closed if !explains => {
                    HandshakeError::Said(Refusal::Login(credentials.mechanism.refusal_text()))
                }
                other => other,
            };
            let tune = match receive(&mut stream, &mut input).await.map_err(closed)? {
                Method::ConnectionTune(tune) => validate_tune(tune)?,
                other => return Err(unexpected(&other)),
            };
            Ok(Self { stream, tune, server_properties })
        };
        within(config, endpoint, login).await
    }

    /// Opens a virtual host.
    pub(crate) async fn open(
        mut self,
        virtual_host: &str,
        config: &PoolConfig,
    ) -> Result<(Stream, TunedLimits), Refusal> {
        let limits = self.limits(config);
        let open = async {
            let mut output = Vec::new();
            let TunedLimits { channel_max, frame_max, heartbeat_secs: heartbeat } = limits;
            write_method(&mut output, 0, connection::TuneOk { channel_max, frame_max, heartbeat });
            write_method(&mut output, 0, connection::Open { virtual_host, ..Default::default() });
            self.stream.write_all(&output).await?;
            match receive(&mut self.stream, &mut Vec::new()).await? {
                Method::ConnectionOpenOk(_) => Ok((self.stream, limits)),
                other => Err(unexpected(&other)),
            }
        };
        match tokio::time::timeout(config.connect_timeout, open).await {
            Ok(result) => result.map_err(HandshakeError::into_refusal),
            Err(_) => Err(Refusal::unreachable("connection.open timed out")),
        }
    }

    /// The lower of the broker's offer and the pool's preference; 0 means no limit. The pool asks for as many channels
    /// as possible, because a connection may later be dedicated to one client.
    fn limits(&self, config: &PoolConfig) -> TunedLimits {
        fn lower<N: Ord + Default + Copy>(offered: N, wanted: N) -> N {
            if offered == N::default() { wanted } else { offered.min(wanted) }
        }
        TunedLimits {
            channel_max: lower(self.tune.channel_max, u16::MAX),
            // The connection's task buffers whole frames, which exceed frame_max by their overhead.
            frame_max: lower(
                self.tune.frame_max,
                config.frame_max.clamp(MIN_FRAME_MAX, (transport::MAX_UNCONSUMED - OVERHEAD) as u32),
            ),
            heartbeat_secs: lower(self.tune.heartbeat, config.heartbeat_secs),
        }
    }
}

/// Reads a broker's first method, to check that it is up; returns its server-properties.
pub(crate) async fn probe(endpoint: &Endpoint, config: &PoolConfig) -> Result<FieldTable, Refusal> {
    let asking = async {
        let (mut stream, mut input) = (Box::pin(connect(endpoint, config)).await?, Vec::new());
        stream.write_all(&PROTOCOL_HEADER).await?;
        match receive(&mut stream, &mut input).await? {
            Method::ConnectionStart(start) => Ok(start.server_properties.decode()),
            other => Err(unexpected(&other)),
        }
    };
    within(config, endpoint, asking).await
}

/// Runs one step within the connect timeout.
async fn within<T>(
    config: &PoolConfig,
    endpoint: &Endpoint,
    step: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, Refusal> {
    // Boxed: the state of a handshake is large, and short-lived.
    match tokio::time::timeout(config.connect_timeout, Box::pin(step)).await {
        Ok(result) => result.map_err(|trouble| match trouble {
            HandshakeError::Said(refusal) => refusal,
            // With TLS 1.3, the broker's alert is lost if it closes the socket before it has read our data.
            HandshakeError::Closed if shows_certificate(endpoint, config) => Refusal::unreachable(
                format_args!("{endpoint}: closed during the handshake; it may not accept our certificate"),
            ),
            other => Refusal::unreachable(format_args!("{endpoint}: {other}")),
        }),
        Err(_) => Err(Refusal::unreachable(format_args!("{endpoint}: handshake timed out"))),
    }
}

fn shows_certificate(endpoint: &Endpoint, config: &PoolConfig) -> bool {
    endpoint.address.tls && config.transport.tls.as_ref().is_some_and(|tls| tls.has_certificate())
}

/// From the protocol header to start-ok; returns the broker's properties.
async fn start(
    stream: &mut Stream,
    input: &mut Vec<u8>,
    credentials: &Credentials,
    announced: &ClientProperties,
) -> Result<FieldTable, HandshakeError> {
    stream.write_all(&PROTOCOL_HEADER).await?;
    let mut output = Vec::new();
    let server_properties = match receive(stream, input).await? {
        Method::ConnectionStart(start) => {
            let offered = start.mechanisms.split(|&byte| byte == b' ');
            let mechanism = credentials.mechanism.name();
            if !offered.into_iter().any(|name| name == mechanism.as_bytes()) {
                return Err(HandshakeError::Said(Refusal::Login(credentials.mechanism.refusal_text())));
            }
            let properties = announced.properties().encode();
            let response = credentials.response();
            let start_ok = connection::StartOk {
                // The table was just encoded and is two levels deep, so it is well-formed.
                client_properties: RawTable::check(&properties).unwrap_or_default(),
                mechanism,
                response: response.expose(),
                locale: LOCALE,
            };
            write_method(&mut output, 0, start_ok);
            start.server_properties.decode()
        }
        other => return Err(unexpected(&other)),
    };
    let written = stream.write_all(&output).await;
    // The buffer held the password.
    output.fill(0);
    std::hint::black_box(&output);
    written?;
    Ok(server_properties)
}

/// Reads one method on channel 0, exactly to its end: the following bytes belong to the connection's task. A
/// `connection.close` is answered, and returned as an error with the broker's text.
pub(super) async fn receive<'i>(
    stream: &mut Stream,
    input: &'i mut Vec<u8>,
) -> Result<Method<'i>, HandshakeError> {
    loop {
        input.resize(HEADER_LEN, 0);
        stream.read_exact(input).await?;
        if input.starts_with(b"AMQP") {
            return Err(HandshakeError::Other("not an AMQP 0-9-1 server".to_owned()));
        }
        if input.starts_with(&TLS_ALERT) {
            return Err(HandshakeError::Other("it speaks TLS: its address begins with amqps://".to_owned()));
        }
        if input.starts_with(b"HTTP") {
            return Err(HandshakeError::Other(
                "the server speaks HTTP: give its AMQP port (5672)".to_owned(),
            ));
        }
        // Validates type and length before the payload is read.
        Frame::parse(input, HANDSHAKE_FRAME_MAX).map_err(|fault| HandshakeError::Other(fault.to_string()))?;
        let length = u32::from_be_bytes([input[3], input[4], input[5], input[6]]) as usize;
        input.resize(HEADER_LEN + length + 1, 0);
        stream.read_exact(&mut input[HEADER_LEN..]).await?;
        if input[0] != FrameKind::Heartbeat as u8 {
            break;
        }
    }
    let payload = &input[HEADER_LEN..input.len() - 1];
    let method = Method::decode(payload).map_err(|error| HandshakeError::Other(error.to_string()))?;
    let Method::ConnectionClose(close) = method else { return Ok(method) };
    let mut output = Vec::new();
    write_method(&mut output, 0, connection::CloseOk {});
    // The broker has given its reason; it does not matter whether it receives this.
    let _ = stream.write_all(&output).await;
    let fault = announced_fault(close.reply_code, close.reply_text, (close.class_id, close.method_id));
    // 10, 11 is connection.start-ok: a refusal of that concerns the login.
    let login =
        fault.code == ReplyCode::AccessRefused && (fault.method == (10, 11) || fault.method == (0, 0));
    Err(HandshakeError::Said(if login {
        Refusal::Login(fault.text.into_owned())
    } else {
        Refusal::Fault(fault)
    }))
}

/// Validates the limits that a broker offers, because other limits are derived from them.
fn validate_tune(tune: connection::Tune) -> Result<connection::Tune, HandshakeError> {
    if tune.frame_max != 0 && tune.frame_max < MIN_FRAME_MAX {
        let text = format!("it offers frame_max {}, lower than the minimum {MIN_FRAME_MAX}", tune.frame_max);
        return Err(HandshakeError::Other(text));
    }
    Ok(tune)
}

fn unexpected(method: &Method<'_>) -> HandshakeError {
    HandshakeError::Other(format!("unexpected {}", method.name()))
}

/// The first bytes of the TLS alert with which a TLS server replies to plain text (RFC 8446, 5.1): the content type of
/// alerts, and the major version that all versions of TLS send.
const TLS_ALERT: [u8; 2] = [21, 3];

/// Errors of a handshake.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The broker refused, with this text.
    Said(Refusal),
    /// The broker closed the stream.
    Closed,
    /// The broker violated the protocol.
    Other(String),
    Io(io::Error),
}

impl HandshakeError {
    pub(super) fn into_refusal(self) -> Refusal {
        match self {
            Self::Said(refusal) => refusal,
            other => Refusal::unreachable(other),
        }
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Said(refusal) => refusal.fmt(f),
            Self::Closed => f.write_str("closed during the handshake"),
            Self::Other(what) => f.write_str(what),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<Fault> for HandshakeError {
    fn from(fault: Fault) -> Self {
        Self::Other(fault.to_string())
    }
}
