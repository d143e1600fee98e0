//! Listeners and sessions: a transport, a protocol and a back end are joined here.
//!
//! - [`Server`]: accepts connections within [`Limits`], runs them, and drains them.
//! - [`Door`]: the one door to the back ends, the embedded [`broker::Broker`] or the upstream [`proxy::Pool`].
//! - [`Preface`]: what stands in front of the protocol: the PROXY protocol, TLS.
//! - [`WebSocketConfig`]: AMQP inside of WebSockets, for browsers.
//! - [`AccessLog`]: who connected, and why it ended.
//! - [`Relay`]: any TCP server inside of WebSockets.
//! - [`Alarms`]: whether publishers have to wait, for want of memory or disk.
//! - `mqtt`: MQTT clients of the embedded broker, and their sessions ([`MqttConfig`]).
//! - `stomp`: STOMP clients of the embedded broker.
//! - [`OpenConnection`]: a connection as operators see it, and close it.
//! - `amqp`: AMQP 0-9-1 clients: the connection ([`transport::Protocol`]) and its session behind the door.
//!
//! What always holds: a client that cannot be served ends alone, with its protocol's own error; nothing that a client
//! sends is answered by another client's task.
//!
//! Lock order: a queue of the broker, then a channel's deliveries, then an outbox.
//!
//! What must never be added: command-line arguments, HTTP beyond the upgrade to WebSocket and the files next to it.

mod access;
mod alarms;
mod amqp;
mod client;
mod door;
mod limits;
mod listener;
mod metrics;
mod mqtt;
mod network;
mod preface;
mod registry;
mod relay;
mod server;
#[cfg(test)]
mod simulated;
mod stomp;
mod websocket;

pub use access::{AccessFormat, AccessLog, AccessLogWriter, AccessTarget};
pub use alarms::{Alarms, Resource};
pub use door::{Clock, Door};
pub use limits::{ConnectionCounter, ConnectionLimits, Exceeded, InUse, LimitReached, Limits, Place, Scopes};
pub use listener::{Listener, SocketFile};
pub use metrics::{Confirms, Counter, Metrics};
pub use mqtt::MqttConfig;
pub use network::Network;
pub use preface::{Preface, TrustedProxies};
pub use registry::{ChannelStatus, OpenConnection, canonical};
pub use relay::{Relay, RelayConfig, RelayUpstream, TextRule};
pub use server::{MAX_UNSPLIT_MESSAGE, Server, ServerConfig};
pub use websocket::{Routes, WebSocketConfig, Webroot};
