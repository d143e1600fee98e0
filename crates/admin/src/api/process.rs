//! What the process around the API tells.

use std::sync::Arc;

use broker::{MessageCounts, Timestamp};
use serde_json::Value;

/// The process that all of it is in. None of this may block for long.
pub trait Process: Send + Sync + 'static {
    /// The broker's time.
    fn now(&self) -> Timestamp;

    /// The product's version.
    fn version(&self) -> &str;

    /// The node's name, as in `leveret@localhost`.
    fn node_name(&self) -> &str;

    /// What this machine is.
    fn node(&self) -> NodeInfo;

    /// Where clients come in.
    fn listeners(&self) -> Vec<ListenerInfo>;

    /// Those of them that are over TLS, and any others, with what they show now.
    fn tls_listeners(&self) -> Vec<TlsListener>;

    /// What listeners and sessions have counted.
    fn counters(&self) -> Counters;

    /// How many connections are open.
    fn connection_count(&self) -> u64;

    /// Open connections, in the order in which they came.
    fn connections(&self) -> Vec<Arc<dyn Connection>>;

    /// The open connection with this number, which is also its session's.
    fn connection(&self, id: u64) -> Option<Arc<dyn Connection>>;

    /// The open connection with this name.
    fn connection_named(&self, name: &str) -> Option<Arc<dyn Connection>>;

    /// Upstream addresses, as objects; none without an upstream.
    fn upstreams(&self) -> Vec<Value>;

    /// Upstream connections, as objects; `clients` has the numbers of the connections that they serve.
    fn upstream_connections(&self) -> Vec<Value>;

    /// Channels leased to clients, and what sharing has saved, as an object; `None` without an upstream.
    fn leases(&self) -> Option<Value>;

    /// Bytes of the largest message.
    fn max_message_size(&self) -> u64;

    /// Bytes of the largest frame that AMQP clients may agree on; 0 is no limit.
    fn frame_max(&self) -> u32;

    /// Whether an alarm, of memory or disk, keeps publishers waiting.
    fn blocks_publishers(&self) -> bool;

    /// Limits and how often they were exceeded, as an object.
    fn limits(&self) -> Value;

    /// The settings in effect, as objects: without secrets, and with where they came from.
    fn environment(&self) -> Value;

    /// Shuts down in order, as SIGTERM does. Returns at once.
    fn drain(&self);
}

/// A client's open connection.
pub trait Connection: Send + Sync {
    /// Its number, which is also its session's.
    fn id(&self) -> u64;

    /// As RabbitMQ names it: `peer:port -> host:port`.
    fn name(&self) -> String;

    /// Who has logged in.
    fn user(&self) -> &str;

    /// Its virtual host.
    fn vhost(&self) -> &str;

    /// Everything about it.
    fn info(&self) -> ConnectionInfo;

    /// Its channels, and what went through them as of `now`.
    fn channels(&self, now: Timestamp) -> Vec<ChannelInfo>;

    /// Bytes received and sent per second, since somebody last asked.
    fn byte_rates(&self, now: Timestamp) -> (f64, f64);

    /// Ends it: the client is told 320 CONNECTION_FORCED with this text.
    fn close(&self, reason: &str);
}

/// What there is to know about a connection.
#[derive(Debug, Clone, Default)]
pub struct ConnectionInfo {
    /// The client's address; empty for a Unix socket.
    pub peer_host: String,
    /// The client's port; 0 for a Unix socket.
    pub peer_port: u16,
    /// Our address.
    pub host: String,
    /// Our port.
    pub port: u16,
    /// Whether it came over TLS.
    pub tls: bool,
    /// Whether it came as a WebSocket.
    pub websocket: bool,
    /// Its protocol and version, as in `AMQP 0-9-1`.
    pub protocol: &'static str,
    /// The SASL mechanism of the login.
    pub mechanism: &'static str,
    /// Milliseconds since 1970.
    pub connected_at: u64,
    /// Most channels; 0 is no limit.
    pub channel_max: u16,
    /// Bytes of the largest frame; 0 is no limit.
    pub frame_max: u32,
    /// Seconds; 0 is none.
    pub heartbeat: u16,
    /// What the client tells about itself, as an object.
    pub client_properties: Value,
    /// Bytes received since it was opened.
    pub received: u64,
    /// Bytes sent since it was opened.
    pub sent: u64,
    /// Bytes that wait for the client to take them.
    pub backlog: u64,
    /// Channels.
    pub channels: u64,
}

/// What there is to know about a channel.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChannelInfo {
    /// Its number.
    pub number: u16,
    /// For consumers to come; 0 is no limit.
    pub prefetch: u16,
    /// Of the channel as a whole; 0 is no limit.
    pub global_prefetch: u16,
    /// Publishes are confirmed.
    pub confirms: bool,
    /// Publishes and acknowledgements are committed.
    pub transactional: bool,
    /// Consumers.
    pub consumers: u64,
    /// Deliveries that have not been settled.
    pub unacknowledged: u64,
    /// What went through it; `None` if nothing did, or nobody counts.
    pub counts: Option<MessageCounts>,
}

/// A listener.
#[derive(Debug, Clone, Default)]
pub struct ListenerInfo {
    /// RabbitMQ's name of the protocol: `amqp`, `amqp/ssl`, `http`, …
    pub protocol: &'static str,
    /// The address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A listener over TLS.
#[derive(Debug, Clone, Default)]
pub struct TlsListener {
    /// Where it is.
    pub listener: ListenerInfo,
    /// What it shows, by the names that clients ask for.
    pub certificates: Vec<CertificateFile>,
    /// Whose client certificates it believes, if it asks for any.
    pub authorities: Option<CertificateFile>,
}

/// A file with certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateFile {
    /// Its path.
    pub path: String,
    /// When each of them ends: seconds since 1970, and the same as text (`2026-01-31 9:05:00`).
    pub ends: Vec<(i64, String)>,
}

/// The machine and its resources.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// As in `leveret@localhost`.
    pub name: String,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// Open file descriptors, and the most that may be.
    pub descriptors: (Option<u64>, Option<u64>),
    /// Milliseconds since the process started.
    pub uptime: u64,
    /// Bytes above which publishers are blocked.
    pub memory_limit: Option<u64>,
    /// Whether they are.
    pub memory_alarm: bool,
    /// Bytes free on the data folder's file system.
    pub disk_free: Option<u64>,
    /// Bytes below which publishers are blocked.
    pub disk_free_limit: Option<u64>,
    /// Whether they are.
    pub disk_alarm: bool,
}

/// Counters since the process started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Connections accepted.
    pub connections_opened: u64,
    /// Connections that have ended.
    pub connections_closed: u64,
    /// Channels opened.
    pub channels_opened: u64,
    /// Channels that have ended.
    pub channels_closed: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages returned as unroutable.
    pub returned: u64,
}
