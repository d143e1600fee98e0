//! A client's link to the remembered topology.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amqp::{Credentials, Method};
use arc_swap::ArcSwap;
use sync::{Mutex, Rank};

use super::change::{Node, TopologyChange, change_of};
use super::vhost::Client;
use super::{Consuming, Counted, TOTAL_BYTES_MAX, Topologies};
use crate::link::ClientLink;

/// Remembers a client's declarations; they are forgotten when the client leaves.
#[derive(Debug)]
pub(crate) struct Declarer {
    topologies: Arc<Topologies>,
    virtual_host: Box<str>,
    /// Unique in the pool.
    pub(crate) id: u64,
    credentials: ArcSwap<Credentials>,
    /// The latest declared names that need not be remembered.
    names: Mutex<Names, { Rank::Leaf as u8 }>,
    /// Whether the client is gone: later replies of the broker are not remembered. Set once, under the lock
    /// of the topologies, and read under it.
    left: AtomicBool,
}

/// The latest names that a client declared and that need not be remembered, by kind.
#[derive(Debug, Default)]
struct Names {
    /// Durable entities: bindings between two of them need not be remembered either.
    settled: Hashes<SETTLED_MAX>,
    /// Its exclusive queues: their bindings need not be remembered, because an exclusive queue ends with the client's
    /// own connection and is locked for other connections.
    exclusive: Hashes<EXCLUSIVE_MAX>,
}

/// The hashes of the last `MAX` names, oldest first.
#[derive(Debug, Default)]
struct Hashes<const MAX: usize>(VecDeque<u64>);

impl Declarer {
    pub(crate) fn new(
        topologies: Arc<Topologies>,
        virtual_host: &str,
        credentials: Arc<Credentials>,
    ) -> Self {
        let id = topologies.next();
        Self {
            topologies,
            virtual_host: virtual_host.into(),
            id,
            credentials: ArcSwap::new(credentials),
            names: Mutex::default(),
            left: AtomicBool::new(false),
        }
    }

    /// Replaces the client's credentials after it has sent a new secret.
    pub(crate) fn set_credentials(&self, credentials: Arc<Credentials>) {
        self.credentials.store(credentials.clone());
        self.topologies.with(&self.virtual_host, |vhost| vhost.set_credentials(self.id, credentials));
    }

    /// Records that a method of the client was carried out, or sent with no-wait. `queue` is what an empty queue name
    /// in it means. `link` is `None` once the client is gone. Its declarations are not remembered then, but its
    /// deletions still remove the declarations of other clients.
    pub(crate) fn carried_out(
        &self,
        link: Option<&Arc<ClientLink>>,
        method: &Method<'_>,
        queue: Option<&str>,
    ) {
        let Some(change) = change_of(method, queue) else { return };
        match change {
            TopologyChange::Settled(node) => {
                self.names.lock().forget(&node).settled.push(hash(&node));
                self.topologies.with(&self.virtual_host, |vhost| vhost.settle(&node));
                self.forget_durable_bindings(&node);
            }
            TopologyChange::Exclusive(node) => {
                self.names.lock().forget(&node).exclusive.push(hash(&node));
                self.topologies.with(&self.virtual_host, |vhost| vhost.exclude(&node));
            }
            TopologyChange::Declare { node, method, auto_delete } => {
                self.names.lock().forget(&node);
                let declaration = self.topologies.next();
                self.remember(link, |id, vhost| vhost.declare(id, node, declaration, method, auto_delete));
            }
            TopologyChange::Bind { from, to, method } => {
                let is_lost = self.names.lock().is_binding_lost(&from, &to);
                let source = from.clone();
                if !is_lost || !self.remember(link, |id, vhost| vhost.bind(id, from, to, method)) {
                    self.note_untracked_binding(&source);
                }
            }
            TopologyChange::Unbind { from: _, to, method } => {
                self.topologies.with(&self.virtual_host, |vhost| vhost.unbind(&to, &method));
            }
            TopologyChange::Delete(node) => {
                self.names.lock().forget(&node);
                self.delete(&node);
            }
            TopologyChange::Unknown => {
                self.remember(link, |id, vhost| {
                    vhost.lose(id, "what was declared has no name that is known")
                });
                if let Method::QueueBind(bind) = method {
                    self.note_untracked_binding(&Node::exchange(bind.exchange));
                }
            }
        }
    }

    /// The encoded methods of the client's remembered declarations, in an order in which they can be repeated. `None` if it
    /// has declared something that is not remembered.
    pub(crate) fn declarations(&self) -> Option<Vec<Vec<u8>>> {
        self.topologies
            .with(&self.virtual_host, |vhost| vhost.declarations_of(self.id))
            .unwrap_or(Some(Vec::new()))
    }

    /// Whether the client has declared something that is not remembered.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.topologies.with(&self.virtual_host, |vhost| vhost.is_forgotten(self.id)) == Some(true)
    }

    /// Remembers one of the [declarations](Self::declarations) that the client has made in another process.
    pub(crate) fn remember_again(&self, link: &Arc<ClientLink>, payload: &[u8]) {
        match Method::decode(payload) {
            // A server-named queue.
            Ok(Method::QueueDeclare(declare)) if declare.passive => {
                let (node, declaration) = (Node::queue(declare.queue), self.topologies.next());
                self.remember(Some(link), |id, vhost| {
                    vhost.declare(id, node, declaration, payload.to_vec(), declare.auto_delete);
                });
            }
            Ok(method) => {
                if let Method::ExchangeDeclare(declare) = &method
                    && declare.auto_delete
                {
                    // Other clients may have bound queues to it in the other process.
                    self.note_untracked_binding(&Node::exchange(declare.exchange));
                }
                self.carried_out(Some(link), &method, None);
            }
            Err(_) => {}
        }
    }

    /// Forgets a queue that the broker has deleted.
    pub(crate) fn queue_gone(&self, queue: &str) {
        let queue = Node::queue(queue);
        self.names.lock().forget(&queue);
        self.delete(&queue);
    }

    /// Counts a consumer of a queue, if the queue is auto-delete and remembered.
    pub(crate) fn consuming(&self, queue: &str) -> Option<Consuming> {
        let queue = Node::queue(queue);
        let declaration =
            self.topologies.with(&self.virtual_host, |vhost| vhost.consumer_came(self.id, &queue))??;
        let (topologies, virtual_host) = (self.topologies.clone(), self.virtual_host.clone());
        Some(Consuming {
            _count: Arc::new(Counted { topologies, virtual_host, client: self.id, queue, declaration }),
        })
    }

    /// Forgets the client's declarations when it is gone.
    pub(crate) fn leave(&self) {
        let mut state = self.topologies.state.lock();
        self.left.store(true, Ordering::Relaxed);
        self.topologies.change(&mut state, &self.virtual_host, |vhost| vhost.leave(self.id));
    }

    /// Forgets the client's durable bindings to a durable entity. They were remembered if they were sent with no-wait,
    /// before the declaration was answered.
    fn forget_durable_bindings(&self, to: &Node) {
        let sources = self.topologies.with(&self.virtual_host, |vhost| vhost.sources_of(self.id, to));
        let mut sources = sources.unwrap_or_default();
        if sources.is_empty() {
            return;
        }
        let names = self.names.lock();
        sources.retain(|from| !names.is_binding_lost(from, to));
        drop(names);
        self.topologies.with(&self.virtual_host, |vhost| vhost.forget_bindings(self.id, to, &sources));
    }

    fn delete(&self, node: &Node) {
        self.topologies.with(&self.virtual_host, |vhost| vhost.delete(node));
    }

    fn note_untracked_binding(&self, from: &Node) {
        self.topologies.note_untracked_binding(&self.virtual_host, from);
    }

    /// Applies a change for the client; returns false if it is gone, or if the limit is reached.
    fn remember(&self, link: Option<&Arc<ClientLink>>, change: impl FnOnce(u64, &mut super::Vhost)) -> bool {
        let mut state = self.topologies.state.lock();
        let Some(link) = link.filter(|_| !self.left.load(Ordering::Relaxed)) else { return false };
        let vhost = state.enter(&self.virtual_host);
        vhost.enter(self.id, || Client::new(link.clone(), self.credentials.load_full()));
        let has_capacity = self.topologies.bytes() < TOTAL_BYTES_MAX;
        self.topologies.change(&mut state, &self.virtual_host, |vhost| {
            if has_capacity {
                change(self.id, vhost);
            } else {
                vhost.lose(self.id, "too much transient topology of all clients");
            }
        });
        has_capacity
    }
}

impl Names {
    /// Forgets a name, because another entity may have it now.
    fn forget(&mut self, node: &Node) -> &mut Self {
        let hash = hash(node);
        self.settled.remove(hash);
        self.exclusive.remove(hash);
        self
    }

    /// Whether a broker restart loses a binding whose ends the client may still use.
    fn is_binding_lost(&self, from: &Node, to: &Node) -> bool {
        let lasts = |node: &Node| node.is_built_in() || self.settled.has(hash(node));
        !(self.exclusive.has(hash(to)) || (lasts(from) && lasts(to)))
    }
}

impl<const MAX: usize> Hashes<MAX> {
    fn has(&self, hash: u64) -> bool {
        self.0.contains(&hash)
    }

    fn push(&mut self, hash: u64) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back(hash);
    }

    fn remove(&mut self, hash: u64) {
        self.0.retain(|other| *other != hash);
    }
}

pub(super) fn hash(node: &Node) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(node)
}

/// Hashes of durable names that a client's bindings are checked against, 8 bytes each. Bindings follow the declarations
/// of their ends closely; a binding to an entity that is no longer in the list is remembered needlessly.
const SETTLED_MAX: usize = 512;
/// Exclusive queues of one client, 8 bytes each: some hundreds are many. Queues that were deleted with their last
/// consumer still count, so a client that declares one for each request reaches this limit. A binding to an older queue
/// is then remembered needlessly, and its restoration finds the queue locked.
const EXCLUSIVE_MAX: usize = 4096;
