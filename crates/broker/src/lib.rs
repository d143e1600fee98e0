//! The core of a RabbitMQ-compatible message broker: in memory, and what is to survive a restart also in a [`Store`].
//!
//! # Parts
//!
//! - [`Broker`]: users and virtual hosts. [`VirtualHost`]: exchanges, queues and bindings by name; what may be done,
//!   and the error when it may not ([`BrokerError`], to the letter of RabbitMQ 3.10).
//! - [`Seat`]: a connection in a virtual host, and what its user may do there ([`Permissions`], [`VirtualHostLimits`],
//!   [`UserLimits`]). [`Policy`]: arguments that the operator gives to queues and exchanges. [`Definitions`]: all of it
//!   from a file.
//! - `manage`: what an operator's tools read and change.
//! - `ledger` and `persistence`: definitions and messages as they are written down, and read back.
//! - `topology` and `routing`: which queues a message goes to. [`Publisher`] remembers routes and hands messages over
//!   in batches. [`Message`]: one immutable object for all its queues. [`Tracer`]: what operators see of messages on their way.
//! - [`Queue`]: ready messages in order, and its consumers, which are whatever implements [`Consumer`].
//! - `deadlines` and [`Timestamp`]: time, which the caller brings. [`Metrics`]: counters; `rates`: those of single queues
//!   and exchanges, with rates.
//!
//! # How to use it
//!
//! One [`SessionId`] for each connection, one [`Publisher`] for each channel. What a consumer or `get` has taken
//! ([`Delivery`]) the session keeps until it is settled, and gives back with [`Queue::ack`], [`Queue::requeue`] or
//! [`Queue::reject`]; the queue only counts it. At its end a session cancels its consumers, requeues what it holds,
//! and calls [`VirtualHost::end_session`]. A timer calls [`Broker::expire`] at [`Broker::next_deadline`].
//!
//! # Lock order
//!
//! 1. a queue; 2. a consumer's own lock, taken in [`Consumer::accept`]; 3. the list of deadlines.
//!
//! A virtual host's policies may be locked while its topology is taken, never the other way round. Otherwise the lock
//! of the topology and that of a virtual host's exclusive queues are taken alone: never together with each
//! other or with a queue's. Nobody may call a queue with a consumer's lock held.
//!
//! # What always holds
//!
//! - No input panics, and no lock is held across anything that waits.
//! - Creating or deleting costs the size of what is created or deleted, whatever else exists; very large deletions
//!   let others in between.
//! - Order within a queue is that of publishing; what comes back takes its old place.
//! - A cached route is used only as long as the topology has not changed.
//!
//! # What must never be added
//!
//! Sockets, clocks, threads, async, wire frames, front-end protocols. `amqp` is here for field tables, properties and
//! reply codes.

mod arguments;
mod broker;
mod dead_letter;
mod deadlines;
mod definitions;
mod error;
mod firehose;
mod inspect;
mod ledger;
mod limits;
mod manage;
mod message;
mod metrics;
mod names;
mod paging;
mod permissions;
mod persistence;
mod policies;
mod publisher;
mod queue;
mod rates;
mod replies;
mod routing;
mod table_view;
mod time;
mod topology;
mod users;
mod vhost;

pub use store::catalogue::{Catalogue, CatalogueError, Change, Section, Ticket};
pub use store::journal::Lsn;
pub use store::{Store, Waiter};

/// The version of RabbitMQ that the broker behaves as. Clients, tools and scripts look at it to know what they may ask for.
pub const COMPATIBLE_VERSION: &str = "3.10.8";

pub use arguments::{DeadLettering, Overflow, QueueArguments, QueueKind};
pub use broker::{Broker, BrokerConfig};
pub use deadlines::DeadlineWaker;
pub use definitions::{Definitions, DefinitionsError, arguments_of, json_of};
pub use error::BrokerError;
pub use firehose::{TracedConnection, Tracer};
pub use inspect::without_blind_copies;
pub use limits::VirtualHostLimits;
pub use manage::{BindingEnd, BindingView, ExchangeView, QueueView};
pub use message::{Body, BodyView, MAX_INLINE_BODY, Message, Traits};
pub use metrics::{Counter, FrontEnd, Metrics, Published};
pub use names::generated_name;
pub use paging::{Held, PagingWaker};
pub use permissions::{Pattern, Permissions, Seat, TopicPermissions};
pub use persistence::{RestoreError, body_bytes};
pub use policies::{ApplyTo, Policy, PolicyDefinition};
pub use publisher::{Flushed, Publish, Publisher, Share};
pub use queue::{
    Consumer, ConsumerId, ConsumerInfo, ConsumerSpec, Delivery, Fetched, Got, Offer, Queue, QueueProperties,
    Room,
};
pub use rates::{Count, Leaving, MessageCounts, Passing, Publishing};
pub use replies::{REPLY_QUEUE, is_reply_name};
pub use routing::ExchangeKind;
pub use time::Timestamp;
pub use users::{Identity, LoginRefused, PasswordHash, UserLimits, UserSpec};
pub use vhost::{Binding, DeclaredQueue, ExchangeDeclare, QueueDeclare, VirtualHost};

/// A connection, as the owner of exclusive queues. The caller numbers its connections and never reuses a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);
