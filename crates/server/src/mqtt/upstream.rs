//! MQTT clients in front of an upstream: the work of RabbitMQ's MQTT plugin, done in AMQP through the pool.
//!
//! - [`admission`]: CONNECT: the upstream login, the session's queues, and the claim to the session. [`hub`]: sessions.
//! - [`session`]: an open connection's session. [`subscribing`]: its subscriptions, [`pending`] until they are answered;
//!   [`delivering`]: messages for the client, and [`delivery_paths`]: their paths.
//! - [`uplink`]: a client's AMQP channels upstream: [`publishing`], [`queue_requests`] and [`queue_consumer`].
//! - [`live`]: subscriptions that end with the connection, on a queue that many clients share.
//! - [`groups`]: shared subscriptions, whose members compete for a queue's messages; [`group_consumers`]: their
//!   consumers; [`group_table`]: all groups with members connected here.
//! - [`state`]: the part of a persistent session that is stored upstream in addition to its message queue.
//! - [`session_takeover`]: closes a client's connections to other servers when it connects here.
//! - [`retained`]: retained messages, which all servers in front of the upstream share.
//! - [`teardown`]: the work after a connection has ended. [`delayed_wills`], [`detached_ages`]: the limits of what
//!   remains.
//! - [`shown`]: the operators' lists.
//!
//! A session that outlives its connection has a durable queue upstream for QoS 1 messages, with the name that RabbitMQ's
//! plugin uses. The session exists for as long as the queue does: a client finds it on any Leveret server, and on
//! RabbitMQ's own listener. Its subscriptions are the queue's bindings. Its [state queue](state) has the rest:
//! subscription options, QoS 0 subscriptions, and unreleased QoS 2 messages from the client.
//!
//! Invariants: everything that a client does is done upstream as its own user. A message is acknowledged to its publisher
//! once the upstream has confirmed it, and to the upstream once its receiver has acknowledged it.

mod admission;
mod delayed_wills;
mod delivering;
mod delivery_paths;
mod detached_ages;
mod group_consumers;
mod group_table;
mod groups;
mod hub;
mod live;
mod pending;
mod publishing;
mod queue_consumer;
mod queue_requests;
mod retained;
mod session;
mod session_takeover;
mod shown;
#[cfg(test)]
mod simulation;
mod state;
mod subscribing;
mod teardown;
#[cfg(test)]
mod tests;
mod unacked;
mod uplink;

pub(super) use admission::UpstreamAdmission;
pub use group_table::GroupStatus;
pub use hub::MqttUpstreamTotals;
pub(crate) use hub::UpstreamHub;
pub use retained::{RetainedState, RetainedStatus};
pub use shown::DetachedMqttSession;
