//! The sockets on which connections come in: TCP and Unix sockets.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use transport::{Peer, Stream, TcpListeners};

/// Bound sockets of one listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListeners),
    /// A Unix socket, and its file, which is removed with the listener.
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket; removed when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Binds TCP ports: see [`TcpListeners::bind`].
    ///
    /// # Errors
    /// Fails if one of them cannot be bound.
    pub async fn bind_tcp(places: &[(&str, u16)]) -> io::Result<Self> {
        TcpListeners::bind(places).await.map(Self::Tcp)
    }

    /// Binds a Unix socket at `path`. A socket file left behind by a killed process is replaced; one that a
    /// process still listens on is not.
    ///
    /// # Errors
    /// Fails if the address is in use or the file cannot be created.
    pub async fn bind_unix(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path).await => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            other => other,
        }?;
        Ok(Self::Unix(listener, SocketFile(path.to_owned())))
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

        let listener = Listener::bind_unix(&path).await.unwrap();
        assert_eq!(Listener::bind_unix(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        assert!(Listener::bind_unix(&path).await.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
