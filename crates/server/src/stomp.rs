//! STOMP clients, as served by RabbitMQ's adapter (<https://www.rabbitmq.com/docs/stomp>), on the embedded broker or in front
//! of an upstream.
//!
//! - [`connection`]: the connection ([`transport::Protocol`]) around [`stomp::server::StompServerConnection`], with
//!   limits and drain. [`login`]: its CONNECT.
//! - [`session`]: the session's interface. [`broker`]: on the embedded broker; [`upstream`]: in front of an upstream.
//! - [`destinations`], [`declaring`]: destinations, and headers that are arguments of queues. [`properties`]: headers as
//!   AMQP properties, and back. [`sending`]: a SEND before its message is published. [`transaction`]: messages that wait
//!   for COMMIT.

mod broker;
mod connection;
mod declaring;
mod destinations;
mod login;
mod properties;
mod sending;
mod session;
mod transaction;
mod upstream;

#[cfg(test)]
mod simulation;

pub(crate) use connection::StompConnection;
