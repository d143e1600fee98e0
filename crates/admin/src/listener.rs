//! Where HTTP connections come from: a TCP port or a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::api::Caller;

/// A bound listener. A Unix socket's file is removed when the listener is dropped.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixSocket),
}

/// A listening Unix socket and its file.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens on a TCP port; port 0 lets the system choose.
    ///
    /// # Errors
    ///
    /// The host has no address, or none of its addresses can be bound.
    pub async fn tcp(host: &str, port: u16) -> io::Result<Self> {
        TcpListener::bind((host, port)).await.map(Self::Tcp)
    }

    /// Listens on a Unix socket, in place of one that an ended process left behind.
    ///
    /// # Errors
    ///
    /// Another process listens there, something else has that path, or it cannot be created.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        remove_stale(path).await?;
        let listener = UnixListener::bind(path)?;
        Ok(Self::Unix(UnixSocket { listener, path: path.to_owned() }))
    }

    /// The TCP address that was bound, `None` for a Unix socket.
    ///
    /// # Errors
    ///
    /// The system does not tell.
    pub fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Unix(_) => Ok(None),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are written whole; waiting to fill a packet would only delay them.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(socket) => Ok(Stream::Unix(socket.listener.accept().await?.0)),
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket that nobody listens on, and nothing else.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// An accepted connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Who is at the other end.
    pub(crate) fn caller(&self) -> Caller {
        match self {
            Self::Tcp(stream) => {
                let ip = stream.peer_addr().ok().map(|peer| peer.ip().to_canonical());
                Caller { ip, is_local: ip.is_some_and(|ip| ip.is_loopback()) }
            }
            Self::Unix(_) => Caller { ip: None, is_local: true },
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::unix(&path).await.unwrap();
        assert_eq!(Listener::unix(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_in_the_way_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert_eq!(Listener::unix(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }
}
