//! STOMP clients in front of an upstream, as AMQP clients of it: what RabbitMQ's adapter does with a channel of its own.
//!
//! - [`session`]: an open connection's state: the answers it waits for, and messages for the client.
//! - [`requests`]: SEND to UNSUBSCRIBE as AMQP methods. [`transactions`]: BEGIN to COMMIT.
//! - [`awaited`]: methods whose answers are due. [`deferred`]: requests that take more than one turn.
//! - [`live`]: subscriptions to topics that share a queue with other clients'.
//! - [`receipts`]: receipts that wait for answers and confirms. [`unsettled`]: deliveries that are not acknowledged.
//!
//! A client has one channel upstream, so that its requests take effect in their order. They are sent without waiting for the
//! answers of those before; the one that is refused closes the channel, and the client's connection with it, as with
//! RabbitMQ's adapter. Messages of subscriptions without acknowledgements are acknowledged here, in batches, once they are in
//! the client's outbox: a consumer with a window may share its upstream connection with others'.

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
