//! Walks through a topology, a bounded number of slots at a time: the caller releases the lock in between.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::{Destination, Exchange, Topology};
use crate::queue::Queue;

impl Topology {
    /// Collects the queues in at most `most` slots beginning with `from`, except deleted ones; returns the
    /// slot from which there may be more.
    pub(crate) fn queues_from(&self, from: usize, most: usize, into: &mut Vec<Arc<Queue>>) -> Option<usize> {
        let (places, next) = step(from, most, self.queues.capacity());
        let queues = places.filter_map(|place| self.queues.get(place)).map(|slot| &slot.queue);
        into.extend(queues.filter(|queue| !queue.is_deleted()).cloned());
        next
    }

    /// Like `queues_from`, for exchanges.
    pub(crate) fn exchanges_from(
        &self,
        from: usize,
        most: usize,
        into: &mut Vec<Arc<Exchange>>,
    ) -> Option<usize> {
        let (places, next) = step(from, most, self.exchanges.capacity());
        let exchanges = places.filter_map(|place| self.exchanges.get(place));
        into.extend(exchanges.filter(|slot| !slot.doomed).map(|slot| slot.exchange.clone()));
        next
    }

    /// Like `queues_from`, for bindings.
    pub(crate) fn binding_ids(&self, from: usize, most: usize) -> (Vec<u32>, Option<usize>) {
        let (places, next) = step(from, most, self.bindings.capacity());
        (places.filter(|&place| self.bindings.contains(place)).map(|place| place as u32).collect(), next)
    }

    /// Source, destination, key and arguments of a binding, unless one of its ends is being deleted.
    pub(crate) fn binding_parts(&self, id: u32) -> Option<(u32, Destination, &str, Cow<'_, [u8]>)> {
        let binding = self.bindings.get(id as usize)?;
        let source = self.exchanges.get(binding.source as usize).filter(|source| !source.doomed)?;
        let is_there = match binding.destination.slot() {
            (true, slot) => self.exchanges.get(slot as usize).is_some_and(|exchange| !exchange.doomed),
            (false, slot) => self.queues.get(slot as usize).is_some_and(|queue| !queue.queue.is_deleted()),
        };
        let (key, arguments) = source.router.bytes(binding.pattern);
        is_there.then_some((binding.source, binding.destination, key, arguments))
    }

    /// The queue in a slot that was looked up under the same lock.
    pub(crate) fn queue_at(&self, slot: u32) -> &Arc<Queue> {
        &self.queues[slot as usize].queue
    }

    /// The slots of the bindings to a queue or exchange: four bytes each, copied.
    pub(crate) fn incoming(&self, to: Destination) -> Vec<u32> {
        match to.slot() {
            (true, slot) => self.exchanges[slot as usize].incoming.clone(),
            (false, slot) => self.queues[slot as usize].incoming.clone(),
        }
    }

    /// The slots of the bindings from an exchange.
    pub(crate) fn outgoing(&self, exchange: u32) -> Vec<u32> {
        self.exchanges[exchange as usize].outgoing.iter().copied().collect()
    }

    fn unlink_all_exchanges(&mut self) -> Vec<Destination> {
        let slots: Vec<u32> =
            self.exchanges.iter().filter(|(_, slot)| !slot.doomed).map(|(at, _)| at as u32).collect();
        slots.into_iter().map(|slot| self.unlink_exchange(slot)).collect()
    }

    /// Removes all names permanently: nothing may be added from now on. The result must be given to
    /// [`Topology::delete_in_steps`], and each queue must be deleted.
    pub(crate) fn close(&mut self) -> Vec<Destination> {
        self.is_closed = true;
        self.queue_names.clear();
        self.unlink_all_exchanges()
    }

    /// Whether additions are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

/// The slots of one step, and the beginning of the next one.
fn step(from: usize, most: usize, places: usize) -> (Range<usize>, Option<usize>) {
    let end = from.saturating_add(most).min(places);
    (from..end.max(from), (end < places).then_some(end))
}
