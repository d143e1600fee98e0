//! The connection to the upstream server of a relay.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use proxy_protocol::{ProxyHeader, ProxyVersion};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use transport::{ConnectOptions, DescriptorShare, Peer, Stream};

use super::{RelayConfig, RelayUpstream};

/// Idle time after which the kernel probes the upstream, to detect one that vanished without closing.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Connects, and sends the client's address to the upstream if configured. `listener` is the address that the
/// client connected to, if it has one.
///
/// # Errors
/// Returns why there is no connection; [`io::ErrorKind::TimedOut`] if the upstream did not answer.
pub(super) async fn connect(
    config: &RelayConfig,
    client: Peer,
    listener: Option<SocketAddr>,
) -> io::Result<Stream> {
    let connecting = async {
        let mut header = Vec::new();
        if let Some(version) = config.proxy_protocol {
            write_header(version, client, listener, &mut header);
        }
        // Sent before TLS, as receivers expect it.
        match &config.upstream {
            RelayUpstream::Tcp { host, port } => over_tcp(host, *port, config.connect_timeout, &header).await,
            RelayUpstream::Tls { host, port, tls } => {
                let stream = over_tcp(host, *port, config.connect_timeout, &header).await?;
                tls.connect(stream, host).await
            }
            RelayUpstream::Unix(path) => {
                let mut stream = UnixStream::connect(path).await?;
                DescriptorShare::Clients.check(&stream)?;
                stream.write_all(&header).await?;
                Ok(Stream::Unix(stream))
            }
        }
    };
    // Boxed: the state of a TLS handshake is large and needed only briefly.
    match tokio::time::timeout(config.connect_timeout, Box::pin(connecting)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn over_tcp(host: &str, port: u16, timeout: Duration, header: &[u8]) -> io::Result<Stream> {
    let options = ConnectOptions { timeout, keepalive: KEEPALIVE, share: DescriptorShare::Clients };
    let mut stream = Stream::connect(host, port, options).await?;
    stream.write_all(header).await?;
    Ok(stream)
}

/// [`proxy_protocol::write`] makes the address families equal.
fn write_header(version: ProxyVersion, client: Peer, listener: Option<SocketAddr>, out: &mut Vec<u8>) {
    let header = match client {
        Peer::Unix => ProxyHeader::Local,
        Peer::Ip(source) => {
            let destination = listener.unwrap_or_else(|| nowhere(source));
            ProxyHeader::Proxied { source, destination }
        }
    };
    proxy_protocol::write(version, &header, out);
}

/// A placeholder for an unknown address: a reverse proxy connected through a Unix socket.
fn nowhere(like: SocketAddr) -> SocketAddr {
    let ip = match like.ip().to_canonical() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(client: &str, listener: Option<&str>) -> String {
        let mut out = Vec::new();
        let client = Peer::Ip(client.parse().unwrap());
        let listener = listener.map(|address| address.parse().unwrap());
        write_header(ProxyVersion::V1, client, listener, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_addresses_are_of_one_family() {
        for (client, listener, expected) in [
            ("192.0.2.1:7", "10.0.0.1:80", "PROXY TCP4 192.0.2.1 10.0.0.1 7 80\r\n"),
            ("[::ffff:192.0.2.1]:7", "[::ffff:10.0.0.1]:80", "PROXY TCP4 192.0.2.1 10.0.0.1 7 80\r\n"),
            ("[2001:db8::1]:7", "[2001:db8::2]:80", "PROXY TCP6 2001:db8::1 2001:db8::2 7 80\r\n"),
            ("[2001:db8::1]:0", "10.0.0.1:80", "PROXY TCP6 2001:db8::1 ::ffff:10.0.0.1 0 80\r\n"),
            ("192.0.2.1:0", "[2001:db8::2]:80", "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 0 80\r\n"),
        ] {
            assert_eq!(line(client, Some(listener)), expected);
        }
    }

    #[test]
    fn unknown_addresses_are_sent_as_zeros_or_unknown() {
        assert_eq!(line("192.0.2.1:0", None), "PROXY TCP4 192.0.2.1 0.0.0.0 0 0\r\n");
        let mut out = Vec::new();
        write_header(ProxyVersion::V1, Peer::Unix, None, &mut out);
        assert_eq!(out, b"PROXY UNKNOWN\r\n");
    }
}
