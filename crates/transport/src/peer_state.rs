//! Detects that a peer has disconnected, without reading.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{DuplexStream, Interest, Ready};

use crate::stream::Stream;

/// The peer's side of a connection, as far as the kernel knows. Unread bytes may precede its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// No end has been noticed.
    Open,
    /// The peer has closed its sending side. It may still read, as far as TCP shows.
    Closed,
    /// The peer has reset the connection.
    Reset,
}

/// Interval at which a peer that is not being read is checked. Otherwise its disconnection would only be noticed by the
/// next write.
pub const PEER_CHECK: Duration = Duration::from_secs(5);

/// A stream that may know of its end before it is read.
pub trait PeerWatch {
    /// The state of the peer's side. Makes no system call.
    fn peer_state(&self) -> PeerState {
        PeerState::Open
    }
}

impl PeerWatch for DuplexStream {}

impl PeerWatch for Stream {
    fn peer_state(&self) -> PeerState {
        let interest = Interest::READABLE | Interest::WRITABLE | Interest::ERROR;
        match self {
            Self::Tcp(stream) => state_of(stream.ready(interest)),
            Self::Unix(stream) => state_of(stream.ready(interest)),
            Self::Memory(_) => PeerState::Open,
            Self::Tls(stream) => stream.get_ref().0.peer_state(),
        }
    }
}

/// The runtime records that the peer has closed its side, whether or not a task waits for it.
fn state_of(ready: impl Future<Output = io::Result<Ready>>) -> PeerState {
    match pin!(ready).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) if ready.is_error() => PeerState::Reset,
        Poll::Ready(Ok(ready)) if ready.is_read_closed() => PeerState::Closed,
        _ => PeerState::Open,
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    /// Waits for the runtime to notice.
    async fn comes_to(stream: &Stream, state: PeerState) {
        while stream.peer_state() != state {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_tcp_peers_end_is_noticed_behind_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = Stream::Tcp(listener.accept().await.unwrap().0);
        peer.write_all(b"unread").await.unwrap();
        let Stream::Tcp(socket) = &stream else { unreachable!() };
        socket.readable().await.unwrap();
        assert_eq!(stream.peer_state(), PeerState::Open);
        peer.shutdown().await.unwrap();
        comes_to(&stream, PeerState::Closed).await;
        peer.set_zero_linger().unwrap();
        drop(peer);
        comes_to(&stream, PeerState::Reset).await;
    }

    #[tokio::test]
    async fn a_unix_peers_end_is_noticed_behind_unread_bytes() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let stream = Stream::Unix(stream);
        peer.write_all(b"unread").await.unwrap();
        assert_eq!(stream.peer_state(), PeerState::Open);
        drop(peer);
        comes_to(&stream, PeerState::Closed).await;
    }
}
