use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use store::pages::{Durability, Pages};

use super::*;
use crate::arguments::{QueueArguments, QueueKind};
use crate::compatibility::Compatibility;
use crate::message::{Body, BrokerProperties, Message};

fn delivery(position: u64, priority: u8) -> Delivery {
    message(position, priority, true, 5)
}

/// A message with a body of `bytes` bytes.
fn message(position: u64, priority: u8, persistent: bool, bytes: usize) -> Delivery {
    let broker_properties =
        BrokerProperties { priority: Some(priority), persistent, ..BrokerProperties::default() };
    let message = Message::new("".into(), "k", &[0, 0], Body::Copied(&vec![7; bytes]), broker_properties);
    Delivery { position, expires: NEVER, message: Arc::new(message), deliveries: 0, failures: 0 }
}

fn order(max_priority: u8) -> DeliveryOrder {
    let arguments = QueueArguments { max_priority: Some(max_priority), ..QueueArguments::default() };
    Compatibility::V3_10.delivery_order(&arguments)
}

/// The order of quorum queues of RabbitMQ 4.
fn returned_first() -> DeliveryOrder {
    let arguments = QueueArguments { kind: QueueKind::Quorum, ..QueueArguments::default() };
    Compatibility::V4.delivery_order(&arguments)
}

fn store(max_priority: u8) -> ReadyStore {
    ReadyStore::new(order(max_priority), StoredMessages::Persistent)
}

fn positions(store: &mut ReadyStore) -> Vec<u64> {
    std::iter::from_fn(|| store.pop()).map(|delivery| delivery.position).collect()
}

#[test]
fn higher_priorities_come_first_and_excess_counts_as_the_highest() {
    let mut store = store(2);
    for (position, priority) in [(0, 0), (1, 2), (2, 1), (3, 200)] {
        store.push(delivery(position, priority), false);
    }
    assert_eq!(positions(&mut store), [1, 3, 2, 0]);
}

#[test]
fn returned_messages_may_come_before_all_others_in_the_order_of_their_return() {
    let mut store = ReadyStore::new(returned_first(), StoredMessages::Persistent);
    for (position, priority) in [(0, 31), (1, 9), (2, 1), (3, 9)] {
        store.push(delivery(position, priority), false);
    }
    let [first, second, third, last] = std::array::from_fn(|_| store.pop().unwrap());
    [last, third, first].into_iter().for_each(|delivery| store.put_back(delivery));
    store.push(delivery(4, 200), false);
    assert_eq!(store.by_priority(), (vec![(31, 1)], 3));
    store.put_back(second);
    assert_eq!(positions(&mut store), [2, 3, 0, 1, 4]);
}

#[test]
fn a_restart_puts_previously_delivered_messages_in_front() {
    let mut store = ReadyStore::new(returned_first(), StoredMessages::Persistent);
    let found = [(0, 3, 0), (1, 3, 1), (2, 9, 2), (3, 9, 1), (4, 31, 0)];
    for (position, priority, deliveries) in found {
        store.restore(Delivery { deliveries, failures: deliveries, ..delivery(position, priority) });
    }
    let first = store.pop().unwrap();
    assert_eq!(first.position, 2);
    store.put_back(first);
    assert_eq!(positions(&mut store), [3, 1, 2, 4, 0]);
    assert_eq!((store.resident(), store.pageable()), (0, 0));
}

#[test]
fn a_queue_has_no_more_levels_than_it_has_seen_priorities() {
    let mut store = ReadyStore::new(returned_first(), StoredMessages::Persistent);
    assert_eq!(store.levels.capacity(), 0);
    (0..9).for_each(|position| store.push(delivery(position, 4), false));
    assert_eq!((store.levels.len(), store.levels.capacity()), (1, 1));
    store.push(delivery(9, 5), false);
    assert_eq!((store.levels.len(), store.levels.capacity()), (2, 2));
}

#[test]
fn an_expired_message_waits_for_the_one_before_it() {
    let mut store = store(0);
    for (position, expires) in [(0, 20), (1, 10)] {
        store.push(Delivery { expires, ..delivery(position, 0) }, false);
    }
    assert_eq!(store.next_expiry(), Some(20));
    assert!(store.pop_expired(19).is_none());
    assert_eq!(store.pop_expired(20).unwrap().position, 0);
    assert_eq!(store.pop_expired(20).unwrap().position, 1);
}

#[test]
fn returned_messages_leave_memory_and_nothing_of_them_is_lost() {
    for returned_first in [false, true] {
        let mut world = World::new(0, returned_first);
        (0..300).for_each(|_| world.push(0, true, false));
        (0..200).for_each(|_| world.pop());
        world.put_all_back(true);
        (0..20).for_each(|_| world.page_out(Extent::Usual));
        // Two windows stay: one of returned messages, one of others.
        assert!(world.store.resident() < 2 * (Extent::Usual.window() + 31_000), "{}", world.store.resident());
        let returned = world.store.levels.iter().find_map(|level| level.returned.as_ref()).unwrap();
        assert_eq!(returned.spans().count(), 1, "neighbours are together");
        // A message that returns late finds its place, although its neighbours are on disk.
        (0..3).for_each(|_| world.pop());
        world.put_back(1, false);
        world.page_out(Extent::Usual);
        while !world.store.is_empty() {
            world.pop();
            world.begin_load();
            world.end_load(30);
            world.page_out(Extent::Usual);
            world.check();
        }
        assert_eq!(world.out.len(), 300);
    }
}

#[test]
fn messages_behind_returned_ones_expire_even_if_all_are_on_disk() {
    let mut world = World::new(0, true);
    world.push(0, true, false);
    world.pop();
    world.put_back(0, false);
    world.push(0, true, false);
    let [never, expires] = [0, 1].map(|at: usize| world.published[at].expires);
    assert_eq!(never, NEVER);
    while world.store.on_disk().messages < 2 {
        world.page_out(Extent::Stored);
    }
    assert_eq!(world.store.next_expiry(), Some(expires));
    assert!(world.store.pop_expired(expires - 1).is_none() && !world.store.needs_load());
    let mut loads = 0;
    let popped = loop {
        if let Some(popped) = world.store.pop_expired(expires) {
            break popped;
        }
        assert!(world.store.needs_load());
        world.begin_load();
        world.end_load(30);
        loads += 1;
    };
    // The returned one is loaded before.
    assert_eq!((popped.position, loads), (1, 2));
    assert_eq!(world.store.next_expiry(), None);
}

#[test]
fn a_purge_takes_no_places_from_messages_on_their_way_back() {
    let mut world = World::new(0, true);
    (0..6).for_each(|_| world.push(0, true, false));
    (0..3).for_each(|_| world.pop());
    let late = std::mem::take(&mut world.out);
    (0..3).for_each(|_| world.pop());
    world.put_back_together(false, true);
    world.out = late;
    world.put_all_back(false);
    world.check();
    (0..6).for_each(|_| world.pop());
    assert!(world.out.len() == 6 && world.store.is_empty());
}

/// A store, a model of its contents, and the contents of the disk.
struct World {
    store: ReadyStore,
    /// The ready positions by level, lowest level first, without those in `returned`.
    model: Vec<BTreeSet<u64>>,
    /// The positions of messages that precede all others.
    returned: VecDeque<u64>,
    next: u64,
    out: Vec<Delivery>,
    /// The messages as they were published, indexed by position.
    published: Vec<Delivery>,
    /// How often each has been delivered, and how often that failed.
    counts: Vec<(u32, u32)>,
    segments: Arc<store::pages::QueueSegments>,
    writing: Option<ToWrite>,
    loading: Option<Plan>,
}

impl World {
    fn new(highest: u8, returned_first: bool) -> Self {
        let disk = store::disk::simulated::SimDisk::new(1, 1 << 30);
        let segments = Pages::new(Arc::new(disk), 8).queue(Durability::Transient, 1);
        Self {
            store: ReadyStore::new(
                DeliveryOrder { returned_first, ..order(highest) },
                StoredMessages::Persistent,
            ),
            model: vec![BTreeSet::new(); usize::from(highest) + 1],
            returned: VecDeque::new(),
            next: 0,
            out: Vec::new(),
            published: Vec::new(),
            counts: Vec::new(),
            segments: Arc::new(segments),
            writing: None,
            loading: None,
        }
    }

    fn push(&mut self, priority: u8, persistent: bool, spill: bool) {
        let priority = priority % self.model.len() as u8;
        let expires = if self.next.is_multiple_of(3) { NEVER } else { 1000 + 7 * self.next % 11 };
        let delivery = Delivery { expires, ..message(self.next, priority, persistent, 30_000) };
        self.counts.push((0, 0));
        self.model[usize::from(priority)].insert(self.next);
        self.published.push(delivery.clone());
        self.store.push(delivery, spill);
        self.next += 1;
    }

    fn level_of(&self, position: u64) -> usize {
        usize::from(self.published[position as usize].message.broker_properties().priority.unwrap())
    }

    /// The position of the next message.
    fn next(&self) -> Option<u64> {
        let first = || self.model.iter().rev().find_map(BTreeSet::first).copied();
        self.returned.front().copied().or_else(first)
    }

    /// A pop returns the next message, or requests a load if it is on disk.
    fn pop(&mut self) {
        let next = self.next();
        match self.store.pop() {
            Some(delivery) => {
                assert_eq!(Some(delivery.position), next);
                let at = delivery.position as usize;
                assert_eq!((delivery.deliveries, delivery.failures), self.counts[at]);
                assert_eq!(delivery.expires, self.published[at].expires);
                if self.returned.pop_front().is_none() {
                    let level = self.level_of(delivery.position);
                    self.model[level].remove(&delivery.position);
                }
                self.out.push(delivery);
            }
            None => assert!(next.is_none() || self.store.is_on_disk() && self.store.needs_load()),
        }
    }

    fn put_back(&mut self, which: usize, has_failed: bool) {
        let mut delivery = self.out.swap_remove(which % self.out.len());
        self.returns(&mut delivery, has_failed);
        self.store.put_back(delivery);
    }

    /// Counts a return, and puts it into the model.
    fn returns(&mut self, delivery: &mut Delivery, has_failed: bool) {
        delivery.deliveries += 1;
        delivery.failures += u32::from(has_failed);
        self.counts[delivery.position as usize] = (delivery.deliveries, delivery.failures);
        if self.store.order.returned_first {
            self.returned.push_back(delivery.position);
        } else {
            let level = self.level_of(delivery.position);
            self.model[level].insert(delivery.position);
        }
    }

    /// Puts everything back at once, in the order in which it was taken, after a purge if `is_purged`.
    fn put_back_together(&mut self, has_failed: bool, is_purged: bool) {
        let mut all = std::mem::take(&mut self.out);
        let first = self.store.reserve_places(all.len());
        if is_purged {
            self.purge();
        }
        for delivery in &mut all {
            self.returns(delivery, has_failed);
        }
        let mut batch = ReturnedBatch::new(self.store.order, self.store.stores, first);
        batch.add(all);
        self.store.put_back_all(batch);
    }

    /// Puts everything back that was taken, in the order of positions.
    fn put_all_back(&mut self, has_failed: bool) {
        self.out.sort_by_key(|delivery| delivery.position);
        while !self.out.is_empty() {
            let first = self.out.remove(0);
            self.out.push(first);
            self.put_back(self.out.len() - 1, has_failed);
        }
    }

    fn page_out(&mut self, extent: Extent) {
        if self.writing.is_none() && self.loading.is_none() {
            let segments = self.segments.clone();
            if let PagedOut::Write(to_write) = self.store.page_out(extent, || segments.clone()) {
                self.writing = Some(to_write);
            }
        }
    }

    fn begin_load(&mut self) {
        if self.writing.is_none() && self.loading.is_none() && self.store.needs_load() {
            self.loading = self.store.plan_load();
        }
    }

    /// Completes a load with the first `most` messages of the plan that are ready.
    fn end_load(&mut self, most: usize) {
        let Some(plan) = self.loading.take() else { return };
        assert!(!self.out.iter().any(|delivery| plan.contains(delivery.position)));
        let level = self.model.get(usize::from(plan.rank)).into_iter().flatten();
        let all: BTreeSet<u64> = level.chain(&self.returned).copied().collect();
        let all: Vec<u64> = all.into_iter().filter(|at| plan.contains(*at)).collect();
        let (found, rest) = all.split_at(most.min(all.len()));
        let through = if rest.is_empty() { plan.last() } else { found.last().copied().unwrap_or(0) };
        let found = found.iter().map(|at| self.published[*at as usize].clone());
        let found = found.map(|delivery| {
            let stored = delivery.message.broker_properties().persistent;
            // The store knows how often a message was delivered, but not how often that failed.
            let (deliveries, failures) = if plan.of_returned { (99, 99) } else { (0, 0) };
            (Delivery { deliveries, failures, ..delivery }, stored)
        });
        self.store.loaded(&plan, found.collect(), through, |_| false);
    }

    fn purge(&mut self) {
        let purged = self.store.take_all();
        let ready: usize = self.model.iter().map(BTreeSet::len).sum();
        assert_eq!(purged.len(), ready + self.returned.len());
        self.model.iter_mut().for_each(BTreeSet::clear);
        self.returned.clear();
    }

    fn check(&self) {
        let all =
            || self.model.iter().flatten().chain(&self.returned).map(|at| &self.published[*at as usize]);
        assert_eq!(self.store.len(), all().count());
        let counts = self.model.iter().enumerate().map(|(rank, level)| (rank as u8, level.len() as u64));
        let counts = counts.filter(|(_, messages)| *messages > 0).collect();
        assert_eq!(self.store.by_priority(), (counts, self.returned.len() as u64));
        assert_eq!(self.store.bytes(), all().map(|one| one.message.body_len() as u64).sum::<u64>());
        let in_memory: u64 = self.store.iter().map(|one| one.message.weight()).sum();
        assert_eq!(self.store.resident(), in_memory);
        assert_eq!(self.store.on_disk().messages, (self.store.len() - self.store.iter().count()) as u64);
        let next = self.next();
        assert_eq!(self.store.is_empty(), next.is_none());
        if !self.store.is_on_disk() {
            assert_eq!(self.store.front().map(|delivery| delivery.position), next);
        }
        assert!(self.store.pageable() <= self.store.resident());
        // Where returned messages come first, the next ones of all levels expire.
        let firsts = self.model.iter().filter_map(BTreeSet::first).chain(self.returned.front());
        let firsts: Vec<_> =
            if self.store.order.returned_first { firsts.collect() } else { next.iter().collect() };
        for first in firsts {
            assert!(self.store.next_expiry().unwrap_or(NEVER) <= self.published[*first as usize].expires);
        }
    }
}

fn extent(number: u8) -> Extent {
    [Extent::Usual, Extent::Usual, Extent::Short, Extent::Stored][usize::from(number % 4)]
}

proptest! {
    /// Whichever messages are on disk, all are delivered in order, each once, and counts are exact.
    #[test]
    fn messages_keep_their_order_through_paging_and_returns(
        highest in 0u8..3,
        returned_first: bool,
        steps in proptest::collection::vec((0u8..18, 0u8..8, any::<bool>()), 1..400),
    ) {
        let mut world = World::new(highest, returned_first);
        for (step, more, flag) in steps {
            match step {
                0..=2 => (0..=more).for_each(|n| world.push(n % 3, flag || n % 2 == 0, more % 2 == 0)),
                3..=5 => world.pop(),
                6 if !world.out.is_empty() => world.put_back(more.into(), flag),
                14 => (0..=4 * more).for_each(|_| world.pop()),
                15 => world.put_all_back(flag),
                17 => world.put_back_together(flag, more == 0),
                16 => (0..=2 * more).for_each(|_| world.page_out(extent(more))),
                7 | 8 => world.page_out(extent(more)),
                9 => if let Some(written) = world.writing.take() {
                    world.store.written(written);
                },
                10 => world.begin_load(),
                11 | 12 => world.end_load(1 + usize::from(more)),
                13 if more == 0 => world.purge(),
                13 if more == 1 => { world.writing = None; }
                _ => { world.out.pop(); }
            }
            world.check();
        }
        // All messages come out in the end.
        world.writing = None;
        while !world.store.is_empty() {
            world.pop();
            world.begin_load();
            world.end_load(100);
            world.check();
        }
    }

    /// The ranges that a purge settles cover the messages on disk that the store has, and none that were
    /// taken.
    #[test]
    fn ranges_on_disk_cover_exactly_the_stored_messages_on_disk(
        highest in 0u8..3,
        returned_first: bool,
        steps in proptest::collection::vec((0u8..7, 0u8..8), 1..200),
    ) {
        let mut world = World::new(highest, returned_first);
        for (step, more) in steps {
            match step {
                0..=2 => (0..=more).for_each(|n| world.push(n, true, more % 2 == 0)),
                3 => (0..=more).for_each(|_| world.pop()),
                4 => world.page_out(extent(more)),
                5 => world.put_all_back(more % 2 == 0),
                _ => { world.begin_load(); world.end_load(3); }
            }
            let resident: BTreeSet<u64> = world.store.iter().map(|one| one.position).collect();
            let ranges: Vec<_> = world.store.stored_ranges().collect();
            let covered = |at: u64| ranges.iter().any(|(first, last)| (*first..=*last).contains(&at));
            for at in 0..world.next {
                let ready = world.model.iter().any(|level| level.contains(&at)) || world.returned.contains(&at);
                let on_disk = ready && !resident.contains(&at);
                prop_assert!(!on_disk || covered(at), "{} is not covered", at);
                prop_assert!(on_disk || !covered(at) , "{} is covered but not on disk", at);
            }
        }
    }
}
