//! Interface to the process around the API.

use std::sync::Arc;
use std::time::Duration;

use broker::{MessageCounts, Store, Timestamp};
use serde_json::{Map, Value};

/// The process that the API runs in. No method may block for long.
pub trait Process: Send + Sync + 'static {
    /// The current time of the broker's clock, which is not that of the wall clock.
    fn now(&self) -> Timestamp;

    /// Version of the product, such as `1.0.0`.
    fn version(&self) -> &str;

    /// The node's name, as in `leveret@localhost`.
    fn node_name(&self) -> &str;

    /// The machine and its resources.
    fn node(&self) -> NodeInfo;

    /// The listeners for clients.
    fn listeners(&self) -> Vec<ListenerInfo>;

    /// All listeners over TLS, including those not in `listeners`, with their current certificates.
    fn tls_listeners(&self) -> Vec<TlsListener>;

    /// Counters of listeners and sessions.
    fn counters(&self) -> Counters;

    /// How many connections are open.
    fn connection_count(&self) -> u64;

    /// Open connections, in the order in which they were opened.
    fn connections(&self) -> Vec<Arc<dyn ClientConnection>>;

    /// The open connection with this number, which is also the number of its session.
    fn connection(&self, id: u64) -> Option<Arc<dyn ClientConnection>>;

    /// The open connection with this name.
    fn connection_named(&self, name: &str) -> Option<Arc<dyn ClientConnection>>;

    /// Upstream addresses, as objects; empty without an upstream.
    fn upstreams(&self) -> Vec<Value>;

    /// Upstream connections, as objects; `clients` has the numbers of the connections that they serve.
    fn upstream_connections(&self) -> Vec<Value>;

    /// The queues that subscriptions share upstream, as objects; empty without an upstream.
    fn multiplexed_queues(&self) -> Vec<Value>;

    /// The binding keys of the shared queue with this name, as objects; `None` if there is no such queue.
    fn multiplexed_bindings(&self, queue: &str) -> Option<Vec<Value>>;

    /// The MQTT sessions without a connection that are known here in front of an upstream.
    fn detached_sessions(&self) -> Vec<DetachedSession>;

    /// The groups of shared subscriptions with members here, as objects; empty without an upstream.
    fn shared_groups(&self) -> Vec<Value>;

    /// The retained messages of each virtual host, as objects; empty without an upstream.
    fn retained_messages(&self) -> Vec<Value>;

    /// The queues of the spool, as objects; empty without a spool.
    fn spool_queues(&self) -> Vec<Value>;

    /// The store of the spool's messages; `None` without a spool.
    fn spool_store(&self) -> Option<Arc<Store>>;

    /// The first messages that the spool has parked, as objects.
    fn parked_messages(&self) -> Vec<Value>;

    /// Forwards parked messages again, of all users and virtual hosts or of one; returns their number and that of those left,
    /// as an object. `None` without a spool.
    fn requeue_parked(&self, user: Option<&str>, vhost: Option<&str>) -> Option<Value>;

    /// Pauses forwarding from the spool, resumes it, or empties the spool: `pause`, `resume` or `drain`. Returns its state
    /// as an object, `None` without a spool.
    fn steer_spool(&self, action: &str) -> Option<Value>;

    /// Drops parked messages, of all users and virtual hosts or of one; returns their number, as an object. `None` without a
    /// spool.
    fn purge_parked(&self, user: Option<&str>, vhost: Option<&str>) -> Option<Value>;

    /// Drops what a user has in the spool that is not forwarded, in all virtual hosts or in one; returns the number of
    /// messages, as an object. `None` without a spool.
    fn purge_waiting(&self, user: &str, vhost: Option<&str>) -> Option<Value>;

    /// Channels leased to clients, and what sharing has saved, as an object; `None` without an upstream.
    fn leases(&self) -> Option<Value>;

    /// Maximum size of a message in bytes.
    fn max_message_size(&self) -> u64;

    /// The largest frame in bytes that AMQP clients may negotiate; 0 means no limit.
    fn frame_max(&self) -> u32;

    /// Time limit for a delivery from the embedded broker to be acknowledged.
    fn consumer_timeout(&self) -> Duration;

    /// Whether a memory or disk alarm blocks publishers.
    fn blocks_publishers(&self) -> bool;

    /// Connections of clients that count for the limit: open ones, and those that are being opened.
    fn connections_in_use(&self) -> u64;

    /// How many connections clients may have; `None` for no limit.
    fn connection_limit(&self) -> Option<u64>;

    /// Limits and how often they were exceeded, as an object.
    fn limits(&self) -> Value;

    /// The settings in effect, as objects, with their origins and without secrets.
    fn environment(&self) -> Value;

    /// Shuts down in order, as SIGTERM does. Returns at once.
    fn drain(&self);

    /// Starts a successor from the program on the disk, which takes this process's place. Returns at once, with
    /// [`Process::upgrade_status`].
    ///
    /// # Errors
    ///
    /// Why there cannot be one.
    fn upgrade(&self) -> Result<Value, UpgradeRefused>;

    /// This process, its version, and what has become of the last upgrade, as an object.
    fn upgrade_status(&self) -> Value;

    /// The move of messages to another broker, or from there, as an object.
    fn migration(&self) -> Value;

    /// Permits a change of definitions or messages until the permit is dropped; `None` when everything is about to have moved
    /// to another broker, and what is made here would be lost.
    fn begin_change(&self) -> Option<ChangePermit>;

    /// Takes a step of such a move. Returns at once, with [`Process::migration`]; only a check of the login waits for the other
    /// broker.
    ///
    /// # Errors
    ///
    /// Why it cannot be taken.
    fn steer_migration(&self, step: MigrationStep<'_>) -> Result<Value, MigrationError>;
}

/// Has clones, one for each change that is under way.
pub type ChangePermit = Arc<()>;

/// A step of a move of messages to another broker, or from there.
#[derive(Debug, Clone, Copy)]
pub enum MigrationStep<'a> {
    /// Begins with the `direction` (`to` or `from`), the `addresses`, the `user` and the `password` of the other broker.
    Start(&'a Map<String, Value>),
    /// Tries that login in the `vhosts`, and changes nothing. Returns an object with the `failure`, or `null` in it.
    CheckLogin(&'a Map<String, Value>),
    /// Ends it; messages that have moved stay there.
    Stop,
    /// Closes all clients: the rest is to move. With the `direction` and the `addresses` of the move that is meant, if they are
    /// named.
    CutOver(&'a Map<String, Value>),
    /// The last definitions have been copied. Names the move as `CutOver` does.
    Finish(&'a Map<String, Value>),
}

/// Why a step of a move is not taken, in words for operators.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// It is wrong, or not the time for it.
    #[error("{0}")]
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// Another move is under way than the one that it names.
    #[error("{0}")]
    OtherMove(Box<dyn std::error::Error + Send + Sync>),
}

/// Why no successor is started, in words for operators.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UpgradeRefused(pub Box<dyn std::error::Error + Send + Sync>);

/// A client's open connection.
pub trait ClientConnection: Send + Sync {
    /// Its number, which is also the number of its session.
    fn id(&self) -> u64;

    /// As RabbitMQ names it: `peer:port -> host:port`.
    fn name(&self) -> String;

    /// The name of the logged-in user.
    fn user(&self) -> &str;

    /// Name of the virtual host that it has opened.
    fn vhost(&self) -> &str;

    /// All other facts about the connection.
    fn info(&self) -> ConnectionInfo;

    /// Whether a queue holds one of its publishers, or has done so in the second before `now`.
    fn is_in_flow(&self, now: Timestamp) -> bool;

    /// Whether it has published while an alarm is raised, and is not read until there is none.
    fn is_blocked(&self) -> bool;

    /// Its session, if it is MQTT's or STOMP's.
    fn session(&self) -> Option<SessionInfo>;

    /// Its channels, with their message counts as of `now`.
    fn channels(&self, now: Timestamp) -> Vec<ChannelInfo>;

    /// Bytes received and sent per second, since somebody last asked.
    fn byte_rates(&self, now: Timestamp) -> (f64, f64);

    /// Closes it with 320 CONNECTION_FORCED and this text.
    fn close(&self, reason: &str);
}

/// Properties and counters of a connection.
#[derive(Debug, Clone, Default)]
pub struct ConnectionInfo {
    /// The client's address; empty for a Unix socket.
    pub peer_host: String,
    /// The client's port; 0 for a Unix socket.
    pub peer_port: u16,
    /// The address of the server's end of the connection.
    pub host: String,
    /// The port of the server's end of the connection.
    pub port: u16,
    /// Whether it uses TLS.
    pub tls: bool,
    /// Whether it is a WebSocket connection.
    pub websocket: bool,
    /// Its protocol and version, as in `AMQP 0-9-1`.
    pub protocol: &'static str,
    /// The SASL mechanism of the login.
    pub mechanism: &'static str,
    /// Time of connecting, in milliseconds since 1970.
    pub connected_at: u64,
    /// Maximum number of channels; 0 means no limit.
    pub channel_max: u16,
    /// Maximum frame size in bytes; 0 means no limit.
    pub frame_max: u32,
    /// Heartbeat interval in seconds; 0 for no heartbeats.
    pub heartbeat: u16,
    /// The client's own properties (`client-properties`), as an object.
    pub client_properties: Value,
    /// Bytes received since it was opened.
    pub received: u64,
    /// Bytes sent since it was opened.
    pub sent: u64,
    /// Bytes queued for the client and not yet written.
    pub backlog: u64,
    /// Number of open channels.
    pub channels: u64,
}

/// The session of an MQTT or STOMP connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// The identifier of an MQTT client.
    pub client_id: Option<String>,
    /// Seconds that it outlives its connection: 0 if it ends with it, `u32::MAX` forever.
    pub expiry: u32,
    /// Number of the client's subscriptions.
    pub subscriptions: u64,
    /// Messages that the client has published on this connection.
    pub published: u64,
    /// Messages that were sent to the client on this connection.
    pub delivered: u64,
}

/// An MQTT session without a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetachedSession {
    /// As the client gave it in CONNECT.
    pub client_id: String,
    /// The user that the session belongs to.
    pub user: String,
    /// The virtual host that its queues are in.
    pub vhost: String,
    /// Number of its subscriptions.
    pub subscriptions: u64,
    /// Seconds that it outlives its connection: `u32::MAX` forever.
    pub expiry: u32,
    /// When the connection ended, in milliseconds since 1970.
    pub since: u64,
}

/// Properties and counters of a channel.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChannelInfo {
    /// Number of the channel within its connection, from 1.
    pub number: u16,
    /// Prefetch count for new consumers; 0 means no limit.
    pub prefetch: u16,
    /// Prefetch count of the channel as a whole; 0 means no limit.
    pub global_prefetch: u16,
    /// Whether the channel is in confirm mode.
    pub confirms: bool,
    /// Whether the channel is in transaction mode.
    pub transactional: bool,
    /// Number of consumers on the channel.
    pub consumers: u64,
    /// Number of unacknowledged deliveries.
    pub unacknowledged: u64,
    /// Number of publishes in confirm mode whose confirm has not been sent yet.
    pub unconfirmed: u64,
    /// Whether a queue holds its publisher, or has done so in the last second.
    pub is_in_flow: bool,
    /// Counts of its messages; `None` if there were none, or they are not counted.
    pub counts: Option<MessageCounts>,
}

/// A listener's protocol and address.
#[derive(Debug, Clone, Default)]
pub struct ListenerInfo {
    /// RabbitMQ's name of the protocol: `amqp`, `amqp/ssl`, `http`, …
    pub protocol: &'static str,
    /// The address that it is bound to.
    pub host: String,
    /// The TCP port that it is bound to.
    pub port: u16,
}

impl ListenerInfo {
    pub(super) fn is_tls(&self) -> bool {
        self.protocol.ends_with("/ssl") || self.protocol == "https"
    }
}

/// A listener over TLS.
#[derive(Debug, Clone, Default)]
pub struct TlsListener {
    /// Protocol, address and port.
    pub listener: ListenerInfo,
    /// The certificates it presents, chosen by the server name that the client requests.
    pub certificates: Vec<CertificateFile>,
    /// The CA certificates that it trusts for client certificates, if it requests any.
    pub ca: Option<CertificateFile>,
}

/// A file with certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateFile {
    /// Path of the file, as configured.
    pub path: String,
    /// Expiry of each certificate: in seconds since 1970, and as text (`2026-01-31 9:05:00`).
    pub ends: Vec<(i64, String)>,
}

/// The machine and its resources.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// The node's name, such as `leveret@localhost`.
    pub name: String,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// Open file descriptors, and their limit.
    pub descriptors: (Option<u64>, Option<u64>),
    /// Milliseconds since the process started.
    pub uptime: u64,
    /// Bytes of memory in use above which publishers are blocked.
    pub memory_limit: Option<u64>,
    /// Whether they are blocked for this reason.
    pub memory_alarm: bool,
    /// Bytes free on the data directory's file system.
    pub disk_free: Option<u64>,
    /// Free bytes below which publishers are blocked.
    pub disk_free_limit: Option<u64>,
    /// Whether they are blocked for this reason.
    pub disk_alarm: bool,
}

/// Counters since the process started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Connections accepted since the start.
    pub connections_opened: u64,
    /// Connections that have ended.
    pub connections_closed: u64,
    /// Channels opened since the start.
    pub channels_opened: u64,
    /// Channels that have ended.
    pub channels_closed: u64,
    /// Messages confirmed to publishers since the start.
    pub confirmed: u64,
    /// Messages returned as unroutable.
    pub returned: u64,
}
