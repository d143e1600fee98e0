//! Very many messages that come back together.

use std::collections::BTreeMap;

use super::ReadyStore;
use super::level::Level;
use crate::compatibility::DeliveryOrder;
use crate::queue::delivery::Delivery;

/// Messages that come back, counted and sorted without the queue's lock.
pub(in crate::queue) struct ReturnedMessages {
    /// By rank, then by their places.
    levels: Vec<(u8, BTreeMap<u64, Delivery>)>,
    messages: usize,
    /// Bytes of their bodies.
    bytes: u64,
    /// Bytes of memory that they take.
    weight: u64,
}

impl ReturnedMessages {
    /// Where returned messages come first, `first` is the place of the first of them ([`ReadyStore::reserve_places`]).
    pub(in crate::queue) fn new(order: DeliveryOrder, returned: Vec<Delivery>, first: u64) -> Self {
        let (messages, mut bytes, mut weight) = (returned.len(), 0, 0);
        let mut ranks: BTreeMap<u8, Vec<(u64, Delivery)>> = BTreeMap::new();
        for (place, delivery) in (first..).zip(returned) {
            bytes += delivery.message.body_len() as u64;
            weight += delivery.message.weight();
            let place = if order.returned_first { place } else { delivery.position };
            ranks.entry(order.returned_rank(&delivery.message)).or_default().push((place, delivery));
        }
        let levels = ranks.into_iter().map(|(rank, entries)| (rank, entries.into_iter().collect())).collect();
        Self { levels, messages, bytes, weight }
    }
}

impl ReadyStore {
    /// Reserves places for messages that come back where these come first; returns the first.
    pub(in crate::queue) fn reserve_places(&mut self, messages: usize) -> u64 {
        let first = self.returns;
        self.returns += messages as u64;
        first
    }

    /// Puts messages back that were popped before: all of them in less time than very many one by one.
    pub(in crate::queue) fn put_back_all(&mut self, returned: ReturnedMessages) {
        let ReturnedMessages { levels, messages, bytes, weight } = returned;
        self.len += messages;
        self.bytes += bytes;
        self.resident += weight;
        self.pinned += weight;
        for (rank, messages) in levels {
            let at = self.level_at(rank);
            self.levels[at].put_back_all(messages);
        }
    }
}

impl Level {
    fn put_back_all(&mut self, mut messages: BTreeMap<u64, Delivery>) {
        // To join two trees takes time for each message of both, though far less than to insert one.
        if messages.len() < self.returned.len() / INSERTION {
            self.returned.extend(messages);
        } else {
            self.returned.append(&mut messages);
        }
    }
}

/// Messages that can be moved to a new tree in the time in which one is inserted.
const INSERTION: usize = 8;
