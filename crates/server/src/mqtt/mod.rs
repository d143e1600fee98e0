//! MQTT clients on the embedded broker, as with RabbitMQ's plug-in: subscriptions are queues that are bound to amq.topic, so
//! that MQTT and AMQP clients hear each other.
//!
//! - [`connection`]: one connection between its socket and [`mqtt::server`]. [`login`]: its CONNECT.
//! - [`client`]: what the broker has for it; [`subscribing`], [`delivering`], [`owing`], [`subscriptions`], [`inbox`], [`waiting`].
//! - [`hub`]: the sessions of all clients; [`kept`]: one of them between two connections. [`merging`]: what earlier
//!   versions have left of theirs.
//! - [`message`]: messages of MQTT as messages of AMQP, and back. [`retained`]: retained messages, and [`owed`]: those that a
//!   client is to be sent. [`received`]: messages of QoS 2 that clients have not released.
//!
//! What always holds: an acknowledgement is sent when all that it promises is on disk; what is to be sent to a client waits
//! in its queue, and here only within limits.
//!
//! Lock order: a queue of the broker, then a client's inbox, then its outbox; the hub's list of sessions with no queue's.

mod client;
mod connection;
mod delivering;
mod disk;
mod hub;
mod inbox;
mod kept;
mod login;
mod merging;
mod message;
mod owed;
mod owing;
mod received;
mod retained;
mod subscribing;
mod subscriptions;
mod waiting;

#[cfg(test)]
mod simulation;

use std::sync::Arc;
use std::time::Instant;

use ::mqtt::server::Settings;
use broker::Broker;
pub(crate) use connection::Connection;
pub(crate) use hub::Hub;

use crate::door::Clock;

/// What MQTT clients are offered.
#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// The virtual host of clients that name none.
    pub vhost: String,
    /// Whose rights clients have that give no user name; `None` lets none in.
    pub anonymous_user: Option<String>,
    /// Limits and abilities.
    pub settings: Arc<Settings>,
}

/// Brings the sessions back, and keeps their time. To be called within a runtime.
///
/// # Errors
/// What cannot be read.
pub(crate) fn start(broker: &Arc<Broker>, config: MqttConfig, clock: Clock) -> Result<Arc<Hub>, String> {
    let hub = Hub::new(Arc::clone(broker), config, clock);
    hub.load(clock.timestamp(Instant::now()))?;
    tokio::spawn(Arc::clone(&hub).keep_time());
    Ok(hub)
}
