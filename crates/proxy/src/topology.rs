//! Client declarations that do not survive a restart of the broker. They are repeated before clients continue (P7).
//!
//! Exchanges and queues that are transient or auto-delete are remembered, and bindings unless both their ends are
//! durable, while one of the clients that declared them is connected: exactly the set that a client library's recovery
//! would declare again on a connection of its own. A declaration made by many clients is stored once. An entity that
//! any client deletes or unbinds, or that the broker deletes with its last consumer, is forgotten for all of them. If
//! the method has no reply, it may be refused, so the entity is forgotten only when the broker has answered a later
//! method.
//!
//! A virtual host is *torn* when its topology may be gone: when no broker answered, when the last connection to it
//! ended, or for one client when a connection that it used was lost. Then none of its channels is placed until
//! [`crate::pool`] has declared everything again: first all exchanges, then all queues, then all bindings, across
//! all clients, so that the order in which clients come back does not matter. A client whose declarations cannot be
//! repeated, or were too many to remember, receives 320 and declares them itself when it reconnects. If a broker
//! refuses a step to one client, it is retried with the credentials of another client that declared it.

mod change;
mod declarer;
mod others;
mod vhost;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use amqp::Credentials;
use sync::{Mutex, Rank};

use self::change::Node;
pub(crate) use self::declarer::Declarer;
use self::others::{UntrackedBindings, VHOSTS_MAX};
use self::vhost::Vhost;
use crate::link::ClientLink;

/// The remembered topology, by virtual host.
#[derive(Debug, Default)]
pub(crate) struct Topologies {
    state: Mutex<TopologyState, { Rank::Leaf as u8 }>,
    /// Whether any virtual host is torn. While none is, placing a channel takes no lock.
    torn: AtomicBool,
    /// Whether anything is remembered. While nothing is, methods take no lock.
    any: AtomicBool,
    /// Bytes remembered for all clients.
    bytes: AtomicUsize,
    /// How often a topology was lost.
    losses: AtomicU64,
    /// The number of the last client or declaration.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct TopologyState {
    vhosts: HashMap<Box<str>, Vhost>,
    /// Bindings that are not remembered, of virtual hosts without an entry in `vhosts`. At most [`VHOSTS_MAX`].
    others: HashMap<Box<str>, UntrackedBindings>,
    /// Number of torn virtual hosts.
    torn: usize,
}

/// A declaration to be repeated.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The encoded method, which requests a reply.
    pub(crate) method: Arc<[u8]>,
    /// The credentials of one of the owners.
    pub(crate) credentials: Arc<Credentials>,
    /// All clients that declared it, by the numbers of their declarers.
    owners: Vec<u64>,
    /// Description for the log, and for the close of the client if the step fails.
    pub(crate) what: String,
}

/// All declarations to be repeated in a virtual host, in order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Exchanges, queues, bindings.
    pub(crate) phases: [Vec<Step>; 3],
    /// Clients whose declarations are not remembered, and why.
    pub(crate) lost: Vec<(Arc<ClientLink>, &'static str)>,
}

/// A restoration in progress. Its virtual host is torn again when it is dropped without [`Self::done`].
#[derive(Debug)]
pub(crate) struct Restoring<'t> {
    topologies: &'t Topologies,
    virtual_host: &'t str,
    done: bool,
}

/// A consumer of a queue that is deleted with its last consumer. Clones stand for the same consumer; dropping
/// the last clone removes the consumer, and the queue with its last consumer.
#[derive(Debug, Clone)]
pub(crate) struct Consuming {
    _count: Arc<Counted>,
}

#[derive(Debug)]
struct Counted {
    topologies: Arc<Topologies>,
    virtual_host: Box<str>,
    client: u64,
    queue: Node,
    /// Number of the queue's declaration.
    declaration: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.topologies.with(&self.virtual_host, |vhost| {
            vhost.consumer_gone(self.client, &self.queue, self.declaration);
        });
    }
}

impl Topologies {
    /// Bytes remembered for all clients.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a client's channels have to wait until the virtual host's topology is declared again.
    pub(crate) fn is_torn(&self, virtual_host: &str, client: u64) -> bool {
        self.torn.load(Ordering::Acquire)
            && self.state.lock().vhosts.get(virtual_host).is_some_and(|vhost| vhost.is_torn_for(client))
    }

    /// The virtual hosts whose whole topology may be gone.
    pub(crate) fn torn(&self) -> Vec<Box<str>> {
        if !self.torn.load(Ordering::Acquire) {
            return Vec::new();
        }
        let state = self.state.lock();
        state.vhosts.iter().filter(|(_, vhost)| vhost.is_torn_for(0)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether anything is remembered of a virtual host.
    pub(crate) fn knows(&self, virtual_host: &str) -> bool {
        self.any.load(Ordering::Acquire) && self.state.lock().vhosts.contains_key(virtual_host)
    }

    /// No broker answers: every topology is lost.
    pub(crate) fn lost_all(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        state.vhosts.values_mut().for_each(|vhost| vhost.lost_all());
        state.torn = state.vhosts.len();
        self.torn.store(state.torn > 0, Ordering::Release);
    }

    /// The last connection to a virtual host has ended, so later changes of its topology would go unnoticed.
    pub(crate) fn lost(&self, virtual_host: &str) {
        self.losses.fetch_add(1, Ordering::AcqRel);
        self.with(virtual_host, Vhost::lost_all);
    }

    /// How often a topology was lost, counted even if nothing was remembered. The declarations of a client that arrives from
    /// another process have to be repeated if a loss occurs before it has arrived.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// A client has lost a connection, and with it the consumers that kept some queues alive.
    pub(crate) fn lost_client(&self, virtual_host: &str, client: u64) {
        self.with(virtual_host, |vhost| vhost.lost_client(client));
    }

    /// Starts restoring a virtual host. Its clients wait until the restoration is done; losses in the meantime tear it
    /// again. Returns `None` when there is nothing to do. One restoration at a time per virtual host.
    pub(crate) fn restore<'t>(&'t self, virtual_host: &'t str) -> Option<(Plan, Restoring<'t>)> {
        let plan = self.with(virtual_host, Vhost::begin_restoring).flatten()?;
        Some((plan, Restoring { topologies: self, virtual_host, done: false }))
    }

    /// A lock held by the task that restores a virtual host.
    pub(crate) fn turn(&self, virtual_host: &str) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.state.lock().vhosts.get(virtual_host).map(Vhost::turn)
    }

    /// A broker has refused a step to these credentials. Forgets the owners that use them; returns these owners, and
    /// the step with the credentials of another owner if there is one.
    pub(crate) fn pass_on(
        &self,
        virtual_host: &str,
        step: &Step,
        credentials: &Credentials,
    ) -> (Vec<Arc<ClientLink>>, Option<Step>) {
        self.with(virtual_host, |vhost| vhost.pass_on(step, credentials)).unwrap_or_default()
    }

    /// A step has failed permanently. Forgets its owners, and returns them.
    pub(crate) fn give_up(&self, virtual_host: &str, step: &Step) -> Vec<Arc<ClientLink>> {
        self.with(virtual_host, |vhost| vhost.give_up(&step.owners)).unwrap_or_default()
    }

    /// A binding was made that is not remembered.
    fn note_untracked_binding(&self, virtual_host: &str, from: &Node) {
        let mut state = self.state.lock();
        if let Some(vhost) = state.vhosts.get_mut(virtual_host) {
            vhost.note_untracked_binding(from);
        } else if !from.is_built_in() {
            state.untracked_bindings(virtual_host).insert(from);
        }
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Changes the state of a virtual host, if there is any.
    fn with<T>(&self, virtual_host: &str, change: impl FnOnce(&mut Vhost) -> T) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.change(&mut self.state.lock(), virtual_host, change)
    }

    fn change<T>(
        &self,
        state: &mut TopologyState,
        virtual_host: &str,
        change: impl FnOnce(&mut Vhost) -> T,
    ) -> Option<T> {
        let vhost = state.vhosts.get_mut(virtual_host)?;
        let (bytes, torn) = (vhost.bytes(), vhost.is_torn());
        let result = change(vhost);
        self.bytes.fetch_add(vhost.bytes(), Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        state.torn += usize::from(vhost.is_torn());
        state.torn -= usize::from(torn);
        if vhost.is_empty() {
            state.torn -= usize::from(vhost.is_torn());
            let others = state.vhosts.remove(virtual_host).map(Vhost::into_others).unwrap_or_default();
            if !others.is_empty() {
                *state.untracked_bindings(virtual_host) = others;
            }
        }
        self.any.store(!state.vhosts.is_empty(), Ordering::Release);
        self.torn.store(state.torn > 0, Ordering::Release);
        Some(result)
    }
}

impl TopologyState {
    /// The bindings that are not remembered, of a virtual host without other state.
    fn untracked_bindings(&mut self, virtual_host: &str) -> &mut UntrackedBindings {
        if self.others.len() >= VHOSTS_MAX && !self.others.contains_key(virtual_host) {
            self.others.clear();
        }
        self.others.entry(virtual_host.into()).or_default()
    }

    /// The virtual host, to which something is about to be added.
    fn enter(&mut self, virtual_host: &str) -> &mut Vhost {
        let others = &mut self.others;
        self.vhosts
            .entry(virtual_host.into())
            .or_insert_with(|| Vhost::new(others.remove(virtual_host).unwrap_or_default()))
    }
}

impl Restoring<'_> {
    /// Marks the restoration as complete.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.topologies.with(self.virtual_host, |vhost| vhost.end_restoring(self.done));
    }
}

/// Bytes remembered for one client, some hundreds for each declaration. Above that nothing more is remembered
/// for it, and it receives 320 when something is lost: an application with a transient topology declares tens
/// of entities, or some thousands of bindings.
pub(crate) const CLIENT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes remembered for all clients together: 64 MiB, enough for hundreds of thousands of usual declarations. A client
/// that declares beyond that is treated like one beyond [`CLIENT_BYTES_MAX`].
pub(crate) const TOTAL_BYTES_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests;
