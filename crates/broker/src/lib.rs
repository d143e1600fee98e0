//! The core of a RabbitMQ-compatible message broker: in memory, with everything that has to survive a restart
//! also in a [`Store`].
//!
//! # Parts
//!
//! - [`Broker`]: users and virtual hosts. [`VirtualHost`]: exchanges, queues and bindings by name; checks
//!   each operation, and returns RabbitMQ's errors to the letter ([`BrokerError`]).
//! - [`AuthorisedSession`]: a connection's authorised session in a virtual host, and its user's rights there
//!   ([`Permissions`], [`VirtualHostLimits`], [`UserLimits`]). [`Policy`]: arguments that the operator gives
//!   to queues and exchanges. [`Definitions`]: all of these from a file.
//! - `manage`: the operations of an operator's tools, to read and to change.
//! - `topology_recorder` and `persistence`: definitions and messages as they are stored and restored.
//! - `topology` and `routing`: find the queues for a message. [`Publisher`] caches routes and hands messages
//!   over in batches. [`Message`]: one immutable object for all its queues. [`Tracer`]: reports messages to
//!   operators. [`TopicIndex`]: the index of a topic exchange, for other uses.
//! - [`Queue`]: ready messages in order, and its consumers, which implement [`Consumer`].
//! - `deadlines` and [`Timestamp`]: time, which the caller passes in. [`Metrics`]: counters; `rates`: those
//!   of single queues and exchanges, with rates.
//!
//! # How to use it
//!
//! Use one [`SessionId`] for each connection and one [`Publisher`] for each channel. The session stores each message that a
//! consumer or `get` has taken ([`Delivery`]) until it settles it with [`Queue::ack`], [`Queue::requeue`] or
//! [`Queue::reject`]; the queue only counts it. At its end a session cancels its consumers, requeues its unacknowledged
//! deliveries, and calls [`VirtualHost::end_session`]. A timer calls [`Broker::expire`] at [`Broker::next_deadline`].
//!
//! # Invariants
//!
//! - Locks are taken in the order of ARCHITECTURE.md, "Lock order". A queue must not be called with a consumer's
//!   lock held.
//! - No input causes a panic, and no lock is held across anything that waits.
//! - Creating or deleting costs time in proportion to what is created or deleted, whatever else exists; very
//!   large deletions let other threads continue in between.
//! - The order within a queue is that of publishing; requeued messages return to their old positions.
//! - A cached route is used only as long as the topology is unchanged.
//!
//! # Out of scope
//!
//! Sockets, clocks, threads, async, wire frames and front-end protocols must never be added. `amqp` is used
//! here for field tables, properties and reply codes.

mod arguments;
mod broker;
mod compatibility;
mod dead_letter;
mod deadlines;
mod definitions;
mod error;
mod firehose;
mod inspect;
mod limits;
mod lru;
mod manage;
mod message;
mod metrics;
mod names;
mod network;
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
mod topology_recorder;
mod users;
mod vhost;

pub use store::catalogue::{Catalogue, CatalogueError, Change, Section, Ticket};
pub use store::journal::Lsn;
pub use store::{AnswerQueue, DiskPoint, Store, Waiter};

pub use arguments::{DeadLettering, Overflow, QueueArguments, QueueKind};
pub use broker::{Broker, BrokerConfig};
pub use compatibility::Compatibility;
pub use definitions::{
    Definitions, DefinitionsError, LoadedDefinitions, NullNotAllowed, arguments_of, json_of,
};
pub use error::BrokerError;
pub use firehose::{TracedConnection, Tracer};
pub use inspect::without_blind_copies;
pub use limits::VirtualHostLimits;
pub use manage::{BindingEnd, BindingView, ExchangeView, PriorityCounts, QueueView};
pub use message::{ANNOTATION, Body, BodyView, BrokerProperties, MAX_INLINE_BODY, Message};
pub use metrics::{FrontEnd, MESSAGE_SIZES, MessageSizes, Metrics, Published, SharedCounter, SharedGauge};
pub use names::{ExchangeName, generated_name};
pub use network::network_of;
pub use paging::PagingStatus;
pub use permissions::{
    AuthorisedSession, AuthzBackend, AuthzDecision, AuthzFuture, AuthzRequest, AuthzSubject, AuthzTarget,
    Pattern, PatternError, PendingAuthz, Permissions, TooManySteps, TopicPermissions, literal_in_scope,
};
pub use persistence::{RestoreError, body_bytes};
pub use policies::{ApplyTo, Policy, PolicyDefinition, PolicyError};
pub use publisher::{Flushed, HeldRoute, Publish, Publisher, Share};
pub use queue::{
    Consumer, ConsumerCapacity, ConsumerId, ConsumerInfo, ConsumerSpec, Delivery, Fetched, ForeignMessage,
    Got, ImportOutcome, Moving, Offer, Queue, QueueCapacity, QueueProperties, Requeue, Returned,
    ThrottledPublisher,
};
pub use rates::{Count, DequeueCounts, MessageCounts, Publishing, ThroughputCounters};
pub use replies::{REPLY_QUEUE, is_reply_name, with_reply_queue};
pub use routing::{ExchangeKind, TopicIndex};
pub use time::{Timestamp, WallOffset};
pub use users::{
    AuthBackends, GUEST, Identity, LoginAnswer, LoginAttempt, LoginRefused, PasswordHash, PendingAnswer,
    TokenPermissions, UserLimits, UserSpec,
};
pub use vhost::{Binding, DeclaredQueue, ExchangeDeclare, OwnedQueues, QueueDeclare, VirtualHost};

/// Identifies a connection, as the owner of exclusive queues. The caller numbers its connections and never
/// reuses a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);
