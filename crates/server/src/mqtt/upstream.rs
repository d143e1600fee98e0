//! MQTT clients in front of an upstream: what RabbitMQ's plugin does there, as AMQP through the pool.
//!
//! - [`admission`]: CONNECT: the login upstream, the session's queue, and the claim to the session. [`hub`]: sessions.
//! - [`session`]: an open connection's session. [`subscribing`]: its subscriptions, [`pending`] until they
//!   are answered; [`delivering`]: messages for the client, and [`delivery_paths`]: how they come.
//! - [`uplink`]: a client's AMQP channels upstream: [`publishing`], [`queue_requests`] and [`queue_consumer`].
//! - [`live`]: subscriptions that go with the connection, on a queue that many clients share.
//! - [`groups`]: shared subscriptions, whose members compete on a queue; [`group_consumers`]: their consumers;
//!   [`group_table`]: all groups with members here.
//! - [`state`]: what of a persistent session is stored upstream beside its messages.
//! - [`session_takeover`]: a client's connections to other servers are closed when it connects here.
//! - [`retained`]: retained messages, which all servers in front of the upstream share.
//! - [`teardown`]: the rest of a session's work when its connection has ended, and the bounds of what remains:
//!   [`delayed_wills`], [`detached_ages`].
//! - [`shown`]: all of these, as operators see them.
//!
//! A session that outlives its connection has a durable queue upstream for messages of QoS 1, with the name that RabbitMQ
//! gives it. The queue is the session: it exists for as long as the queue does, and a client finds it on any Leveret, and on
//! RabbitMQ's own listener. Its subscriptions are the queue's bindings. Its [state queue](state) has all that these cannot
//! tell: options, subscriptions of QoS 0, and messages of QoS 2 that the client has not released.
//!
//! Invariants: whatever a client does is done upstream under its own user; a message is acknowledged to its publisher once
//! the upstream has confirmed it, and to the upstream once its receiver has acknowledged it.

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
