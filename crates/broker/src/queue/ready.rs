//! The messages of a queue that are ready for delivery, in order.

use std::collections::{BTreeMap, VecDeque};

use super::delivery::{Delivery, NEVER};

/// Ready messages: the highest priority first, the oldest first within it.
#[derive(Debug)]
pub(super) struct ReadyStore {
    /// One per priority, ascending; a single one unless the queue has `x-max-priority`.
    levels: Vec<Level>,
    len: usize,
    /// Octets of all bodies.
    bytes: u64,
}

/// Messages that came back are always older than those that have never left, and rare; so they wait in a tree of
/// their own in front.
#[derive(Debug, Default)]
struct Level {
    returned: BTreeMap<u64, Delivery>,
    fresh: VecDeque<Delivery>,
}

impl ReadyStore {
    pub(super) fn new(max_priority: u8) -> Self {
        let levels = (0..=max_priority).map(|_| Level::default()).collect();
        Self { levels, len: 0, bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a message that is younger than all others.
    pub(super) fn push(&mut self, delivery: Delivery) {
        self.count_in(&delivery);
        self.level_of(&delivery).fresh.push_back(delivery);
    }

    /// Puts a message back that has been popped before.
    pub(super) fn put_back(&mut self, delivery: Delivery) {
        self.count_in(&delivery);
        self.level_of(&delivery).returned.insert(delivery.position, delivery);
    }

    /// The next message.
    pub(super) fn front(&self) -> Option<&Delivery> {
        self.levels.iter().rev().find_map(Level::front)
    }

    /// Takes the next message.
    pub(super) fn pop(&mut self) -> Option<Delivery> {
        if self.len == 0 {
            return None;
        }
        let delivery = self.levels.iter_mut().rev().find_map(Level::pop)?;
        self.count_out(&delivery);
        Some(delivery)
    }

    /// Takes the next message if it has expired.
    pub(super) fn pop_expired(&mut self, now: u64) -> Option<Delivery> {
        self.front().filter(|delivery| delivery.expires <= now)?;
        self.pop()
    }

    /// When the next message expires. Those behind it have to wait for it, as in RabbitMQ, whatever their priority.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.front().map(|delivery| delivery.expires).filter(|&expires| expires != NEVER)
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self) -> Self {
        let empty = Self::new((self.levels.len() - 1) as u8);
        std::mem::replace(self, empty)
    }

    /// All messages, the lowest priority first, the oldest first within it.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.levels.iter().flat_map(|level| level.returned.values().chain(&level.fresh))
    }

    /// The same, taken.
    pub(super) fn into_iter(self) -> impl Iterator<Item = Delivery> {
        self.levels.into_iter().flat_map(|level| level.returned.into_values().chain(level.fresh))
    }

    fn level_of(&mut self, delivery: &Delivery) -> &mut Level {
        let highest = self.levels.len() - 1;
        let priority = usize::from(delivery.message.traits().priority.unwrap_or(0));
        &mut self.levels[priority.min(highest)]
    }

    fn count_in(&mut self, delivery: &Delivery) {
        self.len += 1;
        self.bytes += delivery.message.body_len() as u64;
    }

    fn count_out(&mut self, delivery: &Delivery) {
        self.len -= 1;
        self.bytes -= delivery.message.body_len() as u64;
    }
}

impl Level {
    fn front(&self) -> Option<&Delivery> {
        self.returned.first_key_value().map(|(_, delivery)| delivery).or_else(|| self.fresh.front())
    }

    fn pop(&mut self) -> Option<Delivery> {
        if let Some((_, delivery)) = self.returned.pop_first() {
            return Some(delivery);
        }
        let delivery = self.fresh.pop_front()?;
        if self.fresh.is_empty() && self.fresh.capacity() > KEPT_CAPACITY {
            self.fresh = VecDeque::new();
        }
        Some(delivery)
    }
}

/// Room for messages that an empty queue keeps, so that a steady flow does not allocate; what a backlog needed beyond
/// it is given back.
const KEPT_CAPACITY: usize = 1024;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::message::{Body, Message, Traits};

    fn delivery(position: u64, priority: u8) -> Delivery {
        let traits = Traits { priority: Some(priority), ..Traits::default() };
        let message = Message::new("".into(), "k", &[0, 0], Body::Copied(b"12345"), traits);
        Delivery { position, expires: NEVER, message: Arc::new(message), deliveries: 0 }
    }

    #[test]
    fn higher_priorities_come_first_and_excess_counts_as_the_highest() {
        let mut store = ReadyStore::new(2);
        for (position, priority) in [(0, 0), (1, 2), (2, 1), (3, 200)] {
            store.push(delivery(position, priority));
        }
        let order: Vec<u64> = std::iter::from_fn(|| store.pop()).map(|delivery| delivery.position).collect();
        assert_eq!(order, [1, 3, 2, 0]);
    }

    #[test]
    fn an_expired_message_waits_for_the_one_before_it() {
        let mut store = ReadyStore::new(0);
        for (position, expires) in [(0, 20), (1, 10)] {
            store.push(Delivery { expires, ..delivery(position, 0) });
        }
        assert_eq!(store.next_expiry(), Some(20));
        assert!(store.pop_expired(19).is_none());
        assert_eq!(store.pop_expired(20).unwrap().position, 0);
        assert_eq!(store.pop_expired(20).unwrap().position, 1);
    }

    proptest! {
        #[test]
        fn messages_keep_their_order_however_they_come_and_go(steps in proptest::collection::vec(0u8..6, 1..300)) {
            let mut store = ReadyStore::new(0);
            let (mut next, mut out) = (0, Vec::new());
            let mut model = std::collections::BTreeSet::new();
            for step in steps {
                match step {
                    0 | 1 => {
                        store.push(delivery(next, 0));
                        model.insert(next);
                        next += 1;
                    }
                    2 | 3 => {
                        let popped = store.pop();
                        prop_assert_eq!(popped.as_ref().map(|delivery| delivery.position), model.pop_first());
                        out.extend(popped);
                    }
                    4 if !out.is_empty() => {
                        let back = out.swap_remove(out.len() / 2);
                        model.insert(back.position);
                        store.put_back(back);
                    }
                    _ => { out.pop(); }
                }
                prop_assert_eq!(store.len(), model.len());
                prop_assert_eq!(store.bytes(), 5 * model.len() as u64);
                prop_assert_eq!(store.front().map(|delivery| delivery.position), model.first().copied());
            }
        }
    }
}
