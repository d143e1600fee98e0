//! Several TCP listening sockets behind one `accept`.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::Inherited;

/// Completed connections that the kernel queues; a burst of a few thousand clients must not be refused.
const BACKLOG: u32 = 4096;

/// How often the system chooses another port for the addresses of one host, since the port may already be in use on one of
/// them.
const ATTEMPTS: usize = 16;

/// Several TCP sockets, from which connections are taken in turn. One task at a time may accept.
#[derive(Debug, Default)]
pub struct TcpListeners {
    sockets: Vec<TcpListener>,
    /// Index of the socket that is polled first next time.
    next: AtomicUsize,
}

impl TcpListeners {
    /// Listens on each of these hosts and ports, on every address of the host that this machine has; `localhost` is
    /// 127.0.0.1 and `[::1]` (RFC 6761, 6.3). With port 0 the system chooses one, the same for all addresses of that
    /// host. Sockets with these addresses among those `inherited` are used as they are.
    ///
    /// # Errors
    /// A host has no address that can be bound, or one that is in use or not allowed.
    pub async fn bind(places: &[(&str, u16)], inherited: &Inherited) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for (host, port) in places {
            let addresses = addresses_of(host, *port).await?;
            sockets.extend(bind_all(&addresses, inherited)?);
        }
        Ok(Self { sockets, next: AtomicUsize::new(0) })
    }

    /// The addresses that were bound, in order.
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok())
    }

    /// Duplicates the sockets.
    pub(crate) fn share(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }

    /// Waits for the next connection to any of them.
    ///
    /// # Errors
    /// The error of that one connection, or a shortage of file descriptors; the listeners remain usable.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let first = self.next.load(Ordering::Relaxed);
        for step in 0..self.sockets.len() {
            let at = (first + step) % self.sockets.len();
            if let Poll::Ready(accepted) = self.sockets[at].poll_accept(context) {
                // A socket that always has connections must not starve the others.
                self.next.store(at + 1, Ordering::Relaxed);
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }
}

impl From<TcpListener> for TcpListeners {
    fn from(socket: TcpListener) -> Self {
        Self { sockets: vec![socket], next: AtomicUsize::new(0) }
    }
}

async fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        return Ok(both.map(|ip| SocketAddr::new(ip, port)).into());
    }
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Binds the addresses of one host.
fn bind_all(addresses: &[SocketAddr], inherited: &Inherited) -> io::Result<Vec<TcpListener>> {
    let mut attempt = 1;
    loop {
        match bind_once(addresses, inherited) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && addresses.len() > 1 && attempt < ATTEMPTS =>
            {
                let is_chosen_by_system = addresses.iter().all(|address| address.port() == 0);
                if !is_chosen_by_system {
                    return Err(error);
                }
                attempt += 1;
            }
            bound => return bound,
        }
    }
}

fn bind_once(addresses: &[SocketAddr], inherited: &Inherited) -> io::Result<Vec<TcpListener>> {
    let mut sockets: Vec<TcpListener> = Vec::new();
    let mut missing = io::Error::new(io::ErrorKind::NotFound, "host has no address");
    for address in addresses {
        let mut address = *address;
        if let Some(first) = sockets.first() {
            address.set_port(first.local_addr()?.port());
        }
        match bind(address, inherited) {
            Ok(socket) => sockets.push(socket),
            // A name may have addresses of other machines, and this machine may not support IPv6.
            Err(error) if is_unavailable(&error) => missing = error,
            Err(error) => return Err(error),
        }
    }
    if sockets.is_empty() { Err(missing) } else { Ok(sockets) }
}

fn is_unavailable(error: &io::Error) -> bool {
    // There is no `ErrorKind` for a family that the kernel was built without.
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// "Address family not supported by protocol" (errno(3)), on Linux.
const EAFNOSUPPORT: i32 = 97;

fn bind(address: SocketAddr, inherited: &Inherited) -> io::Result<TcpListener> {
    if let Some(socket) = inherited.take_tcp(address) {
        // An inherited socket gets the same backlog, whatever its creator has set.
        socket2::SockRef::from(&socket).listen(i32::try_from(BACKLOG).unwrap_or(i32::MAX))?;
        return TcpListener::from_std(socket);
    }
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // Connections in TIME_WAIT must not prevent a restarted process from binding its port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_ipv6() -> bool {
        std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
    }

    #[tokio::test]
    async fn localhost_is_both_loopback_addresses_on_one_port() {
        let listeners = TcpListeners::bind(&[("localhost", 0)], &Inherited::default()).await.unwrap();
        let addresses: Vec<_> = listeners.local_addresses().collect();
        assert_eq!(addresses.len(), if has_ipv6() { 2 } else { 1 });
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() != 0));
        assert!(addresses.iter().all(|address| address.port() == addresses[0].port()));
    }

    #[tokio::test]
    async fn connections_come_from_every_socket_in_turn() {
        let listeners =
            TcpListeners::bind(&[("127.0.0.1", 0), ("127.0.0.1", 0)], &Inherited::default()).await.unwrap();
        let addresses: Vec<_> = listeners.local_addresses().collect();
        let mut clients = Vec::new();
        for address in [addresses[0], addresses[0], addresses[1]] {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let mut reached = Vec::new();
        for _ in 0..clients.len() {
            reached.push(listeners.accept().await.unwrap().0.local_addr().unwrap());
        }
        assert_eq!(reached, [addresses[0], addresses[1], addresses[0]]);
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error_even_beside_one_that_is_free() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap().port();
        let error = TcpListeners::bind(&[("127.0.0.1", 0), ("127.0.0.1", taken)], &Inherited::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_host_without_an_address_of_this_machine_is_an_error() {
        // TEST-NET-1 (RFC 5737).
        assert!(TcpListeners::bind(&[("192.0.2.1", 0)], &Inherited::default()).await.is_err());
    }
}
