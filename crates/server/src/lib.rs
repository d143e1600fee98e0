//! Listeners and sessions: this crate joins transport, protocol and backend.
//!
//! - [`Server`]: accepts connections within [`Limits`], runs them, and drains them.
//! - [`Backend`]: the single entry to the backends, the embedded [`broker::Broker`] or the upstream
//!   [`proxy::Pool`].
//! - [`Preface`]: the PROXY protocol and TLS, which precede the client's protocol.
//! - [`PROTOCOLS`]: the table of the protocols that clients speak.
//! - [`WebSocketConfig`]: AMQP inside WebSockets, for browsers.
//! - [`AccessLog`]: logs each connection's start, and its end with the reason.
//! - [`Relay`]: any TCP server inside WebSockets.
//! - [`Alarms`]: make publishers wait when memory or disk runs short.
//! - `mqtt`: MQTT clients of the embedded broker, and their sessions ([`MqttConfig`]).
//! - `stomp`: STOMP clients of the embedded broker or the upstream.
//! - [`Migration`]: moves the messages of all queues to another broker, or from there.
//! - `upstream`: sessions of other protocols in front of an upstream, as AMQP through the pool.
//! - [`replace_private_file`]: small files in the data directory.
//! - [`OpenConnection`]: an open connection, for operators to inspect and close.
//! - `amqp`: AMQP 0-9-1 clients: the connection ([`transport::Protocol`]) and its session on a backend.
//!
//! Invariants: a client that cannot be served ends alone, with its protocol's own error; no client's input is
//! answered by another client's task.
//!
//! Out of scope: command-line arguments, and HTTP beyond the upgrade to WebSocket and the files served next to it.

mod access;
mod alarms;
mod amqp;
mod backend;
mod client;
mod clock;
mod limits;
mod lines;
mod metrics;
mod migration;
mod mqtt;
mod network;
mod pending_authorisation;
mod preface;
mod private_file;
mod protocols;
mod registry;
mod relay;
mod server;
#[cfg(test)]
mod simulated;
mod spool;
mod stomp;
mod upstream;
mod websocket;

pub use access::{AccessFormat, AccessLog, AccessLogWriter};
pub use alarms::{Alarms, Resource};
#[cfg(feature = "loom")]
pub use amqp::deliveries::loom_models;
pub use backend::Backend;
pub use clock::{Clock, ClockReading};
pub use limits::{
    ConnectionCounter, ConnectionLease, ConnectionLimits, Exceeded, InUse, LimitReached, Limits, Scopes,
};
pub use lines::{LAST_LINES_TIMEOUT, LineQueue, LineReport, LineTarget, LineWriter};
pub use metrics::{Confirms, Counter, ServerMetrics};
pub use migration::{
    ExchangeRecord, Migration, MigrationConfig, MoveDirection, MoveLoginError, MovedQueue, MovedQueueState,
    check_target_login,
};
pub use mqtt::{
    DetachedMqttSession, GroupStatus, MqttConfig, MqttRestoreError, MqttUpstreamTotals, MqttVhosts,
    RetainedState, RetainedStatus,
};
pub use network::{Network, ParseNetworkError};
pub use preface::{Preface, TrustedProxies};
pub use private_file::replace_private_file;
pub use protocols::{ClientProtocol, ListenerKind, PROTOCOLS};
pub use registry::{ChannelStatus, ClientSession, OpenConnection, canonical};
pub use relay::{Relay, RelayConfig, RelayUpstream, TextRule};
pub use server::{DepartingClient, MAX_CLIENT_STATE, MAX_UNSPLIT_MESSAGE, ResumeError, Server, ServerConfig};
pub use spool::{
    ForwardingMode, ParkedMessage, Spool, SpoolConfig, SpoolError, SpoolRule, SpoolSelection, SpoolStatus,
};
pub use upstream::multiplexing::{
    MultiplexedBindingStatus, MultiplexedCounts, MultiplexedQueueStatus, MultiplexedTotals,
};
pub use websocket::{Routes, WebSocketConfig, Webroot};
