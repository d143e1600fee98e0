//! What the pool is told.

use std::time::Duration;

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// A name or an address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl std::fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How the pool behaves. Make one with [`PoolConfig::new`] and change what is to differ.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The brokers; each connection attempt starts with the next one, and goes on to the others when it fails.
    pub upstreams: Vec<UpstreamAddress>,
    /// How long a handshake with some credentials speaks for clients that present the same ones.
    pub auth_ttl: Duration,
    /// The longest that connecting and the handshake may take, together, per address.
    pub connect_timeout: Duration,
    /// A broker that takes nothing of what is written to it for this long is given up. One that has said
    /// `connection.blocked` does not read, and is waited for.
    pub write_timeout: Duration,
    /// Heartbeat interval wanted, in seconds; the broker may ask for a shorter one.
    pub heartbeat_secs: u16,
    /// Octets of the largest frame wanted. At most [`transport::MAX_UNCONSUMED`], which fits the read buffer.
    pub frame_max: u32,
    /// Most channels on an upstream connection that clients share, if the broker allows as many. A client's own
    /// connection carries as many as the broker allows.
    pub max_channels_per_connection: u16,
    /// Most upstream connections at one time, those that belong to one client included.
    pub max_connections: usize,
    /// Octets of the largest message that is passed on; the broker may have a smaller limit of its own.
    pub max_message_size: u64,
    /// An upstream connection without a channel is closed after this long.
    pub idle_timeout: Duration,
    /// Octets waiting for one upstream connection from which on its clients are no longer read.
    pub outbox_limit: usize,
}

impl PoolConfig {
    /// The defaults, for these brokers.
    pub fn new(upstreams: Vec<UpstreamAddress>) -> Self {
        Self {
            upstreams,
            auth_ttl: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            heartbeat_secs: 30,
            frame_max: 131_072,
            max_channels_per_connection: 1000,
            max_connections: 4096,
            max_message_size: amqp::content::MAX_MESSAGE_SIZE,
            idle_timeout: Duration::from_secs(60),
            outbox_limit: 1024 * 1024,
        }
    }
}
