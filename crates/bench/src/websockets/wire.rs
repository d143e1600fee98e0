//! A client's WebSocket. Has no buffer while nothing is in transit, so that only descriptors limit a fleet.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use transport::HostAndPort;
use websocket::handshake::ClientRequest;
use websocket::{DecoderLimits, FrameDecoder, MessageKind, Role, WebSocketEvent, encode};

use super::error::MemberError;
use super::target::Target;

/// Bytes of one read: far more than a message of this study.
const READ: usize = 16 * 1024;

/// A connection after its upgrade.
pub(super) struct Wire {
    stream: TcpStream,
    decoder: FrameDecoder,
    /// Input that the decoder has not consumed yet.
    left: Vec<u8>,
    /// Payload received so far; the caller removes the parts that it handles.
    pub(super) payload: Vec<u8>,
}

impl Wire {
    /// Connects from `source`, if that is given, and upgrades.
    ///
    /// # Errors
    /// There is no connection, or no upgrade.
    pub(super) async fn open(
        target: &Target,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<Self, MemberError> {
        let stream = connect(address, source).await.map_err(MemberError::Connect)?;
        let mut wire = Self {
            stream,
            decoder: FrameDecoder::new(Role::Client, DecoderLimits::NONE),
            left: Vec::new(),
            payload: Vec::new(),
        };
        let request = ClientRequest {
            host: HostAndPort(&target.host, target.port).to_string(),
            target: target.path.clone(),
            origin: None,
            protocols: target.protocol.subprotocol().into_iter().map(str::to_owned).collect(),
            // The nonce would prevent caches from answering; there are none on the way to the server.
            nonce: *b"a fleet's nonce.",
        };
        wire.write(&request.bytes()).await?;
        loop {
            let input = wire.read().await?;
            match request.validate(&input).map_err(MemberError::Upgrade)? {
                Some(accepted) => {
                    wire.decode(&input[accepted.len..])?;
                    return Ok(wire);
                }
                None => wire.left = input,
            }
        }
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, kind: MessageKind, payload: &[u8]) -> Result<(), MemberError> {
        let mut frame = Vec::with_capacity(payload.len() + websocket::MAX_HEADER_LEN);
        // An unpredictable key is unnecessary, since this payload is harmless to intermediaries.
        encode::message(&mut frame, Some([0x5a; 4]), kind, payload);
        self.write(&frame).await
    }

    /// Waits for more payload or a control frame.
    ///
    /// # Errors
    /// The server closed the connection, or violated the protocol.
    pub(super) async fn receive(&mut self) -> Result<(), MemberError> {
        let input = self.read().await?;
        self.decode(&input)
    }

    /// The remaining input, followed by the next read. Cancel-safe.
    async fn read(&mut self) -> Result<Vec<u8>, MemberError> {
        loop {
            self.stream.readable().await.map_err(MemberError::Lost)?;
            let mut buffer = [0; READ];
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Err(MemberError::EndOfStream),
                Ok(bytes) => {
                    let mut input = std::mem::take(&mut self.left);
                    input.extend_from_slice(&buffer[..bytes]);
                    return Ok(input);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(MemberError::Lost(error)),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), MemberError> {
        self.stream.write_all(bytes).await.map_err(MemberError::Lost)
    }

    fn decode(&mut self, input: &[u8]) -> Result<(), MemberError> {
        let mut taken = 0;
        loop {
            let step = self.decoder.decode(&input[taken..], &mut self.payload);
            let step = step.map_err(MemberError::WebSocket)?;
            taken += step.taken;
            match step.event {
                None => break,
                Some(WebSocketEvent::Ping(ping)) => {
                    let mut pong = Vec::new();
                    encode::pong(&mut pong, Some([0x5a; 4]), ping.payload());
                    // If the socket has no room for it, the server is not reading.
                    let _ = self.stream.try_write(&pong);
                }
                Some(WebSocketEvent::Close(close)) => return Err(MemberError::Closed(close)),
                Some(
                    WebSocketEvent::MessageStart(_)
                    | WebSocketEvent::MessageEnd
                    | WebSocketEvent::More
                    | WebSocketEvent::Pong(_),
                ) => {}
            }
        }
        self.left = input[taken..].to_vec();
        Ok(())
    }
}

async fn connect(address: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if let Some(source) = source {
        socket.bind(source)?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
