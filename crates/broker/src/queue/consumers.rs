//! A queue's consumers, and the order in which they are served.
//!
//! There may be very many consumers, even of one client, so nothing here iterates over all of them: an operation on one
//! costs at most the logarithm of their number.

mod sampling;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use slab::Slab;

use self::sampling::ConsumerSampling;
use super::delivery::{Consumer, ConsumerCapacity, ConsumerId};
use crate::SessionId;

/// A queue's consumers, which take no memory before the first one: most of very many queues never have any.
#[derive(Default)]
pub(super) struct QueueConsumers(Option<Box<Consumers>>);

impl QueueConsumers {
    pub(super) fn new(single_active: bool) -> Self {
        Self(single_active.then(|| Box::new(Consumers::new(true))))
    }
}

impl Deref for QueueConsumers {
    type Target = Consumers;

    #[inline]
    fn deref(&self) -> &Consumers {
        self.0.as_deref().unwrap_or(&NO_CONSUMERS)
    }
}

impl DerefMut for QueueConsumers {
    #[inline]
    fn deref_mut(&mut self) -> &mut Consumers {
        self.0.get_or_insert_default()
    }
}

static NO_CONSUMERS: Consumers = Consumers {
    entries: Slab::new(),
    rings: BTreeMap::new(),
    joined: 0,
    exclusive: 0,
    single: None,
    listed: Vec::new(),
    sampling: None,
};

/// All consumers of a queue, keyed by slot.
#[derive(Default)]
pub(super) struct Consumers {
    entries: Slab<ConsumerEntry>,
    /// Consumers that may be served, by priority, highest first. No ring is empty.
    rings: BTreeMap<Reverse<i64>, Ring>,
    /// The number of consumers that ever joined.
    joined: u64,
    /// The number of exclusive consumers.
    exclusive: usize,
    single: Option<SingleActive>,
    /// The slots of all consumers, in any order and without gaps.
    listed: Vec<u32>,
    /// Set by the first sample ([`Consumers::sample_lag`]).
    sampling: Option<Box<ConsumerSampling>>,
}

/// The consumer that may be served, and its successors, for a queue with `x-single-active-consumer`.
#[derive(Default)]
struct SingleActive {
    active: Option<u32>,
    /// The slots of all others, ordered by priority, then age.
    waiting: BTreeSet<(Reverse<i64>, u64, u32)>,
}

/// Consumers of one priority with capacity, in the order of their turns. Their slots form a doubly linked ring, so that any
/// of them can leave it.
struct Ring {
    /// The slot of the consumer to be served next.
    head: u32,
    len: usize,
}

/// A consumer with its state in the queue.
pub(super) struct ConsumerEntry {
    pub(super) consumer: Arc<dyn Consumer>,
    pub(super) no_ack: bool,
    pub(super) session: SessionId,
    pub(super) tag: Box<str>,
    pub(super) exclusive: bool,
    pub(super) priority: i64,
    /// The number of consumers that joined before it.
    joined: u64,
    /// It accepts more deliveries.
    has_capacity: bool,
    /// Its index in [`Consumers::listed`].
    at: u32,
    /// The answer of [`Consumer::busy_since_rest`] at the last sample.
    seen_busy: Option<u32>,
    /// Its neighbours, while it is in a ring.
    links: Option<Links>,
}

#[derive(Clone, Copy)]
struct Links {
    previous: u32,
    next: u32,
}

impl ConsumerEntry {
    pub(super) fn new(
        consumer: Arc<dyn Consumer>,
        session: SessionId,
        tag: &str,
        no_ack: bool,
        exclusive: bool,
        priority: i64,
    ) -> Self {
        let tag = tag.into();
        let (joined, has_capacity, at, seen_busy, links) = (0, false, 0, None, None);
        Self {
            consumer,
            no_ack,
            session,
            tag,
            exclusive,
            priority,
            joined,
            has_capacity,
            at,
            seen_busy,
            links,
        }
    }

    /// Its id: the slot and the lower half of its age, which distinguishes it from earlier consumers in that slot.
    fn id(&self, slot: u32) -> ConsumerId {
        ConsumerId(self.joined << 32 | u64::from(slot))
    }

    fn rank(&self, slot: u32) -> (Reverse<i64>, u64, u32) {
        (Reverse(self.priority), self.joined, slot)
    }
}

impl Consumers {
    pub(super) fn new(single_active: bool) -> Self {
        Self { single: single_active.then(SingleActive::default), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_single_active(&self) -> bool {
        self.single.is_some()
    }

    /// Whether a consumer may be served: with a single active consumer, only that one.
    pub(super) fn is_active(&self, entry: &ConsumerEntry) -> bool {
        let active = self.single.as_ref().map(|single| single.active);
        active.is_none_or(|active| active.is_some_and(|active| std::ptr::eq(self.get(active), entry)))
    }

    /// Whether this is the single active consumer of such a queue.
    pub(super) fn is_single_active_consumer(&self, id: ConsumerId) -> bool {
        let active = self.single.as_ref().and_then(|single| single.active);
        active.is_some() && active == self.slot(id)
    }

    /// The tag of the single active consumer.
    pub(super) fn active_tag(&self) -> Option<&str> {
        let active = self.single.as_ref()?.active?;
        Some(&self.get(active).tag)
    }

    pub(super) fn has_exclusive(&self) -> bool {
        self.exclusive > 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ConsumerEntry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Adds a consumer that has no capacity yet.
    pub(super) fn insert(&mut self, mut entry: ConsumerEntry) -> ConsumerId {
        entry.joined = self.joined;
        self.joined += 1;
        self.exclusive += usize::from(entry.exclusive);
        if let Some(sampling) = &mut self.sampling {
            sampling.joined(entry.session);
        }
        let vacant = self.entries.vacant_entry();
        let slot = vacant.key() as u32;
        entry.at = self.listed.len() as u32;
        self.listed.push(slot);
        match &mut self.single {
            Some(single) if single.active.is_none() => single.active = Some(slot),
            Some(single) => _ = single.waiting.insert(entry.rank(slot)),
            None => {}
        }
        vacant.insert(entry).id(slot)
    }

    /// Removes a consumer, if it is still there.
    pub(super) fn remove(&mut self, id: ConsumerId) -> Option<ConsumerEntry> {
        let slot = self.slot(id)?;
        self.delist(slot);
        let entry = self.entries.remove(slot as usize);
        self.exclusive -= usize::from(entry.exclusive);
        if let Some(sampling) = &mut self.sampling {
            sampling.left(entry.session);
        }
        self.listed.swap_remove(entry.at as usize);
        if let Some(&moved) = self.listed.get(entry.at as usize) {
            self.entries[moved as usize].at = entry.at;
        }
        if let Some(single) = &mut self.single {
            if single.active == Some(slot) {
                // The waiting consumer with the highest priority that joined first becomes active.
                single.active = single.waiting.pop_first().map(|(_, _, slot)| slot);
                if let Some(next) = single.active.filter(|&next| self.entries[next as usize].has_capacity) {
                    self.enlist(next);
                }
            } else {
                single.waiting.remove(&entry.rank(slot));
            }
        }
        Some(entry)
    }

    /// Records that a consumer has capacity; returns whether it can be served now.
    pub(super) fn resume(&mut self, id: ConsumerId) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        self.entries[slot as usize].has_capacity = true;
        let eligible = self.single.as_ref().is_none_or(|single| single.active == Some(slot));
        if eligible {
            self.enlist(slot);
        }
        eligible
    }

    /// The next consumer to serve, and the number of consumers of its priority with capacity.
    #[inline]
    pub(super) fn next(&self) -> Option<(u32, usize)> {
        let (_, ring) = self.rings.first_key_value()?;
        Some((ring.head, ring.len))
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &ConsumerEntry {
        &self.entries[slot as usize]
    }

    /// Ends the turn of the consumer that [`Consumers::next`] returned.
    pub(super) fn served(&mut self, slot: u32, capacity: ConsumerCapacity) {
        match capacity {
            ConsumerCapacity::More => {
                if let Some(mut ring) = self.rings.first_entry()
                    && let Some(links) = self.entries[slot as usize].links
                {
                    ring.get_mut().head = links.next;
                }
            }
            ConsumerCapacity::Full => {
                self.entries[slot as usize].has_capacity = false;
                self.delist(slot);
            }
        }
    }

    fn slot(&self, id: ConsumerId) -> Option<u32> {
        let slot = id.0 as u32;
        self.entries.get(slot as usize).filter(|entry| entry.id(slot) == id).map(|_| slot)
    }

    /// Adds a consumer at the end of its ring, unless it is in it already.
    fn enlist(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        if entry.links.is_some() {
            return;
        }
        let priority = Reverse(entry.priority);
        let Some(ring) = self.rings.get_mut(&priority) else {
            self.rings.insert(priority, Ring { head: slot, len: 1 });
            self.entries[slot as usize].links = Some(Links { previous: slot, next: slot });
            return;
        };
        ring.len += 1;
        let next = ring.head;
        let previous = self.links(next).previous;
        self.entries[slot as usize].links = Some(Links { previous, next });
        self.links(previous).next = slot;
        self.links(next).previous = slot;
    }

    /// Removes a consumer from its ring, if it is in one.
    fn delist(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let Some(Links { previous, next }) = entry.links.take() else { return };
        let priority = Reverse(entry.priority);
        let Some(ring) = self.rings.get_mut(&priority) else { return };
        ring.len -= 1;
        if ring.len == 0 {
            self.rings.remove(&priority);
            return;
        }
        if ring.head == slot {
            ring.head = next;
        }
        self.links(previous).next = next;
        self.links(next).previous = previous;
    }

    /// The links of a consumer that is in a ring.
    fn links(&mut self, slot: u32) -> &mut Links {
        self.entries[slot as usize].links.get_or_insert(Links { previous: slot, next: slot })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::queue::Offer;

    struct Nobody;

    impl Consumer for Nobody {
        fn accept(&self, _offer: &mut Offer<'_>) -> ConsumerCapacity {
            ConsumerCapacity::Full
        }
        fn cancelled(&self) {}
    }

    fn entry(priority: i64) -> ConsumerEntry {
        ConsumerEntry::new(Arc::new(Nobody), SessionId(1), "", false, false, priority)
    }

    /// A simple model of the rules.
    struct Model {
        single: bool,
        /// Id, priority, and whether it has capacity, by age.
        all: Vec<(ConsumerId, i64, bool)>,
        active: Option<ConsumerId>,
        turns: VecDeque<ConsumerId>,
    }

    impl Model {
        fn priority(&self, id: ConsumerId) -> i64 {
            self.all.iter().find(|(other, ..)| *other == id).unwrap().1
        }

        fn enlist(&mut self, id: ConsumerId) {
            if !self.turns.contains(&id) && (!self.single || self.active == Some(id)) {
                self.turns.push_back(id);
            }
        }

        fn remove(&mut self, id: ConsumerId) {
            self.turns.retain(|other| *other != id);
            self.all.retain(|(other, ..)| *other != id);
            if self.active == Some(id) {
                // `max_by_key` returns the last of equal elements, so the oldest has to be the last.
                let next = self.all.iter().rev().max_by_key(|(_, priority, _)| *priority).copied();
                self.active = next.map(|(id, ..)| id);
                if let Some((id, _, true)) = next {
                    self.enlist(id);
                }
            }
        }

        /// The next consumer, and how many of its priority have capacity.
        fn next(&self) -> Option<(ConsumerId, usize)> {
            let highest = self.turns.iter().map(|id| self.priority(*id)).max()?;
            let mut group = self.turns.iter().filter(|id| self.priority(**id) == highest);
            Some((*group.next()?, 1 + group.count()))
        }
    }

    proptest! {
        #[test]
        fn consumers_are_served_as_in_the_model(single: bool, steps in proptest::collection::vec((0u8..8, 0usize..8), 1..200)) {
            let mut consumers = Consumers::new(single);
            let mut model = Model { single, all: Vec::new(), active: None, turns: VecDeque::new() };
            for (step, which) in steps {
                let some = model.all.get(which).copied();
                match (step, some) {
                    (0 | 1, _) => {
                        let priority = which as i64 % 3;
                        let id = consumers.insert(entry(priority));
                        model.all.push((id, priority, false));
                        model.active = model.active.or(Some(id));
                    }
                    (2, Some((id, ..))) => {
                        prop_assert!(consumers.remove(id).is_some());
                        prop_assert!(consumers.remove(id).is_none());
                        model.remove(id);
                    }
                    (3 | 4, Some((id, ..))) => {
                        model.all[which].2 = true;
                        model.enlist(id);
                        prop_assert_eq!(consumers.resume(id), !single || model.active == Some(id));
                    }
                    _ => if let Some((slot, _)) = consumers.next() {
                        let id = consumers.get(slot).id(slot);
                        let capacity = if step % 2 == 0 { ConsumerCapacity::Full } else { ConsumerCapacity::More };
                        consumers.served(slot, capacity);
                        model.turns.retain(|other| *other != id);
                        match capacity {
                            ConsumerCapacity::More => model.turns.push_back(id),
                            ConsumerCapacity::Full => model.all.iter_mut().filter(|one| one.0 == id).for_each(|one| one.2 = false),
                        }
                    }
                }
                let next = consumers.next().map(|(slot, ready)| (consumers.get(slot).id(slot), ready));
                prop_assert_eq!(next, model.next());
                prop_assert_eq!(consumers.len(), model.all.len());
            }
        }
    }

    #[test]
    fn a_reused_slot_does_not_match_its_old_id() {
        let mut consumers = Consumers::new(false);
        let old = consumers.insert(entry(0));
        consumers.remove(old);
        let new = consumers.insert(entry(0));
        assert_eq!(old.0 as u32, new.0 as u32);
        assert!(!consumers.resume(old) && consumers.remove(old).is_none());
        assert!(consumers.resume(new));
    }
}
