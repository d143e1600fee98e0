//! Configuration of the pool.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use transport::tls::ClientTls;

use crate::connector::{Connector, TcpConnector};
use crate::identities::Identities;
use crate::resolver::{Resolver, SystemResolver};

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// A host name or an IP address.
    pub host: String,
    /// The TCP port; AMQP's are 5672, and 5671 with TLS.
    pub port: u16,
    /// Whether to connect over TLS; needs [`UpstreamTransport::tls`].
    pub tls: bool,
}

/// Transport settings of connections to brokers, below AMQP.
#[derive(Debug, Clone, Default)]
pub struct UpstreamTransport {
    /// For the addresses with TLS.
    pub tls: Option<Arc<ClientTls>>,
    /// The version of the PROXY protocol header to send first. The header carries the pool's own address,
    /// because any connection may later serve another client.
    pub proxy_protocol: Option<proxy_protocol::ProxyVersion>,
}

impl std::fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        transport::HostAndPort(&self.host, self.port).fmt(f)
    }
}

/// Settings of the pool. Create one with [`PoolConfig::new`] and override fields as needed.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The brokers. New connections go to the responding address with the fewest connections; a name may have
    /// several.
    pub upstreams: Vec<UpstreamAddress>,
    /// Resolves the brokers' names.
    pub resolver: Arc<dyn Resolver>,
    /// Opens the sockets of connections to them.
    pub connector: Arc<dyn Connector>,
    /// A random number, which spreads the probes of many pools that wait for the same broker.
    pub random: fn() -> u64,
    /// How to connect to them.
    pub transport: UpstreamTransport,
    /// How long a successful handshake vouches for other clients that present the same credentials.
    pub auth_ttl: Duration,
    /// Timeout for connecting and the handshake together, per address.
    pub connect_timeout: Duration,
    /// A connection is ended if its broker accepts no written data for this long. This does not apply after
    /// `connection.blocked`, because the broker does not read then.
    pub write_timeout: Duration,
    /// Requested heartbeat interval, in seconds; the broker may ask for a shorter one.
    pub heartbeat_secs: u16,
    /// Requested maximum frame size in bytes. It has to be below [`transport::MAX_UNCONSUMED`], the limit of the read
    /// buffer, by at least the overhead of a frame.
    pub frame_max: u32,
    /// Maximum channels on an upstream connection that clients share, if the broker allows as many. A
    /// client's own connection carries as many as the broker allows.
    pub max_channels_per_connection: u16,
    /// Maximum upstream connections that clients with the same credentials share in one virtual host.
    pub max_shared_connections: usize,
    /// How many of those stay open while unused.
    pub min_shared_connections: usize,
    /// Maximum upstream connections at one time, including those that belong to one client.
    pub max_connections: usize,
    /// Bytes of the largest message that is passed on; `None` leaves that to the broker, which has a limit of
    /// its own. Memory is bounded in any case, because large messages are streamed.
    pub max_message_size: Option<u64>,
    /// An upstream connection without a client's channel is closed after this long, and so is a channel
    /// without a client.
    pub idle_timeout: Duration,
    /// How long clients wait for a lost upstream to return, or for another one.
    pub outage_max: Duration,
    /// How long a client that arrives while no upstream answers waits for one before it is refused; also how
    /// long a client waits for a connection while [`Self::max_connections`] are open, or for a channel while all that clients
    /// share are in use.
    pub arrival_max: Duration,
    /// How long a client waits for a channel that other clients are about to release, while the brokers are slow to
    /// open many new ones. After that another channel is opened.
    pub opening_patience: Duration,
    /// Maximum bytes of one client's unanswered frames that are kept for replay. Above this, the client is not read.
    pub replay_client_max: usize,
    /// The same limit for all clients together: above it, clients that have frames kept for replay are not read.
    pub replay_total_max: usize,
    /// Bytes kept of frames sent by departed clients, until an upstream has replied to something behind them. Above
    /// this, a client's `channel.close` is answered only when the upstream has replied, and frames of clients that
    /// disconnect without a close are not kept.
    pub departed_total_max: usize,
    /// Bytes of incomplete messages of all clients together that are buffered until they are complete; the amount
    /// guaranteed to each client does not count. Further messages wait, or are streamed on connections dedicated to
    /// their clients, of which only a part may be used for this.
    pub staging_total_max: usize,
    /// How long a message may be incomplete while other clients wait for buffer space. After that the client that has
    /// used buffer space for longest is disconnected.
    pub staging_patience: Duration,
    /// Bytes of frames of all clients that wait for placement: while a connection is being opened, or until an outage
    /// ends. Above this, clients that have frames waiting are not read.
    pub queued_total_max: usize,
    /// Upstream credentials of clients that log in with certificates.
    pub identities: Arc<Identities>,
    /// Bytes of deliveries that may wait for a client on shared connections before its consumers move to a connection
    /// of its own. A consumer whose prefetch may exceed this starts on such a connection; with 0 all consumers do.
    pub consumer_budget: usize,
    /// Bytes of deliveries and replies that may wait for all clients together, plus some KiB for each; `None` for a
    /// multiple of `consumer_budget`.
    pub waiting_total_max: Option<usize>,
    /// Maximum bytes that wait for one upstream connection. Above this, its clients are not read.
    pub outbox_limit: usize,
}

impl PoolConfig {
    /// The defaults, for the given brokers.
    pub fn new(upstreams: Vec<UpstreamAddress>) -> Self {
        Self {
            upstreams,
            resolver: Arc::new(SystemResolver),
            connector: Arc::new(TcpConnector),
            random: || RandomState::new().hash_one(0),
            transport: UpstreamTransport::default(),
            auth_ttl: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            heartbeat_secs: 30,
            frame_max: 131_072,
            max_channels_per_connection: 1000,
            max_shared_connections: 8,
            min_shared_connections: 0,
            max_connections: 4096,
            max_message_size: None,
            idle_timeout: Duration::from_secs(60),
            outage_max: Duration::from_secs(60),
            arrival_max: Duration::from_secs(3),
            // Longer than a round trip to a distant broker.
            opening_patience: Duration::from_millis(200),
            replay_client_max: 8 * 1024 * 1024,
            replay_total_max: 256 * 1024 * 1024,
            // A second of publishing at the rate of a fast broker, while the pool reconnects to an upstream.
            departed_total_max: 64 * 1024 * 1024,
            // Enough for hundreds of clients that send large messages over slow links; thousands that never
            // finish theirs must not take all the memory.
            staging_total_max: 256 * 1024 * 1024,
            // Enough to send 1 MB over a link of 1 Mbit/s.
            staging_patience: Duration::from_secs(10),
            // The same as `replay_total_max`: in an outage the frames kept for replay move to this queue.
            queued_total_max: 256 * 1024 * 1024,
            identities: Arc::default(),
            consumer_budget: 4 * 1024 * 1024,
            waiting_total_max: None,
            outbox_limit: 1024 * 1024,
        }
    }

    /// Maximum upstream connections on which clients may stream incomplete messages that do not fit the buffer.
    pub(crate) fn streams_max(&self) -> usize {
        (self.max_connections / STREAM_SHARE).max(1)
    }

    /// Bytes that may wait for all clients together: the setting, or its default.
    pub(crate) fn waiting_total_max(&self) -> usize {
        let budgets = || WAITING_BUDGETS.saturating_mul(self.consumer_budget.max(WAITING_BUDGET_MIN));
        self.waiting_total_max.unwrap_or_else(budgets)
    }
}

/// One in this many upstream connections may be used for streaming incomplete messages. Messages that are never
/// completed then leave the other connections available to clients that need one.
pub(crate) const STREAM_SHARE: usize = 8;
/// The default total, as a multiple of `consumer_budget`: up to this number of slow consumers get their full budget, a
/// larger number less each.
pub(crate) const WAITING_BUDGETS: usize = 64;
/// Lower bound of a budget in bytes: clients with their own connections need it even if `consumer_budget` is tiny.
pub(crate) const WAITING_BUDGET_MIN: usize = 1024 * 1024;
/// Bytes of one client's frames that may wait for placement before it is no longer read: as much as an
/// out-buffer takes; one batch of reads may come on top.
pub(crate) const QUEUED_CLIENT_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_shown_in_brackets() {
        let shown = |host: &str| UpstreamAddress { host: host.into(), port: 5672, tls: false }.to_string();
        assert_eq!(["::1", "rabbit-1"].map(shown), ["[::1]:5672", "rabbit-1:5672"]);
    }
}
