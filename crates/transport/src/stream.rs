//! Sockets of every kind behind one type.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

use crate::DescriptorShare;
use crate::tls::explain_open;

/// A connected socket, with or without TLS.
#[derive(Debug)]
pub enum Stream {
    /// TCP with TCP_NODELAY: writes are coalesced here, not in the kernel.
    Tcp(TcpStream),
    /// A Unix domain socket.
    Unix(UnixStream),
    /// Within the process, for simulations.
    Memory(DuplexStream),
    /// TLS over one of the others. Boxed, so that connections without TLS do not pay for its size.
    Tls(Box<TlsStream<Stream>>),
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A host and port.
    Ip(SocketAddr),
    /// A process on this machine, through a Unix socket.
    Unix,
}

impl Peer {
    /// Whether the peer is on this machine, as is required of the `guest` user.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix => true,
        }
    }

    /// The peer's address, without its port.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(address.ip()),
            Self::Unix => None,
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

/// How to reach a server.
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Time after which the attempt to connect is abandoned, whatever the number of the server's addresses.
    pub timeout: Duration,
    /// A connection is probed after this idle time (TCP keepalive). TCP_USER_TIMEOUT is not set: it would end a connection
    /// whose peer is alive but does not read for a while, such as a RabbitMQ in a memory alarm.
    pub keepalive: Duration,
    /// The share of file descriptors that the connection takes one from.
    pub share: DescriptorShare,
}

impl Stream {
    /// Wraps an accepted TCP connection.
    ///
    /// # Errors
    /// If the socket is already gone.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Connects to `host`:`port`: to the first of its addresses that accepts. The next address is tried when one fails, or
    /// does not answer for a moment.
    ///
    /// # Errors
    /// The last error of an address, or [`io::ErrorKind::TimedOut`]. EMFILE if the share has no descriptor left.
    pub async fn connect(host: &str, port: u16, options: ConnectOptions) -> io::Result<Self> {
        let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no address for {host}")));
        }
        let stream = tokio::time::timeout(options.timeout, first_to_accept(&addresses, options.share)).await;
        let silent = || format!("no answer from {host}:{port} in time");
        let stream = stream.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, silent())))?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(options.keepalive))?;
        Self::from_tcp(stream)
    }

    /// Waits for the first byte from the peer without consuming it. `None` at the end of the stream, and for streams other
    /// than TCP, which cannot tell.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn first_byte(&self) -> io::Result<Option<u8>> {
        let Self::Tcp(stream) = self else { return Ok(None) };
        let mut first = [0];
        let bytes = stream.peek(&mut first).await?;
        Ok((bytes > 0).then_some(first[0]))
    }

    /// Duplicates the socket, for another process that continues with it when this one has dropped the stream.
    ///
    /// # Errors
    /// The stream has no socket, or uses TLS, whose state is in this process; or no descriptor is left.
    pub fn share_socket(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(stream) => stream.as_fd().try_clone_to_owned(),
            Self::Unix(stream) => stream.as_fd().try_clone_to_owned(),
            Self::Memory(_) | Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Wraps a connected TCP or Unix socket that another process has handed over.
    ///
    /// # Errors
    /// The socket is neither, or already closed. Call it within a runtime.
    pub fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        let kind = SockRef::from(&socket).domain()?;
        SockRef::from(&socket).set_nonblocking(true)?;
        if kind == Domain::UNIX {
            return Ok(Self::Unix(UnixStream::from_std(socket.into())?));
        }
        Self::from_tcp(TcpStream::from_std(socket.into())?)
    }

    /// The local and the remote address of a TCP connection, as the socket has them.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => Some((stream.local_addr().ok()?, stream.peer_addr().ok()?)),
            Self::Unix(_) | Self::Memory(_) => None,
            Self::Tls(stream) => stream.get_ref().0.addresses(),
        }
    }
}

/// How long an address may be silent before the next one is tried as well (RFC 8305, section 5: Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to one of these addresses, of which there is at least one. Dropping the future cancels all attempts.
async fn first_to_accept(addresses: &[SocketAddr], share: DescriptorShare) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    let mut left = addresses.iter().copied();
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    loop {
        let next = left.next();
        if let Some(address) = next {
            attempts.spawn(connect_to(address, share));
        }
        let attempt = match next {
            Some(_) => tokio::time::timeout(ATTEMPT_DELAY, attempts.join_next()).await.ok(),
            None => Some(attempts.join_next().await),
        };
        match attempt {
            Some(Some(Ok(Ok(stream)))) => return Ok(stream),
            Some(Some(Ok(Err(error)))) => last_error = error,
            Some(Some(Err(error))) => last_error = error.into(),
            // All attempts have failed.
            Some(None) => return Err(last_error),
            // The address has not answered yet.
            None => {}
        }
    }
}

async fn connect_to(address: SocketAddr, share: DescriptorShare) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // Before waiting for an answer: there may be as many pending attempts as clients.
    share.check(&socket)?;
    socket.connect(address).await
}

macro_rules! delegate {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
            Stream::Memory($stream) => $call,
            Stream::Tls($stream) => $call,
        }
    };
}

/// Most AMQP clients close their socket without a TLS close_notify. AMQP marks its own end, so truncation would not go
/// unnoticed: this counts as an ordinary end of stream.
fn eof_without_close_notify(read: io::Result<()>) -> io::Result<()> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(explain_open(error)),
        other => other,
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => Pin::new(stream).poll_read(cx, buf)).map(eof_without_close_notify)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// An address that does not answer: its accept queue is full, and no connection is accepted.
    async fn silent() -> (SocketAddr, tokio::net::TcpListener, Vec<TcpStream>) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(connected) =
            tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await
        {
            waiting.push(connected.unwrap());
        }
        (address, listener, waiting)
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_is_silent_or_refuses() {
        let (silent, _listener, _waiting) = silent().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let accepting = listener.local_addr().unwrap();
        let refusing = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        for addresses in [&[silent, refusing, accepting][..], &[refusing, accepting], &[accepting, silent]] {
            let stream = first_to_accept(addresses, DescriptorShare::Others).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), accepting);
        }
        let error = first_to_accept(&[refusing, refusing], DescriptorShare::Others).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_socket_converted_back_to_a_stream_keeps_its_type() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (unix, unix_peer) = UnixStream::pair().unwrap();
        let tcp_peer = listener.accept().await.unwrap().0;
        for (stream, peer) in
            [(Stream::Tcp(tcp), Stream::Tcp(tcp_peer)), (Stream::Unix(unix), Stream::Unix(unix_peer))]
        {
            let (is_tcp, mut peer) = (matches!(stream, Stream::Tcp(_)), peer);
            let socket = stream.share_socket().unwrap();
            drop(stream);
            let mut again = Stream::from_socket(socket).unwrap();
            assert_eq!(matches!(again, Stream::Tcp(_)), is_tcp);
            peer.write_all(b"x").await.unwrap();
            assert_eq!(again.read_u8().await.unwrap(), b'x');
        }
    }
}
