//! The sockets that accept connections: TCP and Unix sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::{DescriptorShare, Inherited, Peer, Stream, TcpListeners};

/// Bound sockets of one listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListeners),
    /// A Unix socket, and its file, which is removed when neither the listener nor its [`SharedSockets`] are left.
    Unix(UnixListener, Arc<SocketFile>),
}

/// The file of a Unix socket; removed when dropped, if it is this process's own.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Whether this process created it. False for a socket that the process was given, or has given to another.
    is_own: AtomicBool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_own.load(Ordering::Relaxed) {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Duplicates of a listener's sockets, for another process that will accept from them. Clients can connect, and wait, for
/// as long as this value lives, even after the listener is dropped: the file of a Unix socket stays as well.
#[derive(Debug)]
pub struct SharedSockets {
    /// The file of a Unix socket. Dropped before the sockets: once they are closed, the next process may bind the path.
    file: Option<Arc<SocketFile>>,
    sockets: Vec<OwnedFd>,
}

impl SharedSockets {
    /// The sockets, which stay open for as long as this lives.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// Whether the listener has a file, without which its socket is unreachable.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Sets whether this process owns the file of a Unix socket. The file of another process, which may accept now, is not
    /// removed.
    pub fn set_own(&self, is_own: bool) {
        if let Some(file) = &self.file {
            file.is_own.store(is_own, Ordering::Relaxed);
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

    /// Binds a Unix socket at `path`, unless one of those `inherited` has it; one whose file is gone is unreachable, and
    /// not used. The file of a killed process is replaced; one on which a process still listens is not.
    ///
    /// # Errors
    /// Fails if the address is in use or the file cannot be created.
    pub async fn bind_unix(path: &Path, inherited: &Inherited) -> io::Result<Self> {
        let inherited = inherited.take_unix(path).filter(|_| is_socket(path));
        let is_own = inherited.is_none();
        let listener = match inherited {
            Some(listener) => UnixListener::from_std(listener),
            None => match UnixListener::bind(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale_socket(path).await => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                other => other,
            },
        }?;
        let file = SocketFile { path: path.to_owned(), is_own: AtomicBool::new(is_own) };
        Ok(Self::Unix(listener, Arc::new(file)))
    }

    /// The bound TCP addresses, in order; none for a Unix socket.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Tcp(listeners) => listeners.local_addresses().collect(),
            Self::Unix(..) => Vec::new(),
        }
    }

    /// Duplicates its sockets. The addresses stay bound until the duplicates are closed as well.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn share(&self) -> io::Result<SharedSockets> {
        match self {
            Self::Tcp(listeners) => Ok(SharedSockets { file: None, sockets: listeners.share()? }),
            Self::Unix(listener, file) => Ok(SharedSockets {
                file: Some(Arc::clone(file)),
                sockets: vec![listener.as_fd().try_clone_to_owned()?],
            }),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The error of a single connection, or a lack of file descriptors: of the system, or of this share. The listener
    /// remains usable.
    pub async fn accept(&self, share: DescriptorShare) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                share.check(&stream)?;
                Ok((Stream::from_tcp(stream)?, Peer::Ip(address)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                share.check(&stream)?;
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

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Whether `path` is a socket that no process listens on.
async fn is_stale_socket(path: &Path) -> bool {
    is_socket(path)
        && UnixStream::connect(path)
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_file_left_behind_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        let bound = Listener::bind_unix(&path, &Inherited::default()).await;
        assert_eq!(bound.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_socket_that_is_given_to_another_keeps_its_file_and_its_clients() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let before = Listener::bind_unix(&path, &Inherited::default()).await.unwrap();
        let client = UnixStream::connect(&path).await.unwrap();
        let inherited = Inherited::default();
        let shared = before.share().unwrap();
        for socket in shared.sockets() {
            inherited.add(socket.try_clone().unwrap()).unwrap();
        }
        let after = Listener::bind_unix(&path, &inherited).await.unwrap();
        shared.set_own(false);
        drop((before, shared));
        assert!(after.accept(DescriptorShare::Clients).await.is_ok());
        after.share().unwrap().set_own(true);
        drop((after, client));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_client_that_comes_when_the_listener_has_gone_waits_for_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let before = Listener::bind_unix(&path, &Inherited::default()).await.unwrap();
        let shared = before.share().unwrap();
        drop(before);
        let _client = UnixStream::connect(&path).await.unwrap();
        let inherited = Inherited::default();
        inherited.add(shared.sockets()[0].try_clone().unwrap()).unwrap();
        let after = Listener::bind_unix(&path, &inherited).await.unwrap();
        assert!(after.accept(DescriptorShare::Clients).await.is_ok());
        drop(after);
        assert!(path.exists(), "another process may still be given the socket");
        drop(shared);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn an_ending_listener_leaves_the_socket_file_of_an_inherited_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let before = Listener::bind_unix(&path, &Inherited::default()).await.unwrap();
        let inherited = Inherited::default();
        inherited.add(before.share().unwrap().sockets()[0].try_clone().unwrap()).unwrap();
        drop(Listener::bind_unix(&path, &inherited).await.unwrap());
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn a_socket_whose_file_is_gone_is_bound_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let inherited = Inherited::default();
        inherited.add(std::os::unix::net::UnixListener::bind(&path).unwrap().into()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _listener = Listener::bind_unix(&path, &inherited).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
    }
}
