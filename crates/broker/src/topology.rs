//! The exchanges, queues and bindings of one virtual host, as one structure under one lock.
//!
//! Exchanges, queues and bindings have slot numbers. A queue has the list of its bindings, an exchange the
//! list of bindings to it and the set of bindings from it, so that each deletion costs only its own size.
//! Keys and arguments of bindings are stored in the routing tables of the exchanges, once for all bindings
//! that share them, and a binding refers to them by number.

mod walk;

use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use amqp::FieldTable;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet, HashTable};
use slab::Slab;

use crate::names::ExchangeName;
use crate::queue::Queue;
use crate::rates::ExchangeFlow;
use crate::routing::{BindingPattern, ExchangeKind, Routed, Router};
use crate::topology_recorder::TopologyRecorder;

/// The properties that an exchange was declared with.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) name: ExchangeName,
    pub(crate) kind: ExchangeKind,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
    /// The exchange for messages that match no binding, set by the arguments or a policy.
    pub(crate) alternate: Option<Arc<str>>,
    pub(crate) arguments: FieldTable,
    /// Counters of its messages, created when there are any.
    pub(crate) flow: OnceLock<Arc<ExchangeFlow>>,
}

impl Exchange {
    /// The counters of its messages, created if there are none.
    pub(crate) fn flow(&self) -> Arc<ExchangeFlow> {
        Arc::clone(self.flow.get_or_init(Arc::default))
    }
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
    pub(crate) fn slot(self) -> (bool, u32) {
        (self.0 & Self::EXCHANGE != 0, self.0 & !Self::EXCHANGE)
    }
}

/// The end of a binding, identified by its number on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NumberedEnd {
    pub(crate) is_exchange: bool,
    pub(crate) number: u64,
}

/// The identity of a binding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BindingKey<'a> {
    /// The slot of the exchange.
    pub(crate) source: u32,
    pub(crate) destination: Destination,
    pub(crate) key: &'a str,
    /// Encoded, and sorted by name; empty if there are none.
    pub(crate) arguments: &'a [u8],
}

/// The queues that a message is routed to.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The queues, without repetition.
    pub(crate) queues: Vec<Arc<Queue>>,
    /// Whether other headers might have led to other queues.
    pub(crate) by_headers: bool,
    /// Whether the next message with the same keys and headers may be routed to other queues.
    pub(crate) by_message: bool,
}

#[derive(Default)]
pub(crate) struct Topology {
    /// The storage of durable exchanges, queues and bindings.
    recorder: Option<TopologyRecorder>,
    exchanges: Slab<ExchangeSlot>,
    exchange_names: HashMap<ExchangeName, u32, RandomState>,
    queues: Slab<QueueSlot>,
    queue_names: HashMap<Arc<str>, u32, RandomState>,
    bindings: Slab<PackedBinding>,
    hasher: RandomState,
    /// The virtual host has been deleted: nothing may be added.
    is_closed: bool,
    /// Messages published to exchanges that have been deleted.
    published_before: u64,
}

#[derive(Debug)]
struct ExchangeSlot {
    exchange: Arc<Exchange>,
    /// The number on disk, for a durable exchange.
    number: Option<u64>,
    router: Router,
    /// The bindings from this exchange, by destination and pattern.
    outgoing: HashTable<u32>,
    /// The bindings to this exchange.
    incoming: Vec<u32>,
    /// Its name has been removed, and its bindings are being removed.
    doomed: bool,
}

#[derive(Debug)]
struct QueueSlot {
    queue: Arc<Queue>,
    incoming: Vec<u32>,
}

/// 20 bytes; a million of them is a design target.
#[derive(Debug, Clone, Copy)]
struct PackedBinding {
    source: u32,
    destination: Destination,
    /// Key and arguments, as numbers in the source's router.
    pattern: BindingPattern,
    /// The index in the destination's list.
    place: u32,
}

impl PackedBinding {
    fn is(&self, destination: Destination, pattern: BindingPattern) -> bool {
        self.destination == destination && self.pattern == pattern
    }
}

impl Topology {
    pub(crate) fn exchange(&self, name: &str) -> Option<(u32, &Arc<Exchange>)> {
        let slot = *self.exchange_names.get(name)?;
        Some((slot, &self.exchanges[slot as usize].exchange))
    }

    /// The exchange in a slot that was looked up under the same lock.
    pub(crate) fn exchange_at(&self, slot: u32) -> &Exchange {
        &self.exchanges[slot as usize].exchange
    }

    /// Sets the alternate exchange of an exchange, unless the exchange has been deleted, or changed by others since it was
    /// looked up.
    pub(crate) fn set_alternate(&mut self, exchange: &Arc<Exchange>, alternate: Option<Arc<str>>) {
        let Some(&slot) = self.exchange_names.get(&*exchange.name) else { return };
        let current = &mut self.exchanges[slot as usize].exchange;
        if Arc::ptr_eq(current, exchange) {
            *current = Arc::new(Exchange { alternate, ..Exchange::clone(exchange) });
        }
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.queue_names.len()
    }

    /// Starts to store changes. Durable exchanges without a number are stored at once.
    pub(crate) fn keep(&mut self, recorder: TopologyRecorder) {
        for (_, slot) in &mut self.exchanges {
            if slot.number.is_none() && slot.exchange.durable {
                let number = recorder.new_number();
                recorder.exchange_declared(&slot.exchange, number);
                slot.number = Some(number);
            }
        }
        self.recorder = Some(recorder);
    }

    /// Whether a binding between the two is stored.
    pub(crate) fn is_recorded(&self, source: u32, destination: Destination) -> bool {
        self.exchanges[source as usize].number.is_some() && self.number_of(destination).is_some()
    }

    /// Sets the number on disk of an exchange that was already stored.
    pub(crate) fn set_number(&mut self, exchange: u32, number: u64) {
        self.exchanges[exchange as usize].number = Some(number);
    }

    fn number_of(&self, end: Destination) -> Option<NumberedEnd> {
        let (is_exchange, slot) = end.slot();
        let number = if is_exchange {
            self.exchanges[slot as usize].number
        } else {
            self.queues[slot as usize].queue.number()
        };
        number.map(|number| NumberedEnd { is_exchange, number })
    }

    /// Adds an exchange and returns its slot.
    pub(crate) fn insert_exchange(&mut self, exchange: Exchange) -> u32 {
        debug_assert!(!self.is_closed, "the virtual host is deleted");
        let number = self.recorder.as_ref().filter(|_| exchange.durable).map(|recorder| {
            let number = recorder.new_number();
            recorder.exchange_declared(&exchange, number);
            number
        });
        let name = exchange.name.clone();
        let router = Router::new(exchange.kind, &exchange.arguments);
        let exchange = Arc::new(exchange);
        let slot = ExchangeSlot {
            exchange,
            number,
            router,
            outgoing: HashTable::new(),
            incoming: Vec::new(),
            doomed: false,
        };
        let slot = self.exchanges.insert(slot) as u32;
        self.exchange_names.insert(name, slot);
        slot
    }

    /// Whether the exchange is the source of any binding.
    pub(crate) fn is_source(&self, exchange: u32) -> bool {
        !self.exchanges[exchange as usize].outgoing.is_empty()
    }

    pub(crate) fn queue(&self, name: &str) -> Option<(u32, &Arc<Queue>)> {
        let slot = *self.queue_names.get(name)?;
        let queue = &self.queues[slot as usize].queue;
        (!queue.is_deleted()).then_some((slot, queue))
    }

    /// The slot of a queue that is being deleted and has not lost its name yet.
    pub(crate) fn deleted_queue(&self, name: &str) -> Option<u32> {
        self.queue_names.get(name).copied().filter(|&slot| self.queues[slot as usize].queue.is_deleted())
    }

    pub(crate) fn insert_queue(&mut self, queue: Arc<Queue>) {
        debug_assert!(!self.is_closed, "the virtual host is deleted");
        let name = queue.name().clone();
        // If a queue with this name is being deleted, it loses its name now, together with the entries stored under that name.
        let displaced = self.queue_names.get(&*name).map(|&slot| &self.queues[slot as usize].queue);
        if let Some(recorder) = &self.recorder {
            match queue.number() {
                Some(number) => recorder.queue_declared(&queue, number),
                None if displaced.is_some_and(|queue| queue.number().is_some()) => {
                    recorder.queue_deleted(&name)
                }
                None => {}
            }
        }
        let entry = self.queues.vacant_entry();
        let slot = entry.key() as u32;
        queue.set_slot(slot);
        entry.insert(QueueSlot { queue, incoming: Vec::new() });
        self.queue_names.insert(name, slot);
    }

    /// Stores a queue again after its arguments have changed, if it still exists.
    pub(crate) fn write_queue_down(&self, queue: &Arc<Queue>) {
        if let (Some(recorder), Some(number)) = (&self.recorder, queue.number())
            && self.queue(queue.name()).is_some_and(|(_, found)| Arc::ptr_eq(found, queue))
        {
            recorder.queue_declared(queue, number);
        }
    }

    /// Removes the name of a queue to be deleted, if it still has it. The thread that deletes the queue must give the result to
    /// [`Topology::delete_in_steps`].
    pub(crate) fn unlink_queue(&mut self, slot: u32) -> Destination {
        let name = self.queues[slot as usize].queue.name();
        if self.queue_names.get(name) == Some(&slot) {
            if let Some(recorder) =
                self.recorder.as_ref().filter(|_| self.queues[slot as usize].queue.number().is_some())
            {
                recorder.queue_deleted(name);
            }
            self.queue_names.remove(&**name);
        }
        Destination::queue(slot)
    }

    /// Removes the name of an exchange. The result must be given to [`Topology::delete_in_steps`].
    pub(crate) fn unlink_exchange(&mut self, slot: u32) -> Destination {
        let exchange = &mut self.exchanges[slot as usize];
        exchange.doomed = true;
        // Walks skip it from now on, though removing its bindings may take a while.
        self.published_before += exchange.exchange.flow.get().map_or(0, |flow| flow.published());
        if let Some(recorder) = self.recorder.as_ref().filter(|_| exchange.number.is_some()) {
            recorder.exchange_deleted(&exchange.exchange.name);
        }
        self.exchange_names.remove(&*exchange.exchange.name);
        Destination::exchange(slot)
    }

    /// Adds a binding; returns whether it is new.
    pub(crate) fn bind(&mut self, new: BindingKey<'_>) -> bool {
        let Self { exchanges, queues, bindings, hasher, .. } = self;
        let BindingKey { source: from, destination, key, arguments } = new;
        let source = &mut exchanges[from as usize];
        let pattern = source.router.intern(key, arguments);
        let hash = hash(hasher, destination, pattern);
        if source.outgoing.find(hash, |&id| bindings[id as usize].is(destination, pattern)).is_some() {
            return false;
        }
        let entry = bindings.vacant_entry();
        let id = entry.key() as u32;
        source.router.insert(id, destination.0, pattern);
        entry.insert(PackedBinding { source: from, destination, pattern, place: 0 });
        source.outgoing.insert_unique(hash, id, |&id| hash_of(hasher, &bindings[id as usize]));
        let list = match destination.slot() {
            (true, slot) => &mut exchanges[slot as usize].incoming,
            (false, slot) => &mut queues[slot as usize].incoming,
        };
        bindings[id as usize].place = list.len() as u32;
        list.push(id);
        if let Some(recorder) = &self.recorder
            && let (Some(source), Some(to)) =
                (self.exchanges[new.source as usize].number, self.number_of(new.destination))
        {
            recorder.bound(source, to, new.key, new.arguments);
        }
        true
    }

    /// Whether the binding exists.
    pub(crate) fn is_bound(&self, wanted: BindingKey<'_>) -> bool {
        self.find(wanted).is_some()
    }

    /// Removes a binding; returns whether it existed. If that was the last binding of an auto-delete
    /// exchange, the exchange is doomed and added to `doomed`.
    pub(crate) fn unbind(&mut self, old: BindingKey<'_>, doomed: &mut Vec<Destination>) -> bool {
        match self.find(old) {
            None => false,
            Some(id) => {
                self.remove_binding(id, doomed);
                true
            }
        }
    }

    /// Removes up to `limit` bindings of a doomed queue or exchange, and when none is left the queue or
    /// exchange itself. Returns the number of bindings removed, and whether it is done.
    pub(crate) fn delete_in_steps(
        &mut self,
        what: Destination,
        limit: usize,
        doomed: &mut Vec<Destination>,
    ) -> (usize, bool) {
        // Collected in one walk: each walk through `outgoing` first passes the buckets of all bindings removed before.
        let next: Vec<u32> = match what.slot() {
            (false, slot) => self.queues[slot as usize].incoming.iter().rev().take(limit).copied().collect(),
            (true, slot) => {
                let ExchangeSlot { incoming, outgoing, .. } = &self.exchanges[slot as usize];
                incoming.iter().rev().chain(outgoing.iter()).take(limit).copied().collect()
            }
        };
        let before = self.bindings.len();
        // A binding of an exchange to itself may be listed twice.
        next.iter().for_each(|id| self.remove_binding(*id, doomed));
        let removed = before - self.bindings.len();
        if next.len() == limit {
            return (removed, false);
        }
        match what.slot() {
            (false, slot) => drop(self.queues.remove(slot as usize)),
            (true, slot) => drop(self.exchanges.remove(slot as usize)),
        }
        (removed, true)
    }

    /// Messages published to exchanges that have been deleted.
    pub(crate) fn published_before(&self) -> u64 {
        self.published_before
    }

    /// Routes a message from an exchange (`None`: the default exchange) to its queues: through bindings
    /// between exchanges, whose cycles are harmless, and through alternate exchanges.
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
            routes.by_headers |= exchange.router.looks_at_headers();
            routes.by_message |= exchange.router.routes_each_message();
            let (queues_before, mut exchanges) = (slots.len(), 0);
            exchange.router.matches(routed, |destination| match Destination(destination).slot() {
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
        // Cheaper than marking visited queues, and leaves no memory allocated that grows with the number of
        // queues.
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
        let source = &self.exchanges[wanted.source as usize];
        let pattern = source.router.find(wanted.key, wanted.arguments)?;
        let hash = hash(&self.hasher, wanted.destination, pattern);
        let same = |&id: &u32| self.bindings[id as usize].is(wanted.destination, pattern);
        source.outgoing.find(hash, same).copied()
    }

    fn remove_binding(&mut self, id: u32, doomed: &mut Vec<Destination>) {
        let Some(binding) = self.bindings.try_remove(id as usize) else { return };
        if let Some(recorder) = &self.recorder
            && let (Some(source), Some(to)) =
                (self.exchanges[binding.source as usize].number, self.number_of(binding.destination))
        {
            let (key, arguments) = self.exchanges[binding.source as usize].router.bytes(binding.pattern);
            recorder.unbound(source, to, key, &arguments);
        }
        let source = &mut self.exchanges[binding.source as usize];
        if let Ok(entry) = source.outgoing.find_entry(hash_of(&self.hasher, &binding), |&found| found == id) {
            entry.remove();
        }
        source.router.remove(id, binding.destination.0, binding.pattern);
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
            doomed.push(self.unlink_exchange(binding.source));
        }
    }
}

fn hash_of(hasher: &RandomState, binding: &PackedBinding) -> u64 {
    hash(hasher, binding.destination, binding.pattern)
}

fn hash(hasher: &RandomState, destination: Destination, pattern: BindingPattern) -> u64 {
    hasher.hash_one((destination, pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_takes_twenty_bytes() {
        assert_eq!(size_of::<PackedBinding>(), 20);
    }
}
