//! MQTT clients in front of an upstream: what RabbitMQ's plug-in does there, as AMQP through the pool.
//!
//! - [`admission`]: CONNECT: the login upstream, the session's queue, and the claim to the session. [`hub`]: sessions.
//! - [`session`]: an open connection's session. [`subscribing`]: its subscriptions; [`delivering`]: messages for the client.
//! - [`uplink`]: a client's AMQP channels upstream: [`publishing`], [`queue_requests`] and [`queue_consumer`].
//! - [`live`]: subscriptions that go with the connection, on a queue that many clients share.
//! - [`takeover`]: a client's connections to other servers are closed when it connects here.
//! - [`retained`]: retained messages, which all servers in front of the upstream share.
//! - [`farewell`]: the rest of a session's work when its connection has ended.
//!
//! A session that outlives its connection has a durable queue upstream for messages of QoS 1, with the name that RabbitMQ
//! gives it. The queue is the session: it exists for as long as the queue does, and a client finds it on any Leveret, and on
//! RabbitMQ's own listener. The list of its subscriptions is the queue's bindings; a Leveret that has had the client before
//! knows them with their options.
//!
//! Invariants: whatever a client does is done upstream under its own user; a message is acknowledged to its publisher once
//! the upstream has confirmed it, and to the upstream once its receiver has acknowledged it.

mod admission;
mod delivering;
mod farewell;
mod hub;
mod live;
mod publishing;
mod queue_consumer;
mod queue_requests;
mod retained;
mod session;
mod subscribing;
mod takeover;
#[cfg(test)]
mod tests;
mod uplink;

pub(super) use admission::UpstreamAdmission;
pub(crate) use hub::UpstreamHub;
