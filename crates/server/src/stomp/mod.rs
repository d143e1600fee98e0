//! STOMP clients on the embedded broker, as RabbitMQ's adapter serves them (<https://www.rabbitmq.com/docs/stomp>).
//!
//! - [`connection`]: the connection ([`transport::Protocol`]) around [`stomp::server::Connection`]: login, limits, drain.
//! - [`session`]: what an open connection has in the broker: one publisher, subscriptions, transactions, receipts.
//! - [`sending`]: SEND, and the queues and answers that it may need. [`transactions`]: BEGIN to COMMIT.
//! - [`subscribing`]: SUBSCRIBE, UNSUBSCRIBE, ACK and NACK. [`declaring`]: headers as arguments of queues.
//! - [`properties`]: headers as AMQP properties, and back. [`messages`]: MESSAGE frames.
//! - [`receipts`]: answers that wait until what they promise is kept.
//!
//! Each subscription is to the broker what an AMQP channel with one consumer is ([`crate::amqp::deliveries`]), so that
//! acknowledging with all before it is about the subscription alone, as the specification has it. With RabbitMQ, where all
//! subscriptions share a channel, it is about those of the others, too.

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

pub(crate) use connection::Connection;
