//! Where HTTP connections come from: a TCP port or a Unix socket, with or without TLS.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use transport::tls::ServerTls;
use transport::{Stream, TcpListeners};

use crate::api::Caller;

/// A bound listener. A Unix socket's file is removed when the listener is dropped.
#[derive(Debug)]
pub struct AdminListener {
    socket: Socket,
    tls: Option<Arc<ServerTls>>,
    /// `max-age` of Strict-Transport-Security; if zero, the header is not sent.
    strict: Duration,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListeners),
    Unix(UnixSocket),
}

/// A listening Unix socket and its file.
#[derive(Debug)]
struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminListener {
    /// Listens on TCP ports: see [`TcpListeners::bind`].
    ///
    /// # Errors
    ///
    /// One of the addresses cannot be bound.
    pub async fn tcp(places: &[(&str, u16)]) -> io::Result<Self> {
        TcpListeners::bind(places).await.map(|listeners| Self::plain(Socket::Tcp(listeners)))
    }

    /// Listens on a Unix socket, replacing one that a process left behind when it ended.
    ///
    /// # Errors
    ///
    /// Another process listens on the path, something other than a socket has it, or the socket cannot be
    /// created.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        remove_stale(path).await?;
        let listener = UnixListener::bind(path)?;
        Ok(Self::plain(Socket::Unix(UnixSocket { listener, path: path.to_owned() })))
    }

    fn plain(socket: Socket) -> Self {
        Self { socket, tls: None, strict: Duration::ZERO }
    }

    /// The same listener over TLS. For the time `strict`, browsers then use only TLS for this host, on any port
    /// (RFC 6797); if it is zero, Strict-Transport-Security is not sent.
    #[must_use]
    pub fn over_tls(self, tls: Arc<ServerTls>, strict: Duration) -> Self {
        Self { tls: Some(tls), strict, ..self }
    }

    /// The bound TCP addresses; empty for a Unix socket.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listeners) => listeners.local_addresses().collect(),
            Socket::Unix(_) => Vec::new(),
        }
    }

    /// The `max-age` of Strict-Transport-Security for every response, if the header is to be sent.
    pub(crate) fn strict(&self) -> Option<Duration> {
        // A fraction of a second would round down to 0, which makes browsers forget the policy.
        (self.tls.is_some() && self.strict.as_secs() > 0).then_some(self.strict)
    }

    pub(crate) async fn accept(&self) -> io::Result<Arrived> {
        let stream = match &self.socket {
            // Responses are written whole, so waiting to fill a packet (Nagle) would only delay them;
            // `from_tcp` disables it.
            Socket::Tcp(listener) => Stream::from_tcp(listener.accept().await?.0)?,
            Socket::Unix(socket) => Stream::Unix(socket.listener.accept().await?.0),
        };
        Ok(Arrived { stream, tls: self.tls.clone() })
    }
}

impl From<TcpListener> for AdminListener {
    fn from(listener: TcpListener) -> Self {
        Self::plain(Socket::Tcp(listener.into()))
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // The file may be gone already, and a destructor cannot report an error.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An accepted connection, before the TLS handshake.
pub(crate) struct Arrived {
    stream: Stream,
    tls: Option<Arc<ServerTls>>,
}

impl Arrived {
    /// The peer's address, and whether it is on this machine.
    pub(crate) fn caller(&self) -> Caller {
        if let Stream::Unix(_) = self.stream {
            return Caller { ip: None, is_local: true };
        }
        let ip = self.stream.addresses().map(|(_, peer)| peer.ip().to_canonical());
        Caller { ip, is_local: ip.is_some_and(|ip| ip.is_loopback()) }
    }

    pub(crate) fn is_over_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The stream that carries HTTP, after the handshake if there is TLS. The handshake takes as long as the
    /// client pleases.
    pub(crate) async fn stream(self) -> io::Result<Stream> {
        match self.tls {
            // A client certificate does not log anybody in here.
            Some(tls) => Ok(tls.accept(self.stream).await?.stream),
            None => Ok(self.stream),
        }
    }
}

/// Removes the path if it is a socket that no process listens on; leaves anything else alone.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = AdminListener::unix(&path).await.unwrap();
        assert_eq!(AdminListener::unix(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_in_the_way_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert_eq!(AdminListener::unix(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }
}
