//! STOMP clients on the embedded broker, as served by RabbitMQ's adapter
//! (<https://www.rabbitmq.com/docs/stomp>).
//!
//! - [`connection`]: the connection ([`transport::Protocol`]) around [`stomp::server::StompServerConnection`]: login,
//!   limits, drain.
//! - [`session`]: an open connection's state on the broker: a publisher, subscriptions, transactions, receipts.
//! - [`sending`]: SEND, and the queues and replies that it may need. [`transactions`]: BEGIN to COMMIT.
//! - [`subscribing`]: SUBSCRIBE, UNSUBSCRIBE, ACK and NACK. [`declaring`]: headers as arguments of queues.
//! - [`properties`]: headers as AMQP properties, and back. [`messages`]: MESSAGE frames.
//! - [`receipts`]: receipts that wait until their requests are on disk.
//!
//! To the broker, each subscription is like an AMQP channel with one consumer ([`crate::amqp::deliveries`]), so
//! that a cumulative acknowledgement affects its own subscription only, as the specification requires. In
//! RabbitMQ all subscriptions share a channel, and it affects the others, too.

mod connection;
mod declaring;
mod messages;
mod properties;
mod receipts;
mod sending;
mod session;
mod subscribing;
mod transactions;

#[cfg(test)]
mod simulation;

pub(crate) use connection::StompConnection;
