//! The remembered topology of one virtual host.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use amqp::Credentials;

use super::change::{Kind, Node};
use super::others::UntrackedBindings;
use super::{CLIENT_BYTES_MAX, Plan, Step};
use crate::link::ClientLink;

/// The remembered topology of one virtual host.
#[derive(Debug, Default)]
pub(super) struct Vhost {
    nodes: HashMap<Node, DeclaredEntry>,
    clients: HashMap<u64, Client>,
    /// The exchanges that are the sources of bindings which are not remembered.
    others: UntrackedBindings,
    /// Bytes remembered for all clients.
    bytes: usize,
    /// Topology that may be gone.
    torn: LostTopology,
    /// Topology that is being declared again.
    restoring: Option<LostTopology>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A client that has declared something.
#[derive(Debug)]
pub(super) struct Client {
    link: Arc<ClientLink>,
    credentials: Arc<Credentials>,
    /// The nodes with a declaration, or bindings as destination, that the client owns, and the number of these.
    nodes: HashMap<Node, usize>,
    bytes: usize,
    /// Set when its declarations are no longer remembered.
    lost: Option<Untracked>,
}

/// State of a client whose declarations are not remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Untracked {
    /// The client has to be closed with this reason when its virtual host's topology is lost.
    Unnotified(&'static str),
    /// The client was notified, and is about to disconnect.
    Notified,
}

/// The part of a topology that may be gone.
#[derive(Debug, Default)]
struct LostTopology {
    /// Everything.
    all: bool,
    /// Auto-delete queues that these clients declared, or consume from.
    clients: HashSet<u64>,
}

/// An exchange or a queue that was declared, or that is the source or destination of bindings.
#[derive(Debug, Default)]
struct DeclaredEntry {
    /// `None` if no client of the pool declared it, or it need not be repeated.
    declaration: Option<Declaration>,
    /// The bindings of which this is the destination, by their methods.
    bindings: HashMap<Arc<[u8]>, Binding>,
    /// The destinations of bindings of which this is the source, and the number of bindings to each.
    leads_to: HashMap<Node, usize>,
}

#[derive(Debug)]
struct Declaration {
    /// Unique in the pool.
    id: u64,
    method: Arc<[u8]>,
    owners: Vec<u64>,
    auto_delete: bool,
    /// The clients whose consumers keep an auto-delete queue alive, once for each consumer.
    consumers: Vec<u64>,
    /// Whether bindings that are not remembered may keep an auto-delete exchange alive. Never cleared.
    has_other_bindings: bool,
}

#[derive(Debug)]
struct Binding {
    from: Node,
    owners: Vec<u64>,
}

impl Client {
    pub(super) fn new(link: Arc<ClientLink>, credentials: Arc<Credentials>) -> Self {
        Self { link, credentials, nodes: HashMap::new(), bytes: 0, lost: None }
    }
}

impl LostTopology {
    fn is_any(&self) -> bool {
        self.all || !self.clients.is_empty()
    }

    fn concerns(&self, client: u64) -> bool {
        self.all || self.clients.contains(&client)
    }
}

impl Vhost {
    pub(super) fn new(others: UntrackedBindings) -> Self {
        Self { others, ..Self::default() }
    }

    pub(super) fn into_others(self) -> UntrackedBindings {
        self.others
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.restoring.is_none()
    }

    pub(super) fn is_torn(&self) -> bool {
        self.torn.is_any() || self.restoring.is_some()
    }

    pub(super) fn is_torn_for(&self, client: u64) -> bool {
        self.torn.concerns(client) || self.restoring.as_ref().is_some_and(|torn| torn.concerns(client))
    }

    pub(super) fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.turn.clone()
    }

    pub(super) fn lost_all(&mut self) {
        self.torn = LostTopology { all: true, clients: HashSet::new() };
    }

    pub(super) fn lost_client(&mut self, id: u64) {
        if !self.torn.all {
            self.torn.clients.insert(id);
        }
    }

    pub(super) fn set_credentials(&mut self, id: u64, credentials: Arc<Credentials>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.credentials = credentials;
        }
    }

    /// Adds a client that is about to declare something.
    pub(super) fn enter(&mut self, id: u64, client: impl FnOnce() -> Client) {
        self.clients.entry(id).or_insert_with(client);
    }

    pub(super) fn declare(&mut self, id: u64, node: Node, number: u64, method: Vec<u8>, auto_delete: bool) {
        if !self.takes(id) {
            return;
        }
        let has_other_bindings = self.others.has(&node);
        let entry = self.nodes.entry(node.clone()).or_default();
        let declaration = entry.declaration.get_or_insert_with(|| Declaration {
            id: number,
            method: method.into(),
            owners: Vec::new(),
            auto_delete,
            consumers: Vec::new(),
            has_other_bindings,
        });
        if !declaration.owners.contains(&id) {
            declaration.owners.push(id);
            // Charge for the stored method, because a refund uses that as well.
            let bytes = cost(&node, &declaration.method);
            self.charge(id, node, bytes);
        }
    }

    pub(super) fn bind(&mut self, id: u64, from: Node, to: Node, method: Vec<u8>) {
        if !self.takes(id) {
            return self.note_untracked_binding(&from);
        }
        let (bytes, method) = (cost(&to, &method), Arc::from(method));
        let entry = self.nodes.entry(to.clone()).or_default();
        let is_new = !entry.bindings.contains_key(&method);
        let binding = entry
            .bindings
            .entry(method)
            .or_insert_with(|| Binding { from: from.clone(), owners: Vec::new() });
        let is_owner = binding.owners.contains(&id);
        if !is_owner {
            binding.owners.push(id);
        }
        if is_new {
            *self.nodes.entry(from).or_default().leads_to.entry(to.clone()).or_default() += 1;
        }
        if !is_owner {
            self.charge(id, to, bytes);
        }
    }

    /// Notes a binding that is not remembered.
    pub(super) fn note_untracked_binding(&mut self, from: &Node) {
        self.others.insert(from);
        if let Some(declaration) = self.nodes.get_mut(from).and_then(|entry| entry.declaration.as_mut()) {
            declaration.has_other_bindings = true;
        }
    }

    pub(super) fn unbind(&mut self, to: &Node, method: &[u8]) {
        let Some(entry) = self.nodes.get_mut(to) else { return };
        let Some((method, binding)) = entry.bindings.remove_entry(method) else { return };
        self.unbound(to, &method, &binding);
        if self.is_unbound(&binding.from) {
            self.delete(&binding.from);
        }
    }

    /// A durable entity was declared. If a transient entity had its name, that one is gone with its bindings; otherwise the
    /// durable one may have existed before, and its remembered bindings still exist.
    pub(super) fn settle(&mut self, node: &Node) {
        if self.is_declared(node) {
            self.delete(node);
        }
    }

    /// The sources of a client's bindings to this entity.
    pub(super) fn sources_of(&self, id: u64, to: &Node) -> HashSet<Node> {
        let bindings = self.nodes.get(to).into_iter().flat_map(|entry| entry.bindings.values());
        bindings.filter(|binding| binding.owners.contains(&id)).map(|binding| binding.from.clone()).collect()
    }

    /// Forgets a client's bindings from these exchanges: they need not be remembered for it.
    pub(super) fn forget_bindings(&mut self, id: u64, to: &Node, sources: &HashSet<Node>) {
        let Some(entry) = self.nodes.get_mut(to) else { return };
        let mut forgotten = Vec::new();
        for (method, binding) in &mut entry.bindings {
            if sources.contains(&binding.from) && binding.owners.contains(&id) {
                binding.owners.retain(|owner| *owner != id);
                forgotten.push(method.clone());
            }
        }
        let gone: Vec<_> = entry.bindings.extract_if(|_, binding| binding.owners.is_empty()).collect();
        forgotten.iter().for_each(|method| self.refund(&[id], to, cost(to, method)));
        gone.iter().for_each(|(method, binding)| self.unbound(to, method, binding));
    }

    /// A client has an exclusive queue with this name, so its bindings need not be remembered.
    pub(super) fn exclude(&mut self, queue: &Node) {
        if !self.is_declared(queue)
            && let Some(entry) = self.nodes.get(queue)
        {
            // The queue, with these bindings, may have existed before.
            let sources: Vec<_> = entry.bindings.values().map(|binding| binding.from.clone()).collect();
            sources.iter().for_each(|source| self.note_untracked_binding(source));
        }
        self.delete(queue);
    }

    fn is_declared(&self, node: &Node) -> bool {
        self.nodes.get(node).is_some_and(|entry| entry.declaration.is_some())
    }

    /// Forgets an exchange or a queue, and its bindings. The broker deletes an auto-delete exchange with its last binding,
    /// which may delete further auto-delete exchanges.
    pub(super) fn delete(&mut self, node: &Node) {
        let mut deleted = vec![node.clone()];
        while let Some(node) = deleted.pop() {
            let sources = self.delete_one(&node);
            deleted.extend(sources.into_iter().filter(|source| self.is_unbound(source)));
        }
    }

    /// Forgets an exchange or a queue, and its bindings; returns the exchanges that were bound to it.
    fn delete_one(&mut self, node: &Node) -> Vec<Node> {
        let mut sources = Vec::new();
        self.others.remove(node);
        let Some(mut entry) = self.nodes.remove(node) else { return sources };
        if let Some(declaration) = entry.declaration.take() {
            self.refund(&declaration.owners, node, cost(node, &declaration.method));
        }
        for (method, binding) in std::mem::take(&mut entry.bindings) {
            self.unbound(node, &method, &binding);
            sources.push(binding.from);
        }
        for to in entry.leads_to.keys() {
            let Some(end) = self.nodes.get_mut(to) else { continue };
            let gone: Vec<_> = end.bindings.extract_if(|_, binding| binding.from == *node).collect();
            for (method, binding) in gone {
                self.refund(&binding.owners, to, cost(to, &method));
            }
            self.prune(to);
        }
        sources
    }

    /// Whether it is an auto-delete exchange without bindings. Called when a binding was removed, since an exchange that
    /// never had one stays.
    fn is_unbound(&self, node: &Node) -> bool {
        let Some(DeclaredEntry { declaration: Some(declaration), leads_to, .. }) = self.nodes.get(node)
        else {
            return false;
        };
        let is_deleted = declaration.auto_delete && !declaration.has_other_bindings;
        node.kind == Kind::Exchange && is_deleted && leads_to.is_empty()
    }

    /// Adds a consumer; returns the id of the queue's declaration if it is an auto-delete queue.
    pub(super) fn consumer_came(&mut self, id: u64, queue: &Node) -> Option<u64> {
        let declaration = self.nodes.get_mut(queue)?.declaration.as_mut()?;
        if !declaration.auto_delete {
            return None;
        }
        declaration.consumers.push(id);
        Some(declaration.id)
    }

    /// Removes a consumer. The broker deletes the queue with the last one.
    pub(super) fn consumer_gone(&mut self, id: u64, queue: &Node, declaration: u64) {
        let entry = self.nodes.get_mut(queue).and_then(|entry| entry.declaration.as_mut());
        let Some(entry) = entry.filter(|entry| entry.id == declaration) else { return };
        if let Some(at) = entry.consumers.iter().position(|consumer| *consumer == id) {
            entry.consumers.swap_remove(at);
        }
        if entry.consumers.is_empty() {
            self.delete(queue);
        }
    }

    /// Removes a client that is gone, and everything that only it has declared.
    pub(super) fn leave(&mut self, id: u64) {
        self.remove_owner(id);
        self.clients.remove(&id);
        self.torn.clients.remove(&id);
    }

    /// Whether the client has declarations that are no longer remembered.
    pub(super) fn is_forgotten(&self, id: u64) -> bool {
        self.clients.get(&id).is_some_and(|client| client.lost.is_some())
    }

    /// The methods of a client's declarations: exchanges, queues, bindings. `None` if they are no longer remembered.
    pub(super) fn declarations_of(&self, id: u64) -> Option<Vec<Vec<u8>>> {
        let Some(client) = self.clients.get(&id) else { return Some(Vec::new()) };
        if client.lost.is_some() {
            return None;
        }
        let (mut exchanges, mut queues, mut bindings) = (Vec::new(), Vec::new(), Vec::new());
        for node in client.nodes.keys() {
            let Some(entry) = self.nodes.get(node) else { continue };
            if let Some(declaration) = entry.declaration.as_ref().filter(|made| made.owners.contains(&id)) {
                let of_kind = match node.kind {
                    Kind::Exchange => &mut exchanges,
                    Kind::Queue => &mut queues,
                };
                of_kind.push(declaration.method.to_vec());
            }
            let owned = entry.bindings.iter().filter(|(_, binding)| binding.owners.contains(&id));
            bindings.extend(owned.map(|(method, _)| method.to_vec()));
        }
        exchanges.extend(queues);
        exchanges.extend(bindings);
        Some(exchanges)
    }

    /// Forgets a client's declarations. It will be closed with this reason when the topology is lost.
    pub(super) fn lose(&mut self, id: u64, why: &'static str) {
        self.remove_owner(id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.lost.get_or_insert(Untracked::Unnotified(why));
        }
    }

    /// Forgets these clients' declarations, and returns those clients that are connected and not yet notified.
    pub(super) fn give_up(&mut self, owners: &[u64]) -> Vec<Arc<ClientLink>> {
        let mut links = Vec::new();
        for id in owners {
            self.remove_owner(*id);
            if let Some(client) = self.clients.get_mut(id)
                && client.lost.replace(Untracked::Notified) != Some(Untracked::Notified)
            {
                links.push(client.link.clone());
            }
        }
        links
    }

    /// See [`super::Topologies::pass_on`].
    pub(super) fn pass_on(
        &mut self,
        step: &Step,
        credentials: &Credentials,
    ) -> (Vec<Arc<ClientLink>>, Option<Step>) {
        let has_them =
            |id: &u64| self.clients.get(id).is_some_and(|client| *client.credentials == *credentials);
        let (refused, mut owners): (Vec<u64>, Vec<u64>) = step.owners.iter().partition(|id| has_them(id));
        // Other owners may have left, or been forgotten, since.
        owners.retain(|id| self.takes(*id));
        (self.give_up(&refused), self.step(&step.method, &owners, || step.what.clone()))
    }

    /// Plans the restoration of the torn part.
    pub(super) fn begin_restoring(&mut self) -> Option<Plan> {
        if !self.torn.is_any() || self.restoring.is_some() {
            return None;
        }
        let torn = std::mem::take(&mut self.torn);
        let plan = self.plan(&torn);
        self.restoring = Some(torn);
        Some(plan)
    }

    /// Ends the restoration; the part is torn again unless it is done.
    pub(super) fn end_restoring(&mut self, done: bool) {
        let Some(torn) = self.restoring.take() else { return };
        if !done {
            self.torn.all |= torn.all;
            self.torn.clients.extend(torn.clients);
        }
    }

    fn plan(&mut self, torn: &LostTopology) -> Plan {
        let mut plan = Plan::default();
        for (_, client) in self.clients.iter_mut().filter(|(id, _)| torn.concerns(**id)) {
            // Notify each client once.
            if let Some(Untracked::Unnotified(why)) = client.lost {
                client.lost = Some(Untracked::Notified);
                plan.lost.push((client.link.clone(), why));
            }
        }
        for (node, entry) in &self.nodes {
            if !torn.all && !entry.deleted_with_consumers_of(&torn.clients) {
                continue;
            }
            if let Some(Declaration { method, owners, .. }) = &entry.declaration {
                let phase = if node.kind == Kind::Exchange { 0 } else { 1 };
                plan.phases[phase].extend(self.step(method, owners, || node.to_string()));
            }
            for (method, binding) in &entry.bindings {
                let what = || format!("a binding of {node} to {}", binding.from);
                plan.phases[2].extend(self.step(method, &binding.owners, what));
            }
        }
        plan
    }

    /// A step with the credentials of the first owner that is still connected.
    fn step(&self, method: &Arc<[u8]>, owners: &[u64], what: impl FnOnce() -> String) -> Option<Step> {
        let owner = owners.iter().find_map(|id| self.clients.get(id))?;
        let (method, credentials) = (method.clone(), owner.credentials.clone());
        Some(Step { method, credentials, owners: owners.to_vec(), what: what() })
    }

    fn takes(&self, id: u64) -> bool {
        self.clients.get(&id).is_some_and(|client| client.lost.is_none())
    }

    fn charge(&mut self, id: u64, node: Node, bytes: usize) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.bytes += bytes;
        *client.nodes.entry(node).or_default() += 1;
        self.bytes += bytes;
        if client.bytes > CLIENT_BYTES_MAX {
            self.lose(id, "too much transient topology");
        }
    }

    /// Refunds the bytes of a declaration or binding at `node` to its former owners.
    fn refund(&mut self, owners: &[u64], node: &Node, bytes: usize) {
        for id in owners {
            let Some(client) = self.clients.get_mut(id) else { continue };
            client.bytes -= bytes;
            self.bytes -= bytes;
            if let Some(count) = client.nodes.get_mut(node) {
                *count -= 1;
                if *count == 0 {
                    client.nodes.remove(node);
                }
            }
        }
    }

    /// Removes a client from the owners of everything.
    fn remove_owner(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.bytes -= std::mem::take(&mut client.bytes);
        for node in std::mem::take(&mut client.nodes).into_keys() {
            let Some(entry) = self.nodes.get_mut(&node) else { continue };
            if let Some(declaration) = &mut entry.declaration {
                declaration.owners.retain(|owner| *owner != id);
            }
            entry.declaration.take_if(|declaration| declaration.owners.is_empty());
            let gone: Vec<_> = entry
                .bindings
                .extract_if(|_, binding| {
                    binding.owners.retain(|owner| *owner != id);
                    binding.owners.is_empty()
                })
                .collect();
            for (method, binding) in gone {
                // The broker still has the binding.
                self.note_untracked_binding(&binding.from);
                self.unbound(&node, &method, &binding);
            }
            self.prune(&node);
        }
    }

    /// Accounts for a binding that ended at `to` and has been removed.
    fn unbound(&mut self, to: &Node, method: &[u8], binding: &Binding) {
        self.refund(&binding.owners, to, cost(to, method));
        if let Some(from) = self.nodes.get_mut(&binding.from)
            && let Some(count) = from.leads_to.get_mut(to)
        {
            *count -= 1;
            if *count == 0 {
                from.leads_to.remove(to);
            }
        }
        self.prune(&binding.from);
        self.prune(to);
    }

    /// Forgets a node without declaration and bindings.
    fn prune(&mut self, node: &Node) {
        let is_empty = |entry: &DeclaredEntry| {
            entry.declaration.is_none() && entry.bindings.is_empty() && entry.leads_to.is_empty()
        };
        if self.nodes.get(node).is_some_and(is_empty) {
            self.nodes.remove(node);
        }
    }
}

impl DeclaredEntry {
    /// Whether it may be a queue that was deleted with the consumers of these clients.
    fn deleted_with_consumers_of(&self, clients: &HashSet<u64>) -> bool {
        self.declaration.as_ref().is_some_and(|declaration| {
            let mut concerned = declaration.owners.iter().chain(&declaration.consumers);
            declaration.auto_delete && concerned.any(|id| clients.contains(id))
        })
    }
}

/// Approximate memory cost of remembering one declaration or binding, in bytes.
fn cost(node: &Node, method: &[u8]) -> usize {
    ENTRY_BYTES + node.name.len() + method.len()
}

/// Size of an entry in each table, without its names and its method.
const ENTRY_BYTES: usize = size_of::<(Node, DeclaredEntry)>() + size_of::<(Arc<[u8]>, Binding)>();
