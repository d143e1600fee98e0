//! Relays: any TCP server as a WebSocket endpoint.
//!
//! - [`RelayConfig`], [`Relay`]: the target of a relay, its clients, and its connection limits.
//! - [`upstream`]: the connection to the upstream server, and the header that gives it the client's address.
//! - [`mod@run`]: a pair's lifetime, from a granted request to its end.
//! - [`pump`]: the two directions.
//! - [`plain`]: a relay without WebSocket, for protocols that only the upstream server speaks.
//! - [`framer`]: turns bytes of the upstream into messages.
//!
//! Invariants: every byte arrives, once and in order, or the close frame's code says that some did not. If one side does
//! not read, the other is not read either, but its end is still noticed. An idle pair holds no buffer.

mod close;
mod framer;
mod pending;
mod plain;
mod pump;
mod run;
#[cfg(test)]
mod unread_tests;
mod upstream;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::websocket::handshake::OriginRules;
use proxy_protocol::ProxyVersion;
use transport::HostAndPort;
use transport::tls::ClientTls;

use crate::limits::{ConnectionCounter, ConnectionLimits};

pub(crate) use plain::run_plain;
pub(crate) use run::run;

/// The configuration of a relay.
#[derive(Debug)]
pub struct RelayConfig {
    /// Its name in logs: its path or its listener.
    pub name: String,
    /// The address of the upstream server. Each client gets its own connection to it.
    pub upstream: RelayUpstream,
    /// Time limit for connecting to it, TLS included.
    pub connect_timeout: Duration,
    /// Version of the PROXY header sent first on each connection to it, if any.
    pub proxy_protocol: Option<ProxyVersion>,
    /// Subprotocols in order of preference. If there are none, the first that a client offers is accepted.
    pub subprotocols: Vec<String>,
    /// The origins whose pages may connect.
    pub origins: OriginRules,
    /// The relay's own limits, in addition to the server's; it knows no users.
    pub connections: ConnectionLimits,
    /// How text messages are handled.
    pub text: TextRule,
}

/// The upstream server of a relay.
#[derive(Debug, Clone)]
pub enum RelayUpstream {
    /// TCP.
    Tcp {
        /// A host name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// TLS over TCP.
    Tls {
        /// A host name or an address; the certificate must be valid for it, unless `tls` says otherwise.
        host: String,
        /// The port.
        port: u16,
        /// The certificates to trust.
        tls: Arc<ClientTls>,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// The handling of text messages. The upstream knows bytes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextRule {
    /// Relays their UTF-8 as bytes. Answers are binary all the same, since the upstream's bytes may be cut anywhere.
    Accept,
    /// Refuses them with 1003.
    Refuse,
}

/// A relay and the count of its connections.
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

    /// The configuration, which never changes.
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
        write!(f, "{scheme}://{}", HostAndPort(host, *port))
    }
}
