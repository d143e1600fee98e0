//! What the pool is told.

use std::sync::Arc;
use std::time::Duration;

use transport::tls::ClientTls;

use crate::identities::Identities;
use crate::resolver::{Resolver, SystemResolver};

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// A name or an address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Over TLS; needs [`UpstreamTransport::tls`].
    pub tls: bool,
}

/// What connections to brokers go through before AMQP.
#[derive(Debug, Clone, Default)]
pub struct UpstreamTransport {
    /// For the addresses with TLS.
    pub tls: Option<Arc<ClientTls>>,
    /// The version of the PROXY protocol whose header goes in front. It tells the pool's own address, as every
    /// connection may come to carry another client.
    pub proxy_protocol: Option<proxy_protocol::Version>,
}

impl std::fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How the pool behaves. Make one with [`PoolConfig::new`] and change what is to differ.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The brokers. New connections go to the address with the fewest of those that answer; a name may have several.
    pub upstreams: Vec<UpstreamAddress>,
    /// What their names stand for.
    pub resolver: Arc<dyn Resolver>,
    /// How they are reached.
    pub transport: UpstreamTransport,
    /// How long a handshake with some credentials speaks for clients that present the same ones.
    pub auth_ttl: Duration,
    /// The longest that connecting and the handshake may take, together, per address.
    pub connect_timeout: Duration,
    /// A broker that takes nothing of what is written to it for this long is given up. One that has said
    /// `connection.blocked` does not read, and is waited for.
    pub write_timeout: Duration,
    /// Heartbeat interval wanted, in seconds; the broker may ask for a shorter one.
    pub heartbeat_secs: u16,
    /// Bytes of the largest frame wanted. At most [`transport::MAX_UNCONSUMED`], which fits the read buffer.
    pub frame_max: u32,
    /// Most channels on an upstream connection that clients share, if the broker allows as many. A client's own
    /// connection carries as many as the broker allows.
    pub max_channels_per_connection: u16,
    /// Most upstream connections that clients with the same credentials share in one virtual host.
    pub max_shared_connections: usize,
    /// How many of them stay open although nobody uses them.
    pub min_shared_connections: usize,
    /// Most upstream connections at one time, those that belong to one client included.
    pub max_connections: usize,
    /// Bytes of the largest message that is passed on; `None` leaves that to the broker, which has a limit of its own. Memory
    /// is bounded in any case, for large messages are passed on as they come.
    pub max_message_size: Option<u64>,
    /// An upstream connection without a client's channel is closed after this long, and so is a channel without a client.
    pub idle_timeout: Duration,
    /// How long clients wait for a lost upstream, or another one, to be there again.
    pub outage_max: Duration,
    /// How long a client that comes while no upstream answers waits for one before it is refused; and how long one waits that
    /// needs a connection while there are [`Self::max_connections`].
    pub arrival_max: Duration,
    /// How long a client waits for a channel that others are about to be through with, while the brokers are slow to open so
    /// many new ones. Then one more is opened.
    pub opening_patience: Duration,
    /// Bytes of one client's unanswered frames, kept to be sent again, from which on it is no longer read.
    pub replay_client_max: usize,
    /// The same of all clients together: from here on those are not read that have something kept.
    pub replay_total_max: usize,
    /// Bytes kept of what clients had sent that are gone, until an upstream has answered something behind it. From here on a
    /// channel is closed for its client only when the upstream has answered, and what clients leave that just vanish is not
    /// kept.
    pub departed_total_max: usize,
    /// Bytes of incomplete messages of all clients together, held until they are complete; what each may hold in any case
    /// does not count. What goes beyond waits, or streams on connections of its clients' own: on a part of them.
    pub staging_total_max: usize,
    /// How long a message may be incomplete while others wait for room. The client that has held room for longest is ended
    /// then.
    pub staging_patience: Duration,
    /// Bytes that wait for a place, of all clients together: while a connection is being opened, or until an outage ends.
    /// From here on those are not read that have something waiting.
    pub held_total_max: usize,
    /// What clients with certificates are upstream.
    pub identities: Arc<Identities>,
    /// Bytes that may wait for a client on connections that it shares before its consumers go on on a connection of its
    /// own. A consumer whose limit of unacknowledged messages stands for more is there from the start; with 0 all are.
    pub consumer_budget: usize,
    /// Bytes that may wait for all clients together, and some KiB for each on top; `None` for a multiple of
    /// `consumer_budget`.
    pub waiting_total_max: Option<usize>,
    /// Bytes waiting for one upstream connection from which on its clients are no longer read.
    pub outbox_limit: usize,
}

impl PoolConfig {
    /// The defaults, for these brokers.
    pub fn new(upstreams: Vec<UpstreamAddress>) -> Self {
        Self {
            upstreams,
            resolver: Arc::new(SystemResolver),
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
            // Longer than a round trip to a broker that is far away.
            opening_patience: Duration::from_millis(200),
            replay_client_max: 8 * 1024 * 1024,
            replay_total_max: 256 * 1024 * 1024,
            // A second of publishing at the rate of a fast broker, while an upstream has to be connected to again.
            departed_total_max: 64 * 1024 * 1024,
            // For hundreds of clients that send large messages over slow lines; thousands that never finish theirs must not
            // take all the memory.
            staging_total_max: 256 * 1024 * 1024,
            // A megabyte over a line of a megabit a second.
            staging_patience: Duration::from_secs(10),
            // As much as of what is kept to be sent again: in an outage that comes to wait here.
            held_total_max: 256 * 1024 * 1024,
            identities: Arc::default(),
            consumer_budget: 4 * 1024 * 1024,
            waiting_total_max: None,
            outbox_limit: 1024 * 1024,
        }
    }

    /// Upstream connections that may be taken because there is no room for incomplete messages.
    pub(crate) fn lanes_max(&self) -> usize {
        (self.max_connections / LANE_SHARE).max(1)
    }

    /// Bytes that may wait for all clients together.
    pub(crate) fn waiting_total_max(&self) -> usize {
        let budgets = || WAITING_BUDGETS.saturating_mul(self.consumer_budget.max(WAITING_BUDGET_MIN));
        self.waiting_total_max.unwrap_or_else(budgets)
    }
}

/// One upstream connection in this many may be taken for incomplete messages: enough for progress, and the others are
/// there for who needs one whatever clients never complete.
const LANE_SHARE: usize = 8;
/// How many clients' budgets may wait in all: that many slow consumers have all they may, more of them have less each.
const WAITING_BUDGETS: usize = 64;
/// What counts as a budget at least: connections that belong to one client need room whatever may wait on shared ones.
const WAITING_BUDGET_MIN: usize = 1024 * 1024;
