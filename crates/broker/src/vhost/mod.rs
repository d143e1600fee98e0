//! Virtual hosts: exchanges, queues and bindings by name, with RabbitMQ's checks in RabbitMQ's order.

mod exchanges;
mod letters;
mod managing;
mod operator;
mod queues;
mod restoring;

pub(crate) use exchanges::{check_deletable, check_not_default};
pub(crate) use restoring::Restoring;

use std::fmt;
use std::sync::{Arc, OnceLock};

use amqp::{FieldTable, RawTable};
use hashbrown::HashMap;
use store::catalogue::{Catalogue, Ticket};
use store::{Store, Waiter};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Mutex, RwLock, RwLockWriteGuard};

use crate::SessionId;
use crate::deadlines::Deadlines;
use crate::error::BrokerError;
use crate::firehose::{TRACE_EXCHANGE, TracedConnection, Tracer};
use crate::ledger::Ledger;
use crate::limits::{Tally, VirtualHostLimits};
use crate::metrics::Metrics;
use crate::names::Resource;
use crate::paging::Paging;
use crate::permissions::{Access, ClientName, Grant, Grants};
use crate::policies::PolicyTable;
use crate::publisher::Publisher;
use crate::queue::Queue;
use crate::rates::{ExchangeFlow, MessageCounts};
use crate::replies::ReplyQueues;
use crate::routing::{ExchangeKind, Routed};
use crate::topology::{Destination, Exchange, Routes, Topology};
use crate::users::Identity;

/// `exchange.declare`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExchangeDeclare<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type: `direct`, `fanout`, `topic`, `headers` or `x-consistent-hash`. Ignored when passive.
    pub kind: &'a str,
    /// Only check that it exists.
    pub passive: bool,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with the last binding from it.
    pub auto_delete: bool,
    /// Clients cannot publish to it.
    pub internal: bool,
    /// `alternate-exchange` is known.
    pub arguments: RawTable<'a>,
}

/// `queue.declare`.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueDeclare<'a> {
    /// Its name. When it is empty the broker makes one up.
    pub name: &'a str,
    /// Only check that it exists.
    pub passive: bool,
    /// Survives a restart.
    pub durable: bool,
    /// Belongs to the declaring session and goes with it.
    pub exclusive: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// See [`crate::QueueArguments`].
    pub arguments: RawTable<'a>,
}

/// A binding, to a queue (`queue.bind`, `queue.unbind`) or to an exchange (`exchange.bind`, `exchange.unbind`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Binding<'a> {
    /// The exchange that messages come from.
    pub source: &'a str,
    /// The queue or exchange that they go to.
    pub destination: &'a str,
    /// The binding key.
    pub routing_key: &'a str,
    /// The pattern of a headers exchange; otherwise only part of the binding's identity.
    pub arguments: RawTable<'a>,
}

/// What `queue.declare-ok` tells.
#[derive(Debug, Clone)]
pub struct DeclaredQueue {
    /// The queue; its name may have been made up.
    pub queue: Arc<Queue>,
    /// Ready messages in it.
    pub messages: u64,
    /// Its consumers.
    pub consumers: u64,
    /// When it is on disk, if it is to be.
    pub ticket: Ticket,
}

/// That [`VirtualHost::check_publish`] has allowed a publish.
pub(crate) struct Allowed<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) client: Option<&'a ClientName>,
    pub(crate) routing_key: &'a str,
    /// The generation at which it was asked, or an earlier one.
    pub(crate) at: u64,
    /// The broker itself publishes, to an exchange of its own: nothing was asked, nor is it.
    pub(crate) may_be_internal: bool,
}

/// What [`VirtualHost::route`] finds.
pub(crate) struct Found {
    pub(crate) exchange: Arc<str>,
    pub(crate) flow: Arc<ExchangeFlow>,
    pub(crate) routes: Routes,
    /// That it holds for.
    pub(crate) generation: u64,
}

/// A virtual host. All its methods may be called from any thread.
pub struct VirtualHost {
    name: Arc<str>,
    /// The broker's name.
    node: Arc<str>,
    /// What is published and delivered is told to the firehose. Switched by operators, and off after a start.
    traced: AtomicBool,
    /// Where durable things are written down, if anywhere.
    store: OnceLock<Arc<Store>>,
    topology: RwLock<Topology>,
    /// Goes up with every change of the topology, before its lock is released. Routes found at one value hold until
    /// the next.
    generation: AtomicU64,
    /// Exclusive queues by owner, so that a session's end costs only what it owned.
    exclusive: Mutex<HashMap<SessionId, HashMap<u64, Arc<Queue>>>>,
    replies: ReplyQueues,
    grants: Grants,
    policies: RwLock<PolicyTable>,
    limits: RwLock<VirtualHostLimits>,
    /// Connections that have it open.
    connections: Tally,
    metrics: Arc<Metrics>,
    deadlines: Arc<Deadlines>,
    paging: Arc<Paging>,
    /// What goes through the default exchange, which is not in the topology.
    default_flow: Arc<ExchangeFlow>,
    /// What came and went in queues that are gone.
    gone: Mutex<MessageCounts>,
}

impl VirtualHost {
    pub(crate) fn new(
        name: &str,
        node: Arc<str>,
        metrics: Arc<Metrics>,
        deadlines: Arc<Deadlines>,
        paging: Arc<Paging>,
    ) -> Arc<Self> {
        let vhost = Arc::new(Self {
            name: name.into(),
            node,
            traced: AtomicBool::new(false),
            store: OnceLock::new(),
            topology: RwLock::default(),
            generation: AtomicU64::new(1),
            exclusive: Mutex::default(),
            grants: Grants::default(),
            policies: RwLock::default(),
            limits: RwLock::default(),
            connections: Tally::default(),
            replies: ReplyQueues::default(),
            metrics,
            deadlines,
            paging,
            default_flow: Arc::default(),
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes down what is durable, from now on. What is here already was read from there, but for the standard exchanges
    /// of a new virtual host.
    pub(crate) fn keep(&self, store: &Arc<Store>) {
        self.topology.write().keep(Ledger::new(store.catalogue().clone(), self.name.clone()));
        let _ = self.store.set(store.clone());
    }

    /// Where durable things are written down, if anywhere.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Whether publishers need not pause: neither waits too much to be written, nor have long queues too much in memory.
    pub fn has_room(&self) -> bool {
        self.store().is_none_or(|store| store.has_room()) && !self.paging.is_behind()
    }

    /// Wakes `waiter` when it is worth to ask again whether publishers [need not pause](Self::has_room); at once if they
    /// need not.
    pub fn wait_for_room(&self, waiter: Arc<dyn Waiter>) {
        let Some(waiter) = self.paging.wait_for_room(waiter) else { return };
        match self.store() {
            Some(store) => store.wait_for_room(waiter),
            None => waiter.wake(),
        }
    }

    /// The part of it that is about definitions.
    pub fn catalogue(&self) -> Option<&Arc<Catalogue>> {
        self.store().map(|store| store.catalogue())
    }

    /// To wait for until everything that has been written down so far is on disk, if the operation was about something
    /// durable.
    fn ticket(&self, durable: bool) -> Ticket {
        self.catalogue().filter(|_| durable).map(|catalogue| catalogue.last_noted()).unwrap_or_default()
    }

    /// A publisher, for one channel. It publishes what the user may publish.
    pub fn publisher(self: &Arc<Self>, identity: &Identity) -> Publisher {
        Publisher::new(self.clone(), identity.clone(), self.grant(identity.user()))
    }

    /// Whether what is published and delivered here is traced.
    #[inline]
    pub fn is_traced(&self) -> bool {
        // Whoever is told that it has been switched hears so over a connection, which is later than any other thread sees it.
        self.traced.load(Ordering::Relaxed)
    }

    /// Switches tracing on or off. It is not kept over a restart, as in RabbitMQ.
    pub fn set_traced(&self, traced: bool) {
        if self.traced.swap(traced, Ordering::Relaxed) != traced {
            tracing::info!(vhost = &*self.name, "tracing was switched {}", if traced { "on" } else { "off" });
        }
    }

    /// What tells the firehose of the messages that a client is given, over a connection that operators see or none.
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

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn shared_metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    pub(crate) fn deadlines(&self) -> Arc<Deadlines> {
        self.deadlines.clone()
    }

    pub(crate) fn paging(&self) -> Arc<Paging> {
        self.paging.clone()
    }

    pub(crate) fn reply_queues(&self) -> &ReplyQueues {
        &self.replies
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Refuses to publish to an exchange that is missing or internal, or that the user may not publish to.
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

    /// The name of the exchange, the queues that a message published to it goes to, and the generation for which
    /// that holds. If that is not the one at which the user was allowed to publish, the question is asked again: the
    /// exchange may be another one by now, of topics that the user may not write.
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
            None => ("".into(), self.default_flow.clone()),
        };
        Ok(Found { exchange, flow, routes: topology.route(slot, routed), generation })
    }

    /// `None` for the default exchange.
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

    /// Makes routes found so far void. Called with the topology's write lock held.
    fn topology_changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Removes what has lost its name, with all its bindings, and what goes with those. The lock is released now and
    /// then, so that others do not wait for something with very many bindings.
    fn demolish(&self, mut doomed: Vec<Destination>) {
        while let Some(what) = doomed.pop() {
            let mut topology = self.topology.write();
            let mut more = Vec::new();
            let (bindings, done) = topology.demolish(what, DEMOLITION_CHUNK, &mut more);
            self.topology_changed();
            // Fair, or this thread would have the next chunk done before a waiting publisher has woken up.
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

/// Bindings removed in one go, with the topology locked: about a millisecond.
const DEMOLITION_CHUNK: usize = 1000;

/// Name, type, and whether it is internal, of the exchanges that every virtual host has.
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
    fn the_default_exchange_is_shown_without_a_look_at_the_others() {
        let vhost = Broker::new(BrokerConfig::default()).vhost("/").unwrap();
        let (told, answer) = mpsc::sync_channel(1);
        let changing = vhost.topology.write();
        let asked = vhost.clone();
        thread::spawn(move || told.send(asked.exchange_view("").map(|view| view.kind)));
        assert_eq!(answer.recv_timeout(Duration::from_secs(30)), Ok(Some("direct")));
        drop(changing);
    }
}
