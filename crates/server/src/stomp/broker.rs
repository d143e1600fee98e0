//! STOMP clients on the embedded broker.
//!
//! - [`session`]: an open connection's state on the broker: a publisher, subscriptions, transactions, receipts.
//! - [`sending`]: SEND, and the queues and reply queues that it may need. [`transactions`]: BEGIN to COMMIT.
//! - [`subscribing`]: SUBSCRIBE, UNSUBSCRIBE, ACK and NACK. [`messages`]: MESSAGE frames.
//! - [`receipts`]: receipts that wait until their requests' changes are on disk.
//!
//! Each subscription is handled like an AMQP channel with one consumer ([`crate::amqp::deliveries`]), so that a
//! cumulative acknowledgement affects its own subscription only, as the specification requires. In RabbitMQ all
//! subscriptions share a channel, and such an acknowledgement affects the others as well.

mod messages;
mod receipts;
mod sending;
mod session;
mod subscribing;
mod transactions;

pub(super) use session::BrokerStompSession;
