//! Live subscriptions of many clients that share one queue upstream.
//!
//! Clients with one login and virtual host share an exclusive queue, which is bound with the union of their binding keys
//! to a topic exchange. Each message crosses the network once, and is passed here to all clients that it matches.
//!
//! - [`subscriptions`]: all shared queues of a server, and their upstream logins ([`MultiplexedSubscriptions`]).
//! - [`queue`]: one shared queue, and a client's membership of it ([`MultiplexedSubscriber`]).
//! - [`inbox`]: the events for one client ([`SubscriberInbox`]); [`waiting`]: its messages; [`budget`]: the memory of all
//!   inboxes.
//! - [`state`]: subscribers and bindings; [`requests`]: requests to the upstream; [`answers`]: passes its answers to the
//!   subscribers; [`fan_out`]: passes a message to them.
//! - [`link`]: the dialogue with the upstream; [`dialogue`]: the dialogues of other queues. [`task`]: connects and
//!   reconnects.
//!
//! A session creates an inbox, joins, and subscribes. It takes events from the inbox when its outbox is nudged, and drops
//! its [`MultiplexedSubscriber`] when its client disconnects.
//!
//! Invariants:
//! - A key is bound upstream before its subscriber is notified, and a subscription gets no message before that.
//! - A subscriber's messages come in the order of the queue, each once per subscription.
//! - A subscriber that does not take its messages fast enough gets no more, and delays no other subscriber.
//! - A refused key is reported to its own subscribers only.
//! - When the connection is lost, subscribers stay, and all keys are bound again. Messages published in between are not
//!   received, as for a client that reconnects to a broker.
//! - A turn of the queue's task ends when its budget is used up, however many subscribers a message has.
//!
//! [`task`] also runs the queues for MQTT takeovers and retained messages.
//!
//! Clients that share a queue have the same permissions, which the upstream checks when a key is bound. A subscription to
//! a key that is already bound is not checked again. Permissions that depend on a client identifier are not applied.

mod answers;
mod budget;
pub(crate) mod dialogue;
mod fan_out;
mod inbox;
pub(crate) mod link;
mod queue;
mod requests;
mod state;
mod subscriptions;
pub(crate) mod task;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;

pub(crate) use inbox::{
    Copies, InboxLimits, IsDroppable, MultiplexedMessage, SubscriberEvent, SubscriberInbox,
};
pub use queue::{MultiplexedBindingStatus, MultiplexedQueueStatus};
pub(crate) use queue::{MultiplexedSubscriber, UpstreamLogin};
pub use state::MultiplexedCounts;
pub use subscriptions::MultiplexedTotals;
pub(crate) use subscriptions::{LoginKey, MultiplexedSubscriptions, PoolUpstream};
