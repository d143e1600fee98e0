//! MQTT clients, as with RabbitMQ's plugin: subscriptions are queues bound to a topic exchange, so that MQTT and AMQP
//! clients can exchange messages.
//!
//! - [`connection`]: one connection between its socket and [`mqtt::server`]. [`login`]: its CONNECT; [`admission`]: from
//!   CONNECT to its session; [`session`]: the session's interface; [`session_ownership`]: the owner of each session;
//!   [`late_input`]: the remaining input of a connection that has lost its session.
//! - [`message`]: maps MQTT messages to AMQP messages, and back; [`native`]: as RabbitMQ 4 does. [`subscriptions`]: finds
//!   the subscriptions that a message matches, with a [`filter_index`]. [`on_demand`]: parts that are allocated for few
//!   sessions.
//! - [`upstream`]: sessions in front of an upstream.
//!
//! Sessions on the embedded broker:
//! - [`broker_admission`]; [`client`]: a client's state on the broker; [`subscribing`], [`delivering`], [`pending_delivery`],
//!   [`inbox`], [`waiting`].
//! - [`hub`]: the sessions of all clients; [`detached`]: a detached session. [`merging`]: upgrades sessions that earlier
//!   versions stored. [`found_queues`]: queues that exist without a session.
//! - [`in_flight`]: the records of QoS 2 messages to clients.
//! - [`retained`]: retained messages, and [`pending_retained`]: those pending for a client. [`received`]: QoS 2 messages
//!   that clients have not released.
//! - [`missing_exchange`]: logs that `mqtt_exchange` is missing.
//! - [`error`]: the errors of restoring sessions and of wills.
//!
//! Invariants: an acknowledgement is sent once everything that it promises is on disk. Messages for a client wait in its
//! queue, and in memory here only up to a limit.

mod admission;
mod broker_admission;
mod client;
mod connection;
mod delivering;
mod detached;
mod disk;
mod error;
mod filter_index;
mod found_queues;
mod hub;
mod in_flight;
mod inbox;
mod late_input;
mod leftovers;
mod login;
mod merging;
mod message;
mod missing_exchange;
mod native;
mod on_demand;
mod pending_delivery;
mod pending_retained;
mod received;
mod repeating;
mod retained;
mod session;
mod session_ownership;
mod subscribing;
mod subscriptions;
mod upstream;
mod vhosts;
mod waiting;

#[cfg(test)]
mod simulation;

use std::sync::Arc;
use std::time::Instant;

use ::mqtt::MqttVersion;
use ::mqtt::server::MqttSettings;
use broker::{Broker, QueueCapacity, QueueKind};
pub(crate) use connection::MqttConnection;
pub use error::MqttRestoreError;

use self::admission::Admission;
use self::broker_admission::BrokerAdmission;
use self::hub::Hub;
use self::login::{MqttLogin, MqttRefused};
use self::message::MessageMapping;
use self::upstream::UpstreamAdmission;
pub(crate) use self::upstream::UpstreamHub;
pub use self::upstream::{
    DetachedMqttSession, GroupStatus, MqttUpstreamTotals, RetainedState, RetainedStatus,
};
pub use self::vhosts::MqttVhosts;
use crate::client::ConnectionCore;
use crate::clock::Clock;
use crate::server::Shared;

/// Settings for MQTT clients.
#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// The choice of a client's virtual host.
    pub vhosts: MqttVhosts,
    /// The user of clients without a user name; `None` refuses them.
    pub anonymous_user: Option<String>,
    /// The topic exchange that clients' messages are published to and their queues are bound to.
    pub exchange: Arc<str>,
    /// The type of sessions' durable queues in front of an upstream: classic or quorum.
    pub durable_queue_type: QueueKind,
    /// The limit, in bytes, of messages that wait for a live client. Above it the oldest QoS 0 messages are dropped.
    pub queue_max: u64,
    /// Limits and supported features.
    pub settings: Arc<MqttSettings>,
}

/// Bytes of memory that a waiting message takes in addition to its body.
const MESSAGE_OVERHEAD: u64 = 100;

impl MqttConfig {
    /// One virtual host, and no anonymous clients.
    #[cfg(test)]
    pub(crate) fn of_test(settings: Arc<MqttSettings>) -> Self {
        let vhosts = MqttVhosts { default: "/".to_owned(), ..MqttVhosts::default() };
        Self {
            vhosts,
            anonymous_user: None,
            exchange: "amq.topic".into(),
            durable_queue_type: QueueKind::Classic,
            queue_max: 4 << 20,
            settings,
        }
    }

    /// [`MqttConfig::queue_max`] as the capacity of a queue, which counts bodies alone.
    fn queue_capacity(&self) -> QueueCapacity {
        QueueCapacity { messages: self.queue_max / MESSAGE_OVERHEAD, bytes: self.queue_max }
    }
}

/// The sessions of all MQTT clients, on either backend.
#[derive(Clone)]
pub(crate) enum MqttBackend {
    /// On the embedded broker.
    Broker(Arc<Hub>),
    /// In front of an upstream.
    Upstream(Arc<UpstreamHub>),
}

impl MqttBackend {
    fn config(&self) -> &MqttConfig {
        match self {
            Self::Broker(hub) => &hub.config,
            Self::Upstream(hub) => &hub.config,
        }
    }

    fn mapping(&self, shared: &Shared) -> MessageMapping {
        match self {
            Self::Broker(hub) => MessageMapping::of_broker(hub.broker().compatibility()),
            Self::Upstream(_) => MessageMapping::of_upstream(shared.backend.compatibility()),
        }
    }

    /// Starts the admission of a client that has sent CONNECT.
    fn admit(
        &self,
        login: MqttLogin,
        core: &mut ConnectionCore,
        version: MqttVersion,
    ) -> Result<Box<dyn Admission>, MqttRefused> {
        match self {
            Self::Broker(hub) => Ok(Box::new(BrokerAdmission::new(hub, login, core, version)?)),
            Self::Upstream(hub) => Ok(Box::new(UpstreamAdmission::new(hub, login, core, version)?)),
        }
    }
}

/// Restores the sessions of the embedded broker's clients and starts their expiry. Must be called within a runtime.
///
/// # Errors
/// Stored state cannot be read.
pub(crate) fn start(
    broker: &Arc<Broker>,
    config: MqttConfig,
    clock: Clock,
) -> Result<MqttBackend, MqttRestoreError> {
    let hub = Hub::new(Arc::clone(broker), config, clock);
    hub.load(clock.timestamp(Instant::now()))?;
    tokio::spawn(Arc::clone(&hub).run_expiry());
    Ok(MqttBackend::Broker(hub))
}
