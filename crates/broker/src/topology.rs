//! The exchanges, queues and bindings of one virtual host, as one structure under one lock.
//!
//! Exchanges, queues and bindings have slot numbers. A queue keeps the list of its bindings, an exchange that of
//! bindings to it and the set of bindings from it, so that whatever is deleted costs its own size. A binding is
//! kept once; the routing tables of the exchanges point to destinations by number.

use std::hash::BuildHasher;
use std::sync::Arc;

use amqp::FieldTable;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet, HashTable};
use slab::Slab;

use crate::queue::Queue;
use crate::routing::{Entry, ExchangeKind, Routed, Router};

/// What an exchange was declared as.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) name: Arc<str>,
    pub(crate) kind: ExchangeKind,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
    /// Where messages go that match no binding: by its arguments or a policy.
    pub(crate) alternate: Option<Arc<str>>,
    pub(crate) arguments: FieldTable,
}

/// A queue or an exchange, as the end of a binding: a slot number with the kind in the top bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Destination(u32);

impl Destination {
    const EXCHANGE: u32 = 1 << 31;

    pub(crate) fn queue(slot: u32) -> Self {
        Self(slot)
    }

    pub(crate) fn exchange(slot: u32) -> Self {
        Self(slot | Self::EXCHANGE)
    }

    /// Whether it is an exchange, and its slot.
    fn slot(self) -> (bool, u32) {
        (self.0 & Self::EXCHANGE != 0, self.0 & !Self::EXCHANGE)
    }
}

/// What makes a binding the one it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BindingKey<'a> {
    /// Slot of the exchange.
    pub(crate) source: u32,
    pub(crate) destination: Destination,
    pub(crate) key: &'a str,
    /// Encoded and sorted by name; empty when there are none.
    pub(crate) arguments: &'a [u8],
}

/// Where a message goes.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Each queue once.
    pub(crate) queues: Vec<Arc<Queue>>,
    /// Whether other headers or properties might have led elsewhere.
    pub(crate) by_properties: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Topology {
    exchanges: Slab<ExchangeSlot>,
    exchange_names: HashMap<Arc<str>, u32, RandomState>,
    queues: Slab<QueueSlot>,
    queue_names: HashMap<Arc<str>, u32, RandomState>,
    bindings: Slab<Binding>,
    /// The empty binding key, shared by all bindings that have it.
    no_key: Arc<str>,
    hasher: RandomState,
}

#[derive(Debug)]
struct ExchangeSlot {
    exchange: Arc<Exchange>,
    router: Router,
    /// Bindings from here, by [`BindingKey`].
    outgoing: HashTable<u32>,
    /// Bindings to here.
    incoming: Vec<u32>,
    /// Has lost its name, and is losing its bindings.
    doomed: bool,
}

#[derive(Debug)]
struct QueueSlot {
    queue: Arc<Queue>,
    incoming: Vec<u32>,
}

/// 40 octets; a million of them is a design target.
#[derive(Debug)]
struct Binding {
    key: Arc<str>,
    arguments: Option<Box<Arguments>>,
    source: u32,
    destination: Destination,
    /// Position in the destination's list.
    place: u32,
}

/// Boxed twice to keep bindings without arguments, nearly all of them, small.
#[derive(Debug)]
struct Arguments(Box<[u8]>);

impl Binding {
    fn arguments(&self) -> &[u8] {
        self.arguments.as_ref().map_or(&[], |arguments| &arguments.0)
    }

    fn is(&self, other: BindingKey<'_>) -> bool {
        self.destination == other.destination
            && *self.key == *other.key
            && self.arguments() == other.arguments
    }
}

impl Topology {
    pub(crate) fn exchange(&self, name: &str) -> Option<(u32, &Arc<Exchange>)> {
        let slot = *self.exchange_names.get(name)?;
        Some((slot, &self.exchanges[slot as usize].exchange))
    }

    /// The exchange in a slot that has been looked up under the same lock.
    pub(crate) fn exchange_at(&self, slot: u32) -> &Exchange {
        &self.exchanges[slot as usize].exchange
    }

    /// Sets every exchange's alternate exchange anew.
    pub(crate) fn set_alternates(&mut self, alternate_of: impl Fn(&Exchange) -> Option<Arc<str>>) {
        for (_, slot) in &mut self.exchanges {
            let alternate = alternate_of(&slot.exchange);
            if slot.exchange.alternate != alternate {
                slot.exchange = Arc::new(Exchange { alternate, ..Exchange::clone(&slot.exchange) });
            }
        }
    }

    /// All queues, some of which may be on their way out.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.iter().map(|(_, slot)| &slot.queue)
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.queue_names.len()
    }

    pub(crate) fn insert_exchange(&mut self, exchange: Exchange) {
        let name = exchange.name.clone();
        let router = Router::new(exchange.kind, &exchange.arguments);
        let exchange = Arc::new(exchange);
        let slot = ExchangeSlot {
            exchange,
            router,
            outgoing: HashTable::new(),
            incoming: Vec::new(),
            doomed: false,
        };
        let slot = self.exchanges.insert(slot) as u32;
        self.exchange_names.insert(name, slot);
    }

    /// Whether bindings lead from the exchange.
    pub(crate) fn is_source(&self, exchange: u32) -> bool {
        !self.exchanges[exchange as usize].outgoing.is_empty()
    }

    pub(crate) fn queue(&self, name: &str) -> Option<(u32, &Arc<Queue>)> {
        let slot = *self.queue_names.get(name)?;
        let queue = &self.queues[slot as usize].queue;
        (!queue.is_deleted()).then_some((slot, queue))
    }

    pub(crate) fn insert_queue(&mut self, queue: Arc<Queue>) {
        let name = queue.name().clone();
        let entry = self.queues.vacant_entry();
        let slot = entry.key() as u32;
        queue.set_slot(slot);
        entry.insert(QueueSlot { queue, incoming: Vec::new() });
        // May push aside a queue that is being deleted and has not lost its name yet.
        self.queue_names.insert(name, slot);
    }

    /// Takes the name from a queue that is to go. What comes back must be given to [`Topology::demolish`].
    pub(crate) fn doom_queue(&mut self, slot: u32) -> Destination {
        let name = self.queues[slot as usize].queue.name();
        if self.queue_names.get(name) == Some(&slot) {
            self.queue_names.remove(&**name);
        }
        Destination::queue(slot)
    }

    /// Takes the name from an exchange. What comes back must be given to [`Topology::demolish`].
    pub(crate) fn doom_exchange(&mut self, slot: u32) -> Destination {
        let exchange = &mut self.exchanges[slot as usize];
        exchange.doomed = true;
        self.exchange_names.remove(&*exchange.exchange.name);
        Destination::exchange(slot)
    }

    /// Adds a binding; whether it is new.
    pub(crate) fn bind(&mut self, new: BindingKey<'_>) -> bool {
        let hash = hash(&self.hasher, new.destination, new.key, new.arguments);
        let Self { exchanges, queues, bindings, no_key, hasher, .. } = self;
        let source = &mut exchanges[new.source as usize];
        if source.outgoing.find(hash, |&id| bindings[id as usize].is(new)).is_some() {
            return false;
        }
        let key = if new.key.is_empty() { no_key.clone() } else { new.key.into() };
        let arguments = (!new.arguments.is_empty()).then(|| Box::new(Arguments(new.arguments.into())));
        let entry = bindings.vacant_entry();
        let id = entry.key() as u32;
        source.router.insert(Entry {
            binding: id,
            destination: new.destination.0,
            key: &key,
            arguments: new.arguments,
        });
        let binding = Binding { key, arguments, source: new.source, destination: new.destination, place: 0 };
        entry.insert(binding);
        source.outgoing.insert_unique(hash, id, |&id| hash_of(hasher, &bindings[id as usize]));
        let list = match new.destination.slot() {
            (true, slot) => &mut exchanges[slot as usize].incoming,
            (false, slot) => &mut queues[slot as usize].incoming,
        };
        bindings[id as usize].place = list.len() as u32;
        list.push(id);
        true
    }

    /// Whether the binding exists.
    pub(crate) fn is_bound(&self, wanted: BindingKey<'_>) -> bool {
        self.find(wanted).is_some()
    }

    /// Removes a binding; whether it existed. An exchange that goes with its last binding is doomed and put into
    /// `doomed`.
    pub(crate) fn unbind(&mut self, old: BindingKey<'_>, doomed: &mut Vec<Destination>) -> bool {
        match self.find(old) {
            None => false,
            Some(id) => {
                self.remove_binding(id, doomed);
                true
            }
        }
    }

    /// Removes up to `limit` bindings of something doomed, and when none is left the thing itself. Returns how many
    /// bindings went, and whether all is done.
    pub(crate) fn demolish(
        &mut self,
        what: Destination,
        limit: usize,
        doomed: &mut Vec<Destination>,
    ) -> (usize, bool) {
        let mut removed = 0;
        while removed < limit {
            let next = match what.slot() {
                (false, slot) => self.queues[slot as usize].incoming.last().copied(),
                (true, slot) => {
                    let exchange = &self.exchanges[slot as usize];
                    exchange.incoming.last().or_else(|| exchange.outgoing.iter().next()).copied()
                }
            };
            let Some(id) = next else {
                match what.slot() {
                    (false, slot) => drop(self.queues.remove(slot as usize)),
                    (true, slot) => drop(self.exchanges.remove(slot as usize)),
                }
                return (removed, true);
            };
            self.remove_binding(id, doomed);
            removed += 1;
        }
        (removed, false)
    }

    /// Follows a message from an exchange (`None`: the default exchange) to its queues: through bindings between
    /// exchanges, whose cycles are harmless, and through alternate exchanges.
    pub(crate) fn route(&self, exchange: Option<u32>, routed: Routed<'_>) -> Routes {
        let mut routes = Routes::default();
        let mut slots: Vec<u32> = Vec::new();
        let mut pending: Vec<u32> = Vec::new();
        let mut seen: HashSet<u32, RandomState> = HashSet::default();
        match exchange {
            None => slots.extend(routed.keys.iter().filter_map(|key| self.queue_names.get(*key))),
            Some(exchange) => pending.push(exchange),
        }
        while let Some(at) = pending.pop() {
            let exchange = &self.exchanges[at as usize];
            routes.by_properties |= exchange.router.looks_at_properties();
            let (queues_before, mut exchanges) = (slots.len(), 0);
            let binding = |id: u32| {
                let binding = &self.bindings[id as usize];
                (binding.destination.0, binding.arguments())
            };
            exchange.router.matches(routed, binding, |destination| match Destination(destination).slot() {
                (false, slot) => slots.push(slot),
                (true, slot) => {
                    exchanges += 1;
                    self.follow(slot, at, &mut seen, &mut pending);
                }
            });
            if slots.len() == queues_before
                && exchanges == 0
                && let Some(alternate) = exchange.exchange.alternate.as_deref()
                && let Some(&slot) = self.exchange_names.get(alternate)
            {
                self.follow(slot, at, &mut seen, &mut pending);
            }
        }
        // Cheaper than marking what was seen, and leaves no memory behind that grows with the number of queues.
        slots.sort_unstable();
        slots.dedup();
        let queues = slots.into_iter().map(|slot| &self.queues[slot as usize].queue);
        routes.queues.extend(queues.filter(|queue| !queue.is_deleted()).cloned());
        routes
    }

    fn follow(&self, to: u32, from: u32, seen: &mut HashSet<u32, RandomState>, pending: &mut Vec<u32>) {
        seen.insert(from);
        if !self.exchanges[to as usize].doomed && seen.insert(to) {
            pending.push(to);
        }
    }

    fn find(&self, wanted: BindingKey<'_>) -> Option<u32> {
        let hash = hash(&self.hasher, wanted.destination, wanted.key, wanted.arguments);
        let source = &self.exchanges[wanted.source as usize];
        source.outgoing.find(hash, |&id| self.bindings[id as usize].is(wanted)).copied()
    }

    fn remove_binding(&mut self, id: u32, doomed: &mut Vec<Destination>) {
        let Some(binding) = self.bindings.try_remove(id as usize) else { return };
        let source = &mut self.exchanges[binding.source as usize];
        if let Ok(entry) = source.outgoing.find_entry(hash_of(&self.hasher, &binding), |&found| found == id) {
            entry.remove();
        }
        source.router.remove(Entry {
            binding: id,
            destination: binding.destination.0,
            key: &binding.key,
            arguments: binding.arguments(),
        });
        let last_of_auto_delete = source.exchange.auto_delete && source.outgoing.is_empty() && !source.doomed;
        let list = match binding.destination.slot() {
            (true, slot) => &mut self.exchanges[slot as usize].incoming,
            (false, slot) => &mut self.queues[slot as usize].incoming,
        };
        list.swap_remove(binding.place as usize);
        if let Some(&moved) = list.get(binding.place as usize) {
            self.bindings[moved as usize].place = binding.place;
        }
        if last_of_auto_delete {
            doomed.push(self.doom_exchange(binding.source));
        }
    }
}

fn hash_of(hasher: &RandomState, binding: &Binding) -> u64 {
    hash(hasher, binding.destination, &binding.key, binding.arguments())
}

fn hash(hasher: &RandomState, destination: Destination, key: &str, arguments: &[u8]) -> u64 {
    hasher.hash_one((destination, key, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_takes_forty_octets() {
        assert_eq!(size_of::<Binding>(), 40);
    }
}
