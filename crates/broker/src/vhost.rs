//! Virtual hosts: exchanges, queues and bindings by name, with RabbitMQ's checks in RabbitMQ's order.

mod dead_lettering;
mod exchanges;
mod managing;
mod operator;
mod queues;
mod restoring;

pub use queues::OwnedQueues;

pub(crate) use exchanges::{check_deletable, check_not_default};
pub(crate) use restoring::TopologyRecovery;

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use amqp::{FieldTable, RawTable};
use hashbrown::HashMap;
use store::catalogue::{Catalogue, Ticket};
use store::{Store, Waiter};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{CachePadded, Mutex, Rank, RwLock, RwLockWriteGuard, work};

use crate::SessionId;
use crate::compatibility::Compatibility;
use crate::deadlines::Deadlines;
use crate::error::BrokerError;
use crate::firehose::{TRACE_EXCHANGE, TracedConnection, Tracer};
use crate::limits::{Tally, VirtualHostLimits};
use crate::metrics::{FrontEnd, Metrics};
use crate::names::{ExchangeName, Resource};
use crate::paging::Paging;
use crate::permissions::{Access, ClientName, Grant, Grants};
use crate::policies::PolicyTable;
use crate::publisher::Publisher;
use crate::queue::{Queue, QueueCapacity, QueueContext};
use crate::rates::{ExchangeFlow, MessageCounts};
use crate::replies::ReplyQueues;
use crate::routing::{ExchangeKind, Routed};
use crate::time::{Timestamp, WallOffset};
use crate::topology::{Destination, Exchange, Routes, Topology};
use crate::topology_recorder::TopologyRecorder;
use crate::users::Identity;

/// The arguments of `exchange.declare`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExchangeDeclare<'a> {
    /// The exchange; names that begin with `amq.` are reserved (AMQP 0-9-1, exchange.declare).
    pub name: &'a str,
    /// Its type: `direct`, `fanout`, `topic`, `headers`, `x-consistent-hash` or `x-local-random`. Ignored when
    /// passive.
    pub kind: &'a str,
    /// Only check that it exists.
    pub passive: bool,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it is deleted with the last binding from it.
    pub auto_delete: bool,
    /// Whether clients are refused to publish to it.
    pub internal: bool,
    /// Only `alternate-exchange` and the hash arguments are used.
    pub arguments: RawTable<'a>,
}

/// The arguments of `queue.declare`.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueDeclare<'a> {
    /// Its name. If it is empty, the broker generates one.
    pub name: &'a str,
    /// Only check that it exists.
    pub passive: bool,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it belongs to the declaring session and is deleted with it.
    pub exclusive: bool,
    /// Whether it is deleted with its last consumer.
    pub auto_delete: bool,
    /// See [`crate::QueueArguments`].
    pub arguments: RawTable<'a>,
    /// The name of its type, if it is a queue of a front end's: a classic queue, whatever the virtual host's default, without
    /// `x-queue-type`.
    pub type_name: Option<&'static str>,
    /// Its maximum size, if its front end limits it. Only for queues that are not durable, since it is not stored.
    pub capacity: Option<QueueCapacity>,
}

/// A binding, to a queue (`queue.bind`, `queue.unbind`) or to an exchange (`exchange.bind`, `exchange.unbind`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Binding<'a> {
    /// The exchange that messages come from.
    pub source: &'a str,
    /// The queue or exchange that they go to.
    pub destination: &'a str,
    /// Matched against routing keys by a direct or topic exchange; other types ignore it or use it as a weight.
    pub routing_key: &'a str,
    /// Matched against headers by a headers exchange; otherwise only part of the binding's identity.
    pub arguments: RawTable<'a>,
}

/// The contents of `queue.declare-ok`.
#[derive(Debug, Clone)]
pub struct DeclaredQueue {
    /// The queue; its name may have been generated.
    pub queue: Arc<Queue>,
    /// The number of ready messages.
    pub messages: u64,
    /// The number of its consumers.
    pub consumers: u64,
    /// A ticket that is done when the queue is on disk, if it is durable.
    pub ticket: Ticket,
}

/// Permission for a publish that [`VirtualHost::check_publish`] has granted.
pub(crate) struct Allowed<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) client: Option<&'a ClientName>,
    pub(crate) routing_key: &'a str,
    /// The generation at which it was granted, or an earlier one.
    pub(crate) at: u64,
    /// The broker itself publishes to its own exchange, which needs no permission.
    pub(crate) may_be_internal: bool,
}

/// The result of [`VirtualHost::route`].
pub(crate) struct Found {
    pub(crate) exchange: ExchangeName,
    pub(crate) flow: Arc<ExchangeFlow>,
    pub(crate) routes: Routes,
    /// The generation for which the routes are valid.
    pub(crate) generation: u64,
}

/// A virtual host. All its methods may be called from any thread.
pub struct VirtualHost {
    name: Arc<str>,
    /// The broker's name.
    node: Arc<str>,
    /// Whether publishes and deliveries are reported to the firehose. Set by operators, and off after a
    /// start.
    traced: AtomicBool,
    /// The store for durable objects and messages, if any.
    store: OnceLock<Arc<Store>>,
    /// Publishers that look up a route modify its lock; those with a known route read the fields next to it.
    topology: CachePadded<RwLock<Topology, { Rank::TopologyOrQueue as u8 }>>,
    /// Incremented with every change of the topology, before its lock is released. Routes found at one value
    /// are valid until the next.
    generation: AtomicU64,
    /// Exclusive queues by owner, so that the end of a session costs only the number of its queues.
    exclusive: Mutex<HashMap<SessionId, HashMap<u64, Arc<Queue>>>, { Rank::Leaf as u8 }>,
    replies: ReplyQueues,
    grants: Grants,
    /// Names are matched against a snapshot, without the lock.
    policies: RwLock<Arc<PolicyTable>, { Rank::Policies as u8 }>,
    limits: RwLock<VirtualHostLimits, { Rank::Leaf as u8 }>,
    /// Connections that have the virtual host open.
    connections: Tally,
    metrics: Arc<Metrics>,
    paging: Arc<Paging>,
    compatibility: Compatibility,
    /// Offset of the times that it is given from the wall clock.
    wall: &'static WallOffset,
    /// For the queues in the topology.
    queue_context: Arc<QueueContext>,
    /// For reply queues, which are not in the topology, so nothing has to remove them from it.
    reply_context: Arc<QueueContext>,
    /// Whether durable queues are quorum queues unless their declarations say otherwise.
    prefers_quorum: AtomicBool,
    /// Counters of the default exchange, which is not in the topology.
    default_flow: Arc<ExchangeFlow>,
    /// The name of the default exchange, shared by its messages.
    default_exchange: ExchangeName,
    /// Counters of messages in queues that have been deleted.
    gone: Mutex<MessageCounts, { Rank::Leaf as u8 }>,
}

impl VirtualHost {
    pub(crate) fn new(
        name: &str,
        node: Arc<str>,
        metrics: Arc<Metrics>,
        deadlines: Arc<Deadlines>,
        paging: Arc<Paging>,
        compatibility: Compatibility,
        wall: &'static WallOffset,
    ) -> Arc<Self> {
        let name: Arc<str> = name.into();
        let context = |home: Weak<Self>| QueueContext {
            vhost: Arc::clone(&name),
            home,
            metrics: Arc::clone(&metrics),
            deadlines: Arc::clone(&deadlines),
            paging: Arc::clone(&paging),
            compatibility,
            arguments: Mutex::default(),
        };
        let vhost = Arc::new_cyclic(|this| Self {
            queue_context: context(Weak::clone(this)).into(),
            reply_context: context(Weak::new()).into(),
            name: Arc::clone(&name),
            node,
            traced: AtomicBool::new(false),
            store: OnceLock::new(),
            topology: CachePadded::default(),
            generation: AtomicU64::new(1),
            exclusive: Mutex::default(),
            grants: Grants::default(),
            policies: RwLock::default(),
            limits: RwLock::default(),
            connections: Tally::default(),
            replies: ReplyQueues::default(),
            metrics: Arc::clone(&metrics),
            paging: Arc::clone(&paging),
            compatibility,
            wall,
            prefers_quorum: AtomicBool::new(false),
            default_flow: Arc::default(),
            default_exchange: "".into(),
            gone: Mutex::default(),
        });
        let mut topology = vhost.topology.write();
        for (name, kind, internal) in STANDARD_EXCHANGES {
            vhost.metrics.exchanges.add(1);
            topology.insert_exchange(Exchange {
                name: (*name).into(),
                kind: *kind,
                durable: true,
                auto_delete: false,
                internal: *internal,
                alternate: None,
                arguments: FieldTable::new(),
                flow: OnceLock::new(),
            });
        }
        drop(topology);
        vhost
    }

    /// The name, unique among the virtual hosts of the broker.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The RabbitMQ release whose behaviour it follows.
    pub fn compatibility(&self) -> Compatibility {
        self.compatibility
    }

    /// The wall clock's time at a broker time, for clients.
    pub(crate) fn wall_time(&self, time: Timestamp) -> Timestamp {
        self.wall.wall_time(time)
    }

    /// Starts to store durable objects and messages. Existing objects were read from the store, except for the standard
    /// exchanges of a new virtual host.
    pub(crate) fn keep(&self, store: &Arc<Store>) {
        self.topology.write().keep(TopologyRecorder::new(store.catalogue().clone(), self.name.clone()));
        let _ = self.store.set(store.clone());
    }

    /// The store for durable objects and messages, if any.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Whether publishers may proceed: neither the backlog of unwritten messages nor the memory of long
    /// queues exceeds its limit.
    pub fn has_capacity(&self) -> bool {
        self.paging.has_capacity()
    }

    /// Wakes `waiter` when it should check again whether publishers [may proceed](Self::has_capacity); at once if they may.
    pub fn wait_for_capacity(&self, waiter: Arc<dyn Waiter>) {
        self.paging.wait_for_capacity(waiter);
    }

    /// The part of the store that holds definitions.
    pub fn catalogue(&self) -> Option<&Arc<Catalogue>> {
        self.store().map(|store| store.catalogue())
    }

    /// A ticket that is done when everything stored so far is on disk, if the operation concerned something
    /// durable.
    fn ticket(&self, durable: bool) -> Ticket {
        self.catalogue().filter(|_| durable).map(|catalogue| catalogue.last_noted()).unwrap_or_default()
    }

    /// Creates a publisher, for one channel. It enforces the user's permissions.
    pub fn publisher(self: &Arc<Self>, identity: &Identity) -> Publisher {
        Publisher::new(self.clone(), identity.clone(), self.grant_of(identity))
    }

    /// Whether publishes and deliveries are traced.
    #[inline]
    pub fn is_traced(&self) -> bool {
        // Relaxed suffices: clients learn of the switch over a connection, long after other threads can see
        // it.
        self.traced.load(Ordering::Relaxed)
    }

    /// Switches tracing on or off. As in RabbitMQ, the setting is lost on restart.
    pub fn set_traced(&self, traced: bool) {
        if self.traced.swap(traced, Ordering::Relaxed) != traced {
            tracing::info!(vhost = &*self.name, "tracing was switched {}", if traced { "on" } else { "off" });
        }
    }

    /// Creates a tracer of the messages that a client receives; `connection` is `None` if operators see no
    /// connection for it.
    pub fn tracer(
        self: &Arc<Self>,
        identity: &Identity,
        connection: Option<&dyn TracedConnection>,
    ) -> Tracer {
        Tracer::new(self, identity, connection)
    }

    pub(crate) fn node(&self) -> &Arc<str> {
        &self.node
    }

    /// Counts an unroutable message of an AMQP client or an HTTP request that is not returned. Only their callers know
    /// that; for other protocols, which return nothing, the publisher counts it.
    pub fn count_dropped(&self) {
        self.metrics().published(FrontEnd::Amqp).dropped.add(1);
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn reply_context(&self) -> Arc<QueueContext> {
        Arc::clone(&self.reply_context)
    }

    pub(crate) fn reply_queues(&self) -> &ReplyQueues {
        &self.replies
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Refuses to publish to an exchange that is missing or internal, or for which the user lacks permission.
    pub(crate) fn check_publish(
        &self,
        grant: &Grant,
        client: Option<&ClientName>,
        exchange: &str,
        routing_key: &str,
    ) -> Result<(), BrokerError> {
        let topology = self.topology.read();
        self.check_publish_in(&topology, grant, client, exchange, routing_key)
    }

    /// The checks of publishing to an exchange that do not depend on the routing key.
    pub(crate) fn check_publish_exchange(&self, grant: &Grant, exchange: &str) -> Result<(), BrokerError> {
        grant.check(Access::Write, Resource::Exchange, exchange)?;
        self.publish_slot(&self.topology.read(), exchange, false).map(drop)
    }

    fn check_publish_in(
        &self,
        topology: &Topology,
        grant: &Grant,
        client: Option<&ClientName>,
        exchange: &str,
        routing_key: &str,
    ) -> Result<(), BrokerError> {
        grant.check(Access::Write, Resource::Exchange, exchange)?;
        let slot = self.publish_slot(topology, exchange, false)?;
        match slot.map(|slot| topology.exchange_at(slot).kind) {
            Some(ExchangeKind::Topic) => grant.check_topic(Access::Write, exchange, routing_key, client),
            _ => Ok(()),
        }
    }

    /// The name of the exchange, the queues for a message published to it, and the generation for which these are valid. If
    /// that differs from the generation at which the user was granted permission, the check is repeated: the exchange may
    /// be another one by now, with topics that the user may not write.
    pub(crate) fn route(
        &self,
        exchange: &str,
        routed: Routed<'_>,
        allowed: &Allowed<'_>,
    ) -> Result<Found, BrokerError> {
        let topology = self.topology.read();
        let generation = self.generation();
        let Allowed { grant, client, routing_key, at, may_be_internal } = *allowed;
        if generation != at && !may_be_internal {
            self.check_publish_in(&topology, grant, client, exchange, routing_key)?;
        }
        let slot = self.publish_slot(&topology, exchange, may_be_internal)?;
        let (exchange, flow) = match slot.map(|slot| topology.exchange_at(slot)) {
            Some(exchange) => (exchange.name.clone(), exchange.flow()),
            None => (self.default_exchange.clone(), self.default_flow.clone()),
        };
        Ok(Found { exchange, flow, routes: topology.route(slot, routed), generation })
    }

    /// The slot of the exchange; `None` for the default exchange.
    fn publish_slot(
        &self,
        topology: &Topology,
        exchange: &str,
        may_be_internal: bool,
    ) -> Result<Option<u32>, BrokerError> {
        if exchange.is_empty() {
            return Ok(None);
        }
        let found = topology.exchange(exchange);
        let (slot, found) = found.ok_or_else(|| BrokerError::no_exchange(exchange, &self.name))?;
        if found.internal && !may_be_internal {
            let exchange = Resource::Exchange.describe(exchange, &self.name);
            return Err(BrokerError::access(format!("cannot publish to internal {exchange}")));
        }
        Ok(Some(slot))
    }

    /// Invalidates cached routes. Called with the topology's write lock held.
    fn topology_changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Removes doomed queues and exchanges, with all their bindings, and exchanges that are deleted with those. The lock is
    /// released now and then, so that the removal of very many bindings does not block other threads.
    fn delete_in_steps(&self, mut doomed: Vec<Destination>) {
        while let Some(what) = doomed.pop() {
            let mut topology = self.topology.write();
            let mut more = Vec::new();
            let (bindings, done) = topology.delete_in_steps(what, DELETE_CHUNK, &mut more);
            // Charged so that other tasks get their turn if the removal is long.
            work::charge(DELETED_BINDING, bindings);
            self.topology_changed();
            // Fair unlocking; otherwise this thread would finish the next chunk before a waiting publisher
            // has woken up.
            RwLockWriteGuard::unlock_fair(topology);
            self.metrics.bindings.sub(bindings);
            self.metrics.exchanges.sub(more.len());
            if !done {
                doomed.push(what);
            }
            doomed.append(&mut more);
        }
    }
}

impl fmt::Debug for VirtualHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualHost").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Nanoseconds charged for the removal of a binding.
const DELETED_BINDING: u32 = 1_000;

/// Bindings removed under one lock, for which lookups of queues and routes wait: a fraction of a millisecond. Each chunk of an
/// exchange's bindings begins with a walk over the places of those removed before, so that fewer would take longer together.
const DELETE_CHUNK: usize = 256;

/// Name, type and `internal` flag of the exchanges that every virtual host has.
const STANDARD_EXCHANGES: &[(&str, ExchangeKind, bool)] = &[
    ("amq.direct", ExchangeKind::Direct, false),
    ("amq.fanout", ExchangeKind::Fanout, false),
    ("amq.topic", ExchangeKind::Topic, false),
    ("amq.headers", ExchangeKind::Headers, false),
    ("amq.match", ExchangeKind::Headers, false),
    (TRACE_EXCHANGE, ExchangeKind::Topic, true),
];

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use crate::{Broker, BrokerConfig};

    #[test]
    fn the_default_exchange_is_viewed_without_locking_the_topology() {
        let vhost = Broker::new(BrokerConfig::default()).vhost("/").unwrap();
        let (sender, answer) = mpsc::sync_channel(1);
        let changing = vhost.topology.write();
        let asked = vhost.clone();
        thread::spawn(move || sender.send(asked.exchange_view("").map(|view| view.kind)));
        assert_eq!(answer.recv_timeout(Duration::from_secs(30)), Ok(Some("direct")));
        drop(changing);
    }
}
