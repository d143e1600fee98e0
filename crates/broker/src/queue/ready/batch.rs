//! Many messages that return together.

use std::collections::BTreeMap;

use super::ReadyStore;
use super::returned::ReturnedMessages;
use crate::compatibility::DeliveryOrder;
use crate::queue::delivery::Delivery;
use crate::queue::stored::StoredMessages;

/// Returned messages, counted and sorted without the queue's lock.
pub(in crate::queue) struct ReturnedBatch {
    order: DeliveryOrder,
    stores: StoredMessages,
    /// The place of the next message where returned ones come first.
    next_place: u64,
    /// By rank.
    levels: BTreeMap<u8, ReturnedMessages>,
    messages: usize,
    /// Bytes of their bodies.
    bytes: u64,
    /// Bytes of memory that they use.
    weight: u64,
}

impl ReturnedBatch {
    /// Where returned messages come first, `first` is the place of the first of them ([`ReadyStore::reserve_places`]).
    pub(in crate::queue) fn new(order: DeliveryOrder, stores: StoredMessages, first: u64) -> Self {
        let levels = BTreeMap::new();
        Self { order, stores, next_place: first, levels, messages: 0, bytes: 0, weight: 0 }
    }

    pub(in crate::queue) fn add(&mut self, returned: impl IntoIterator<Item = Delivery>) {
        for delivery in returned {
            self.messages += 1;
            self.bytes += delivery.message.body_len() as u64;
            self.weight += delivery.message.weight();
            let place = if self.order.returned_first { self.next_place } else { delivery.position };
            self.next_place += 1;
            let stored = self.stores.includes(&delivery.message);
            let rank = self.order.returned_rank(&delivery.message);
            self.levels.entry(rank).or_default().insert(place, delivery, stored);
        }
    }

    /// The messages alone.
    pub(in crate::queue) fn into_ready(self) -> ReadyStore {
        let mut ready = ReadyStore::new(self.order, self.stores);
        ready.put_back_all(self);
        ready
    }
}

impl ReadyStore {
    /// Reserves places for returned messages where these come first; returns the first.
    pub(in crate::queue) fn reserve_places(&mut self, messages: usize) -> u64 {
        let first = self.returns;
        self.returns += messages as u64;
        first
    }

    /// Puts back messages that were popped before: for very many, faster than one by one.
    pub(in crate::queue) fn put_back_all(&mut self, batch: ReturnedBatch) {
        let ReturnedBatch { levels, messages, bytes, weight, .. } = batch;
        self.len += messages;
        self.bytes += bytes;
        self.resident += weight;
        for (rank, messages) in levels {
            let at = self.level_at(rank);
            self.pinned += self.levels[at].put_back_all(messages);
        }
    }
}
