//! The messages of a queue that are ready for delivery, in order.
//!
//! Each priority that occurs has a level, and in some queues returned messages have one in front of all. All
//! messages of a short level are in memory. A long one may be split: its head, from which messages leave, and its
//! tail, to which they are added, are in memory, and the run between them is on disk. A run is only loaded from its
//! front, to the end of the head, and only grows at its end, by the front of the tail. In front of the head are the
//! messages of the level that were returned, in memory or on disk. Only if memory is short ([`Extent`]), the last messages of
//! the head become the first of the run again.

mod batch;
mod chunked;
mod disk;
mod level;
mod returned;
mod run;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;

use store::pages::QueueSegments;

use super::delivery::{Delivery, NEVER};
use super::stored::StoredMessages;
use crate::compatibility::DeliveryOrder;
pub(super) use batch::ReturnedBatch;
pub(crate) use disk::Extent;
pub(super) use disk::{OnDisk, PagedOut, ToWrite};
use level::Level;
pub(crate) use run::{Plan, Run};
use waiting::Next;

/// Ready messages: the highest priority first, the oldest first within it.
pub(crate) struct ReadyStore {
    order: DeliveryOrder,
    /// In ascending order of rank. Each is added with its first message, so most queues have only one.
    levels: Vec<Level>,
    /// Which messages are also in the store.
    stores: StoredMessages,
    /// The number of messages, including those on disk.
    len: usize,
    /// Bytes of the bodies of these messages.
    bytes: u64,
    /// Bytes of memory that messages take.
    resident: u64,
    /// Bytes of memory that cannot be paged out: heads, and a part of the returned messages.
    pinned: u64,
    on_disk: OnDisk,
    /// Messages need to be loaded.
    needs_load: bool,
    /// The number of messages returned so far, if these have a level of their own.
    returns: u64,
    /// The number of calls of `take_all`, each of which invalidates loads and writes in progress.
    epoch: u64,
    /// Segments that are no longer needed.
    discarded: Vec<Arc<QueueSegments>>,
}

impl ReadyStore {
    pub(super) fn new(order: DeliveryOrder, stores: StoredMessages) -> Self {
        Self {
            order,
            levels: Vec::new(),
            stores,
            len: 0,
            bytes: 0,
            resident: 0,
            pinned: 0,
            on_disk: OnDisk::default(),
            needs_load: false,
            returns: 0,
            epoch: 0,
            discarded: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory that messages take.
    pub(super) fn resident(&self) -> u64 {
        self.resident
    }

    /// Bytes of memory that could be paged out, as an upper bound.
    pub(super) fn pageable(&self) -> u64 {
        self.resident - self.pinned
    }

    /// Whether any message can be paged out.
    pub(super) fn has_evictable(&self, extent: Extent) -> bool {
        match extent {
            Extent::Usual => self.pageable() > 0,
            // A part of the heads is paged out, too.
            Extent::Short | Extent::Stored => self.resident > 0,
        }
    }

    pub(super) fn on_disk(&self) -> OnDisk {
        self.on_disk
    }

    /// Adds a message that is younger than all others. With `spill` it does not stay in memory if the store has it and the
    /// previous message is on disk.
    #[inline]
    pub(super) fn push(&mut self, delivery: Delivery, spill: bool) {
        self.push_to(self.order.priority_of(&delivery.message), delivery, spill);
    }

    #[inline]
    fn push_to(&mut self, rank: u8, delivery: Delivery, spill: bool) {
        self.len += 1;
        self.bytes += delivery.message.body_len() as u64;
        let spill = spill && self.stores.includes(&delivery.message);
        let weight = delivery.message.weight();
        let at = self.level_at(rank);
        let single = self.levels.len() == 1;
        let level = &mut self.levels[at];
        if spill && level.takes_no_tail() {
            level.add_to_run(&delivery, true, single);
            self.on_disk.add(&delivery);
        } else {
            level.push(delivery);
            self.resident += weight;
        }
    }

    /// Puts a message back that was popped before.
    pub(super) fn put_back(&mut self, delivery: Delivery) {
        self.len += 1;
        self.bytes += delivery.message.body_len() as u64;
        let weight = delivery.message.weight();
        self.resident += weight;
        let stored = self.stores.includes(&delivery.message);
        let at = self.level_at(self.order.returned_rank(&delivery.message));
        let place = if self.order.returned_first { self.reserve_places(1) } else { delivery.position };
        self.pinned += self.levels[at].put_back(place, delivery, stored);
    }

    /// Adds a message found after a restart, which is younger than all others.
    pub(super) fn restore(&mut self, delivery: Delivery) {
        let rank = self.order.restored_rank(&delivery.message, delivery.deliveries);
        self.push_to(rank, delivery, false);
    }

    /// The numbers of messages of each priority that occurs, ascending, and of returned messages, if these precede all
    /// others.
    pub(super) fn by_priority(&self) -> (Vec<(u8, u64)>, u64) {
        let is_returned = |level: &&Level| level.rank > self.order.highest;
        let counts = self.levels.iter().filter(|level| !is_returned(level));
        let counts = counts.map(|level| (level.rank, level.len())).filter(|(_, messages)| *messages > 0);
        (counts.collect(), self.levels.iter().filter(is_returned).map(Level::len).sum())
    }

    /// The next message; `None` also when it [is on disk](Self::is_on_disk).
    #[inline]
    pub(super) fn front(&self) -> Option<Next> {
        for level in self.levels.iter().rev() {
            match level.front() {
                None if level.is_on_disk() => return None,
                None => {}
                found => return found,
            }
        }
        None
    }

    /// Whether there are messages, and the next one is on disk.
    pub(super) fn is_on_disk(&self) -> bool {
        self.len > 0 && self.front().is_none()
    }

    /// Takes the next message. If it is on disk, a load is requested instead.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Delivery> {
        if self.len == 0 {
            return None;
        }
        for at in (0..self.levels.len()).rev() {
            if let Some(delivery) = self.pop_from(at) {
                return Some(delivery);
            }
            if self.levels[at].is_on_disk() {
                self.needs_load = true;
                return None;
            }
        }
        None
    }

    /// Takes the next message of a level, if it is in memory.
    #[inline]
    fn pop_from(&mut self, at: usize) -> Option<Delivery> {
        let popped = self.levels[at].pop()?;
        let delivery = popped.delivery;
        let weight = delivery.message.weight();
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(delivery.message.body_len() as u64);
        self.resident -= weight;
        self.pinned -= popped.unpinned;
        self.needs_load |= popped.needs_load;
        if popped.joins {
            self.join_exhausted();
        }
        Some(delivery)
    }

    /// Takes the next message if it has expired; if returned messages come first, the next one of any level.
    pub(super) fn pop_expired(&mut self, now: u64) -> Option<Delivery> {
        let has_expired = |level: &Level| level.front().is_some_and(|next| next.expires <= now);
        if self.order.returned_first {
            if let Some(at) = self.levels.iter().rposition(has_expired) {
                return self.pop_from(at);
            }
            // A message that is due is on disk. The levels above it are loaded first, a little of each.
            self.needs_load |= self.next_expiry().is_some_and(|expires| expires <= now);
            return None;
        }
        match self.front() {
            Some(delivery) if delivery.expires <= now => self.pop(),
            Some(_) => None,
            None => {
                self.needs_load |= self.next_expiry().is_some_and(|expires| expires <= now);
                None
            }
        }
    }

    /// The time at which the next message expires, or the earliest possible one if it is on disk. Messages
    /// behind it wait for it, as in RabbitMQ, regardless of their priority, unless returned messages come first: then the
    /// next ones of all levels expire.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        if self.order.returned_first {
            let next_of = |level: &Level| match level.front() {
                Some(next) => Some(next.expires),
                None => level.expiry_on_disk(),
            };
            return self.levels.iter().filter_map(next_of).min().filter(|expires| *expires != NEVER);
        }
        let expires = match self.front() {
            Some(delivery) => delivery.expires,
            None if self.len == 0 => NEVER,
            None => self.levels.iter().rev().find_map(Level::expiry_on_disk).unwrap_or(NEVER),
        };
        (expires != NEVER).then_some(expires)
    }

    /// Takes everything. Loads and writes in progress become invalid.
    pub(super) fn take_all(&mut self) -> Self {
        let mut empty = Self::new(self.order, self.stores);
        empty.epoch = self.epoch + 1;
        // Returning messages may already have reserved their places.
        empty.returns = self.returns;
        empty.discarded = std::mem::take(&mut self.discarded);
        let segments = self.levels.iter_mut().filter_map(Level::take_page_segments);
        empty.discarded.extend(segments);
        std::mem::replace(self, empty)
    }

    /// All messages in memory, the lowest priority first, and within it the returned ones, in any order, before all others.
    pub(super) fn iter(&self) -> impl Iterator<Item = Delivery> {
        self.levels.iter().flat_map(Level::iter)
    }

    /// Removes and returns the messages in memory that `which` selects, from a queue that is being restored.
    pub(super) fn extract(&mut self, which: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        let mut taken = Vec::new();
        for level in &mut self.levels {
            let pinned = level.extract(&which, &mut taken);
            self.pinned -= pinned;
        }
        for delivery in &taken {
            self.len -= 1;
            self.bytes -= delivery.message.body_len() as u64;
            self.resident -= delivery.message.weight();
        }
        self.join_exhausted();
        taken
    }

    /// Joins the levels that have nothing on disk.
    fn join_exhausted(&mut self) {
        for level in &mut self.levels {
            if let Some((pinned, page_segments)) = level.join() {
                self.pinned -= pinned;
                self.discarded.extend(page_segments);
            }
        }
    }

    /// The index of the level of this rank, which is added if it is not there.
    #[inline]
    fn level_at(&mut self, rank: u8) -> usize {
        self.find_level(rank).unwrap_or_else(|at| {
            self.levels.reserve_exact(1);
            self.levels.insert(at, Level::new(rank));
            at
        })
    }

    /// The index of the level of this rank, or the one that it would have.
    #[inline]
    fn find_level(&self, rank: u8) -> Result<usize, usize> {
        self.levels.binary_search_by_key(&rank, |level| level.rank)
    }
}
