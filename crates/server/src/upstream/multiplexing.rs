//! Live subscriptions of many clients on one queue upstream.
//!
//! Clients of one login and virtual host share an exclusive queue, which is bound to the union of their binding keys on a topic
//! exchange. Each message crosses the network once, and is handed here to all clients that it matches.
//!
//! - [`subscriptions`]: all shared queues of a server, and how they log in upstream ([`MultiplexedSubscriptions`]).
//! - [`queue`]: one of them, and a client's hold on it ([`MultiplexedSubscriber`]).
//! - [`inbox`]: what waits for one client ([`SubscriberInbox`]); [`waiting`]: its messages; [`budget`]: the memory of all
//!   inboxes together.
//! - [`state`]: subscribers and bindings; [`requests`]: what the upstream is asked for; [`answers`]: how its answers reach
//!   the subscribers; [`fan_out`]: how a message does.
//! - [`link`]: the conversation with the upstream; [`dialogue`]: those of other queues. [`task`]: connects, and connects again.
//!
//! A session makes an inbox, joins, and subscribes; it takes events from the inbox when its outbox is nudged. It drops its
//! [`MultiplexedSubscriber`] when its client has gone.
//!
//! Invariants:
//! - A key is bound upstream before its subscriber is notified, and a subscription gets no message before.
//! - A subscriber's messages come in the order of the queue, each once for each of its subscriptions.
//! - A subscriber that does not take its messages in time gets no more, and holds up nobody.
//! - A refused key is reported to its own subscribers alone.
//! - When the connection is lost, subscribers stay, and all keys are bound again; messages published in between are not
//!   received, as with a broker whose client connects again.
//! - A turn of the queue's task ends when its work is used up, however many subscribers a message has.
//!
//! [`task`] runs other queues of a login as well: those of MQTT's takeovers and retained messages.
//!
//! Clients that share a queue have the same permissions, which the upstream checks when a key is bound: whoever subscribes
//! to a key that is bound already is not checked again. Permissions that depend on a client's id do not apply.

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
