use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use store::pages::{Durability, Pages};

use super::*;
use crate::message::{Body, Message, Traits};

fn delivery(position: u64, priority: u8) -> Delivery {
    message(position, priority, true, 5)
}

/// A message with a body of `bytes` bytes.
fn message(position: u64, priority: u8, persistent: bool, bytes: usize) -> Delivery {
    let traits = Traits { priority: Some(priority), persistent, ..Traits::default() };
    let message = Message::new("".into(), "k", &[0, 0], Body::Copied(&vec![7; bytes]), traits);
    Delivery { position, expires: NEVER, message: Arc::new(message), deliveries: 0, failures: 0 }
}

fn store(max_priority: u8) -> ReadyStore {
    ReadyStore::new(max_priority, true)
}

#[test]
fn higher_priorities_come_first_and_excess_counts_as_the_highest() {
    let mut store = store(2);
    for (position, priority) in [(0, 0), (1, 2), (2, 1), (3, 200)] {
        store.push(delivery(position, priority), false);
    }
    let order: Vec<u64> = std::iter::from_fn(|| store.pop()).map(|delivery| delivery.position).collect();
    assert_eq!(order, [1, 3, 2, 0]);
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

/// A store, a model of its contents, and the contents of the disk.
struct World {
    store: ReadyStore,
    /// The ready positions by level, lowest level first.
    model: Vec<BTreeSet<u64>>,
    next: u64,
    out: Vec<Delivery>,
    /// The messages as they were published, indexed by position.
    published: Vec<Delivery>,
    segments: Arc<store::pages::QueueSegments>,
    writing: Option<ToWrite>,
    loading: Option<Plan>,
}

impl World {
    fn new(highest: u8) -> Self {
        let disk = store::disk::simulated::SimDisk::new(1, 1 << 30);
        let segments = Pages::new(Arc::new(disk), 8).queue(Durability::Transient, 1);
        Self {
            store: store(highest),
            model: vec![BTreeSet::new(); usize::from(highest) + 1],
            next: 0,
            out: Vec::new(),
            published: Vec::new(),
            segments: Arc::new(segments),
            writing: None,
            loading: None,
        }
    }

    fn push(&mut self, priority: u8, persistent: bool, spill: bool) {
        let priority = priority % self.model.len() as u8;
        let delivery = message(self.next, priority, persistent, 30_000);
        self.model[usize::from(priority)].insert(self.next);
        self.published.push(delivery.clone());
        self.store.push(delivery, spill);
        self.next += 1;
    }

    fn level_of(&self, position: u64) -> usize {
        usize::from(self.published[position as usize].message.traits().priority.unwrap())
    }

    /// A pop returns the next message, or requests a load if it is on disk.
    fn pop(&mut self) {
        let next = self.model.iter().rev().find_map(BTreeSet::first).copied();
        match self.store.pop() {
            Some(delivery) => {
                assert_eq!(Some(delivery.position), next);
                let level = self.level_of(delivery.position);
                self.model[level].remove(&delivery.position);
                self.out.push(delivery);
            }
            None => assert!(next.is_none() || self.store.is_on_disk() && self.store.needs_load()),
        }
    }

    fn put_back(&mut self, which: usize) {
        let delivery = self.out.swap_remove(which % self.out.len());
        let level = self.level_of(delivery.position);
        self.model[level].insert(delivery.position);
        self.store.put_back(delivery);
    }

    fn page_out(&mut self) {
        if self.writing.is_none() && self.loading.is_none() {
            let segments = self.segments.clone();
            if let PagedOut::Write(to_write) = self.store.page_out(|| segments.clone()) {
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
        let all: Vec<u64> = self.model[plan.level].iter().copied().filter(|at| plan.contains(*at)).collect();
        let (found, rest) = all.split_at(most.min(all.len()));
        let through = if rest.is_empty() { plan.last() } else { found.last().copied().unwrap_or(0) };
        let found = found.iter().map(|at| self.published[*at as usize].clone());
        let found = found.map(|delivery| {
            let stored = delivery.message.traits().persistent;
            (delivery, stored)
        });
        self.store.loaded(&plan, found.collect(), through, |_| false);
    }

    fn purge(&mut self) {
        let purged = self.store.take_all();
        let ready: usize = self.model.iter().map(BTreeSet::len).sum();
        assert_eq!(purged.len(), ready);
        self.model.iter_mut().for_each(BTreeSet::clear);
    }

    fn check(&self) {
        let all = || self.model.iter().flatten().map(|at| &self.published[*at as usize]);
        assert_eq!(self.store.len(), all().count());
        assert_eq!(self.store.bytes(), all().map(|one| one.message.body_len() as u64).sum::<u64>());
        let in_memory: u64 = self.store.iter().map(|one| one.message.weight()).sum();
        assert_eq!(self.store.resident(), in_memory);
        assert_eq!(self.store.on_disk().messages, (self.store.len() - self.store.iter().count()) as u64);
        let next = self.model.iter().rev().find_map(BTreeSet::first).copied();
        assert_eq!(self.store.is_empty(), next.is_none());
        if !self.store.is_on_disk() {
            assert_eq!(self.store.front().map(|delivery| delivery.position), next);
        }
        assert!(self.store.pageable() <= self.store.resident());
    }
}

proptest! {
    /// Whichever messages are on disk meanwhile, all come in order, each once, and counts are exact.
    #[test]
    fn messages_keep_their_order_however_they_come_and_go(
        highest in 0u8..3,
        steps in proptest::collection::vec((0u8..14, 0u8..8, any::<bool>()), 1..400),
    ) {
        let mut world = World::new(highest);
        for (step, more, flag) in steps {
            match step {
                0..=2 => (0..=more).for_each(|n| world.push(n % 3, flag || n % 2 == 0, more % 2 == 0)),
                3..=5 => world.pop(),
                6 if !world.out.is_empty() => world.put_back(more.into()),
                7 | 8 => world.page_out(),
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
    fn ranges_on_disk_touch_nothing_else(highest in 0u8..3, steps in proptest::collection::vec((0u8..6, 0u8..8), 1..200)) {
        let mut world = World::new(highest);
        for (step, more) in steps {
            match step {
                0..=2 => (0..=more).for_each(|n| world.push(n, true, more % 2 == 0)),
                3 => world.pop(),
                4 => world.page_out(),
                _ => { world.begin_load(); world.end_load(3); }
            }
            let resident: BTreeSet<u64> = world.store.iter().map(|one| one.position).collect();
            let ranges: Vec<_> = world.store.stored_ranges().collect();
            let covered = |at: u64| ranges.iter().any(|(first, last)| (*first..=*last).contains(&at));
            for at in 0..world.next {
                let ready = world.model.iter().any(|level| level.contains(&at));
                let on_disk = ready && !resident.contains(&at);
                prop_assert!(!on_disk || covered(at), "{} is forgotten", at);
                prop_assert!(on_disk || !covered(at) , "{} is no more there", at);
            }
        }
    }
}
