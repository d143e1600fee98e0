//! Relays: any TCP server as a WebSocket endpoint.
//!
//! - [`RelayConfig`], [`Relay`]: what is relayed to where, for whom, and how many at once.
//! - [`upstream`]: the connection to the server behind, and the header that tells it who the client is.
//! - [`run`]: a pair's life, from a request that was granted to its end.
//! - [`pump`]: the two directions.
//! - [`plain`]: a relay without WebSocket, for protocols that only the server behind speaks.
//! - [`framer`]: bytes of the upstream as messages.
//!
//! What always holds: every byte arrives, once and in order, or the close frame's code tells that not all did; a side
//! that does not read makes us stop reading the other; an idle pair holds no buffer.

mod close;
mod framer;
mod pending;
mod plain;
mod pump;
mod run;
mod upstream;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::websocket::handshake::OriginRules;
use proxy_protocol::Version;
use transport::tls::ClientTls;

use crate::limits::{ConnectionCounter, ConnectionLimits};

pub(crate) use plain::run_plain;
pub(crate) use run::run;

/// A relay, as it is configured.
#[derive(Debug)]
pub struct RelayConfig {
    /// What it is called in logs: its path or its listener.
    pub name: String,
    /// The server behind.
    pub upstream: RelayUpstream,
    /// How long connecting to it may take, TLS included.
    pub connect_timeout: Duration,
    /// The header in front of each connection to it.
    pub proxy_protocol: Option<Version>,
    /// Subprotocols, the dearest first. Without any, the first that a client offers is taken.
    pub subprotocols: Vec<String>,
    /// Which pages may connect.
    pub origins: OriginRules,
    /// Its own limits, besides those of the server; it knows no users.
    pub connections: ConnectionLimits,
    /// What becomes of text.
    pub text: TextRule,
}

/// The server behind a relay.
#[derive(Debug, Clone)]
pub enum RelayUpstream {
    /// TCP.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// TLS over TCP.
    Tls {
        /// A name or an address; the certificate has to be for it, unless `tls` says otherwise.
        host: String,
        /// The port.
        port: u16,
        /// Whom to believe.
        tls: Arc<ClientTls>,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// What becomes of messages of text. The upstream knows bytes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextRule {
    /// Their UTF-8 is relayed like any bytes. Answers are binary all the same: the upstream's bytes may be cut anywhere.
    Accept,
    /// They are refused with 1003.
    Refuse,
}

/// A relay, and the connections that it has.
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
    counter: Arc<ConnectionCounter>,
}

impl Relay {
    /// A relay without connections.
    pub fn new(config: RelayConfig) -> Arc<Self> {
        let counter = ConnectionCounter::new(config.connections);
        Arc::new(Self { config, counter })
    }

    /// What it is configured to be.
    pub fn config(&self) -> &RelayConfig {
        &self.config
    }
}

impl fmt::Display for RelayUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match self {
            Self::Tcp { host, port } => ("tcp", host, port),
            Self::Tls { host, port, .. } => ("tls", host, port),
            Self::Unix(path) => return write!(f, "unix:{}", path.display()),
        };
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}
