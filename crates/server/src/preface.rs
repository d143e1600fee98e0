//! The bytes that precede the protocol on a listener's connections: the PROXY protocol, then TLS.

use std::io;
use std::sync::Arc;

use proxy_protocol::{AcceptedVersions, FIRST_BYTES, Parsed, ProxyHeader};
use tokio::io::AsyncReadExt;
use transport::tls::ServerTls;
use transport::{Peer, Stream};

use crate::network::Network;

/// The layers that precede the protocol of a listener's clients.
#[derive(Debug, Clone, Default)]
pub struct Preface {
    /// Load balancers that name the client they connect for.
    pub proxies: Option<Arc<TrustedProxies>>,
    /// TLS, after the PROXY header if there is one.
    pub tls: Option<Arc<ServerTls>>,
}

/// Peers that are trusted to send headers of the PROXY protocol. Each of their connections starts with a header;
/// connections of other peers never do.
#[derive(Debug, Clone)]
pub struct TrustedProxies {
    /// The protocol versions that they use.
    pub accepted: AcceptedVersions,
    /// The ranges of the proxies' own addresses; addresses in a header do not matter.
    pub networks: Vec<Network>,
    /// Whether clients of Unix sockets are trusted too.
    pub unix: bool,
}

impl TrustedProxies {
    fn includes(&self, peer: Peer) -> bool {
        match peer.ip() {
            Some(ip) => self.networks.iter().any(|network| network.contains(ip)),
            None => self.unix,
        }
    }
}

/// A connection that has passed its preface.
#[derive(Debug)]
pub(crate) struct PrefaceOutcome {
    pub(crate) stream: Stream,
    /// The user name of a verified client certificate.
    pub(crate) external: Option<Arc<str>>,
}

/// The reason why a connection did not reach its protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrefaceError {
    /// A peer that is not trusted sent a header.
    #[error("PROXY protocol header from a peer that trusted_proxies does not name")]
    HeaderFromStranger,
    /// The mandatory header is missing or malformed.
    #[error(transparent)]
    Header(proxy_protocol::ParseError),
    /// The peer disconnected, or TLS failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Preface {
    /// Whether connections begin with their protocol at once.
    pub(crate) fn is_empty(&self) -> bool {
        self.proxies.is_none() && self.tls.is_none()
    }

    /// Whether the peer is a proxy, so that only its header gives the client's address.
    pub(crate) fn is_from_proxy(&self, peer: Peer) -> bool {
        self.proxies.as_ref().is_some_and(|proxies| proxies.includes(peer))
    }

    /// Reads the header of a trusted peer and returns the client that it names. Rejects a header from any other peer.
    pub(crate) async fn real_peer(&self, stream: &mut Stream, peer: Peer) -> Result<Peer, PrefaceError> {
        let Some(proxies) = &self.proxies else { return Ok(peer) };
        if !proxies.includes(peer) {
            let first = stream.first_byte().await?;
            let stranger = first.is_some_and(|byte| FIRST_BYTES.contains(&byte));
            return if stranger { Err(PrefaceError::HeaderFromStranger) } else { Ok(peer) };
        }
        Ok(match read_header(stream, proxies.accepted).await? {
            ProxyHeader::Local => peer,
            ProxyHeader::Proxied { source, .. } => Peer::Ip(source),
        })
    }

    /// Performs the TLS handshake if the listener uses TLS.
    pub(crate) async fn secure(&self, stream: Stream) -> Result<PrefaceOutcome, PrefaceError> {
        let Some(tls) = &self.tls else { return Ok(PrefaceOutcome { stream, external: None }) };
        let accepted = tls.accept(stream).await?;
        Ok(PrefaceOutcome { stream: accepted.stream, external: accepted.login })
    }
}

/// Reads a header and not a byte beyond it.
async fn read_header(stream: &mut Stream, accepted: AcceptedVersions) -> Result<ProxyHeader, PrefaceError> {
    let mut input = Vec::new();
    loop {
        match proxy_protocol::parse(&input, accepted).map_err(PrefaceError::Header)? {
            Parsed::Complete { header, .. } => return Ok(header),
            Parsed::Incomplete(missing) => {
                let begin = input.len();
                // Reads the first byte alone, so that a peer that sends something else gets its error at once.
                input.resize(begin + if begin == 0 { 1 } else { missing }, 0);
                stream.read_exact(&mut input[begin..]).await.map_err(closed_early)?;
            }
        }
    }
}

fn closed_early(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "closed within the PROXY protocol header")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    fn from_unix() -> Preface {
        let proxies = TrustedProxies { accepted: AcceptedVersions::Any, networks: Vec::new(), unix: true };
        Preface { proxies: Some(Arc::new(proxies)), tls: None }
    }

    async fn sent(bytes: &[u8]) -> (Result<Peer, PrefaceError>, Stream) {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(bytes).await.unwrap();
        drop(there);
        let mut stream = Stream::Unix(here);
        (from_unix().real_peer(&mut stream, Peer::Unix).await, stream)
    }

    #[tokio::test]
    async fn a_header_is_consumed_and_no_bytes_after_it() {
        let (peer, mut stream) = sent(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nAMQP").await;
        assert_eq!(peer.unwrap(), Peer::Ip("192.0.2.1:1".parse().unwrap()));
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"AMQP");
    }

    #[tokio::test]
    async fn a_header_without_addresses_leaves_the_sockets_peer() {
        assert_eq!(sent(b"PROXY UNKNOWN\r\n").await.0.unwrap(), Peer::Unix);
    }

    #[tokio::test]
    async fn a_trusted_proxy_has_to_send_a_header_whole() {
        let error = sent(b"AMQP\0\0\x09\x01").await.0.unwrap_err();
        assert_eq!(error.to_string(), "no PROXY protocol header");
        assert!(matches!(sent(b"PROXY TCP4 192.0.2.1").await.0, Err(PrefaceError::Io(_))));
    }
}
