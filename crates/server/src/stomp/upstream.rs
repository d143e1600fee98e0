//! STOMP clients in front of an upstream, as AMQP clients of it: the work of RabbitMQ's adapter, done on a channel
//! through the pool.
//!
//! - [`session`]: an open connection's session: the upstream's answers, and messages for the client.
//! - [`requests`]: SEND to UNSUBSCRIBE as AMQP methods. [`transactions`]: BEGIN to COMMIT.
//! - [`awaited`]: unanswered methods. [`deferred`]: requests that take more than one turn.
//! - [`live`]: subscriptions to topics that use a shared queue.
//! - [`receipts`]: receipts that wait for answers and confirms. [`unsettled`]: unacknowledged deliveries.
//!
//! A client has one channel upstream, so that its requests take effect in order. They are sent without waiting for the
//! answers to earlier ones. As with RabbitMQ's adapter, a refused request closes the channel, and with it the client's
//! connection. Messages of subscriptions without acknowledgements are acknowledged here, in batches, once they are in the
//! client's outbox: a consumer with a prefetch can share its upstream connection with other clients'.

mod awaited;
mod deferred;
mod live;
mod receipts;
mod requests;
mod session;
#[cfg(test)]
mod tests;
mod transactions;
mod unsettled;

pub(super) use session::UpstreamStompSession;
