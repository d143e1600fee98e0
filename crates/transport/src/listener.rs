//! The sockets on which connections come in: TCP and Unix sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::{Inherited, Peer, Stream, TcpListeners};

/// Bound sockets of one listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListeners),
    /// A Unix socket, and its file, which is removed with the listener.
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket; removed when dropped, unless another process listens there now.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    is_handed_over: Arc<AtomicBool>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_handed_over.load(Ordering::Relaxed) {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The sockets of a listener once more, for another process that is to accept from them.
#[derive(Debug)]
pub struct SharedSockets {
    sockets: Vec<OwnedFd>,
    /// Of the file of a Unix socket.
    is_handed_over: Option<Arc<AtomicBool>>,
}

impl SharedSockets {
    /// The sockets, which stay open for as long as this lives.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// Called when the other process accepts: the file of a Unix socket is left to it.
    pub fn hand_over(&self) {
        if let Some(flag) = &self.is_handed_over {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

impl Listener {
    /// Binds TCP ports: see [`TcpListeners::bind`].
    ///
    /// # Errors
    /// Fails if one of them cannot be bound.
    pub async fn bind_tcp(places: &[(&str, u16)], inherited: &Inherited) -> io::Result<Self> {
        TcpListeners::bind(places, inherited).await.map(Self::Tcp)
    }

    /// Binds a Unix socket at `path`, if it is not among those `inherited`. A socket file left behind by a killed process is
    /// replaced; one that a process still listens on is not.
    ///
    /// # Errors
    /// Fails if the address is in use or the file cannot be created.
    pub async fn bind_unix(path: &Path, inherited: &Inherited) -> io::Result<Self> {
        let listener = match inherited.take_unix(path) {
            Some(listener) => UnixListener::from_std(listener),
            None => match UnixListener::bind(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path).await => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                other => other,
            },
        }?;
        Ok(Self::Unix(listener, SocketFile { path: path.to_owned(), is_handed_over: Arc::default() }))
    }

    /// The bound TCP addresses, in order; none for a Unix socket.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Tcp(listeners) => listeners.local_addresses().collect(),
            Self::Unix(..) => Vec::new(),
        }
    }

    /// Its sockets once more. The addresses stay bound until these are closed as well.
    ///
    /// # Errors
    /// There is no file descriptor left.
    pub fn share(&self) -> io::Result<SharedSockets> {
        match self {
            Self::Tcp(listeners) => Ok(SharedSockets { sockets: listeners.share()?, is_handed_over: None }),
            Self::Unix(listener, file) => Ok(SharedSockets {
                sockets: vec![listener.as_fd().try_clone_to_owned()?],
                is_handed_over: Some(Arc::clone(&file.is_handed_over)),
            }),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Fails for that one connection, or for lack of file descriptors; the listener remains usable.
    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Stream::from_tcp(stream)?, Peer::Ip(address)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Peer::Unix))
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self::Tcp(socket.into())
    }
}

/// Whether `path` is a socket that no process listens on.
async fn is_left_over(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket
        && UnixStream::connect(path)
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_file_left_behind_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file");

        let nothing = Inherited::default();
        let listener = Listener::bind_unix(&path, &nothing).await.unwrap();
        assert_eq!(Listener::bind_unix(&path, &nothing).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        let bound = Listener::bind_unix(&path, &Inherited::default()).await;
        assert_eq!(bound.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_socket_that_is_handed_over_keeps_its_file_and_its_clients() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let before = Listener::bind_unix(&path, &Inherited::default()).await.unwrap();
        let client = UnixStream::connect(&path).await.unwrap();
        let inherited = Inherited::default();
        let shared = before.share().unwrap();
        for socket in shared.sockets() {
            inherited.add(socket.try_clone().unwrap()).unwrap();
        }
        let after = Listener::bind_unix(&path, &inherited).await.unwrap();
        shared.hand_over();
        drop((before, shared));
        assert!(after.accept().await.is_ok());
        drop((after, client));
        assert!(!path.exists());
    }
}
