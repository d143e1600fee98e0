//! Where HTTP connections come from: a TCP port or a Unix socket, with or without TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use transport::tls::ServerTls;
use transport::{DescriptorShare, Listener, Stream};

use crate::api::Caller;

/// A bound listener of HTTP.
#[derive(Debug)]
pub struct AdminListener {
    listener: Listener,
    tls: Option<Arc<ServerTls>>,
    /// `max-age` of Strict-Transport-Security; if zero, the header is not sent.
    strict: Duration,
}

impl AdminListener {
    /// The sockets on which requests come in.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// The same listener over TLS. For the time `strict`, browsers then use only TLS for this host, on any port
    /// (RFC 6797); if it is zero, Strict-Transport-Security is not sent.
    #[must_use]
    pub fn over_tls(self, tls: Arc<ServerTls>, strict: Duration) -> Self {
        Self { tls: Some(tls), strict, ..self }
    }

    /// The `max-age` of Strict-Transport-Security for every response, if the header is to be sent.
    pub(crate) fn strict(&self) -> Option<Duration> {
        // A fraction of a second would round down to 0, which makes browsers forget the policy.
        (self.tls.is_some() && self.strict.as_secs() > 0).then_some(self.strict)
    }

    pub(crate) async fn accept(&self) -> io::Result<AcceptedStream> {
        let (stream, _) = self.listener.accept(DescriptorShare::Others).await?;
        Ok(AcceptedStream { stream, tls: self.tls.clone() })
    }
}

impl From<Listener> for AdminListener {
    fn from(listener: Listener) -> Self {
        Self { listener, tls: None, strict: Duration::ZERO }
    }
}

impl From<TcpListener> for AdminListener {
    fn from(listener: TcpListener) -> Self {
        Listener::from(listener).into()
    }
}

/// An accepted connection, before the TLS handshake.
pub(crate) struct AcceptedStream {
    stream: Stream,
    tls: Option<Arc<ServerTls>>,
}

impl AcceptedStream {
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
