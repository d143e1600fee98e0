//! Listening sockets that a process was given when it started, by a service manager or by the previous process. Clients
//! that connect while no process accepts from such a socket wait, instead of being refused.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use socket2::{SockAddr, Socket, Type};

/// Sockets by their addresses, until a listener with that address takes them.
#[derive(Debug, Default)]
pub struct Inherited(Mutex<Vec<(ListenAddress, OwnedFd)>>);

/// The address of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Inherited {
    /// Adds a socket.
    ///
    /// # Errors
    /// It is not a stream socket that listens on a TCP address or a path.
    pub fn add(&self, socket: OwnedFd) -> io::Result<()> {
        let socket = Socket::from(socket);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a listening stream socket"));
        }
        let place = place_of(&socket.local_addr()?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "neither a TCP nor a Unix socket"))?;
        socket.set_nonblocking(true)?;
        self.0.lock().push((place, socket.into()));
        Ok(())
    }

    /// Takes the TCP socket with this address, if there is one left.
    pub(crate) fn take_tcp(&self, address: SocketAddr) -> Option<TcpListener> {
        self.take(&ListenAddress::Tcp(address)).map(TcpListener::from)
    }

    /// Takes the Unix socket with this path, if there is one left.
    pub(crate) fn take_unix(&self, path: &Path) -> Option<UnixListener> {
        self.take(&ListenAddress::Unix(path.to_owned())).map(UnixListener::from)
    }

    fn take(&self, place: &ListenAddress) -> Option<OwnedFd> {
        let mut sockets = self.0.lock();
        let at = sockets.iter().position(|(own, _)| own == place)?;
        Some(sockets.swap_remove(at).1)
    }

    /// Closes the sockets that no listener has taken; returns their addresses.
    pub fn close_rest(&self) -> Vec<String> {
        self.0.lock().drain(..).map(|(place, _)| place.to_string()).collect()
    }
}

fn place_of(address: &SockAddr) -> Option<ListenAddress> {
    match address.as_socket() {
        Some(address) => Some(ListenAddress::Tcp(address)),
        None => address.as_pathname().map(|path| ListenAddress::Unix(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DescriptorShare, Listener};

    #[tokio::test]
    async fn a_listener_takes_the_socket_of_its_address_and_the_clients_that_wait_there() {
        let before = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = before.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let inherited = Inherited::default();
        inherited.add(before.into()).unwrap();
        let listener = Listener::bind_tcp(&[("127.0.0.1", address.port())], &inherited).await.unwrap();
        let (_, peer) = listener.accept(DescriptorShare::Clients).await.unwrap();
        assert_eq!(peer.ip(), Some(client.local_addr().unwrap().ip()));
        assert_eq!(inherited.close_rest(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_socket_that_no_listener_wants_is_closed() {
        let before = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = before.local_addr().unwrap();
        let inherited = Inherited::default();
        inherited.add(before.into()).unwrap();
        assert!(Listener::bind_tcp(&[("127.0.0.1", 0)], &inherited).await.is_ok());
        assert_eq!(inherited.close_rest(), [address.to_string()]);
        assert!(std::net::TcpStream::connect(address).is_err());
    }

    #[test]
    fn only_sockets_that_listen_are_taken() {
        let inherited = Inherited::default();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(inherited.add(udp.into()).is_err());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(inherited.add(client.into()).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(inherited.add(file.into()).is_err());
    }
}
