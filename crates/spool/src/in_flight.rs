//! The messages that are unconfirmed on one channel.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::item::Item;

/// The messages that have been published on a channel in confirm mode, in that order, until the broker answers.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    /// `None` for an answered message that is not the first.
    items: VecDeque<Option<Item<T>>>,
    /// The delivery tag of the first one.
    first_tag: u64,
    count: usize,
    bytes: usize,
    /// Number of these messages that had waited for their destination.
    deferred: usize,
    /// Bytes of the records of the messages that had waited.
    deferred_bytes: usize,
    /// When the messages that had waited were accepted, and how many at each time: they are older than some that were
    /// published before them.
    deferred_at: BTreeMap<u64, usize>,
    /// Set by confirm.select-ok, cleared when the channel is closed.
    is_open: bool,
}

impl<T> InFlight<T> {
    pub(crate) fn new() -> Self {
        Self {
            items: VecDeque::new(),
            first_tag: 1,
            count: 0,
            bytes: 0,
            deferred: 0,
            deferred_bytes: 0,
            deferred_at: BTreeMap::new(),
            is_open: false,
        }
    }

    /// Records that the channel is open and in confirm mode, and that nothing has been published on it.
    pub(crate) fn open(&mut self) {
        debug_assert_eq!(self.count, 0, "messages of the previous channel");
        (self.is_open, self.first_tag) = (true, 1);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the records of its messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of its messages that had waited for their destination.
    pub(crate) fn deferred(&self) -> usize {
        self.deferred
    }

    /// Bytes of the records of the messages that had waited.
    pub(crate) fn deferred_bytes(&self) -> usize {
        self.deferred_bytes
    }

    /// The unanswered messages, in the order in which they were published.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &Item<T>> {
        self.items.iter().flatten()
    }

    /// The unanswered messages that were published before one that is answered.
    pub(crate) fn passed_over(&self) -> impl Iterator<Item = &Item<T>> {
        let last_answered = self.items.iter().rposition(Option::is_none).unwrap_or_default();
        self.items.range(..last_answered).flatten()
    }

    /// When the oldest one was accepted, in milliseconds since 1970.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let first = self.unanswered().next().map(|item| item.envelope.accepted_at());
        first.into_iter().chain(self.deferred_at.first_key_value().map(|(at, _)| *at)).min()
    }

    pub(crate) fn push(&mut self, item: Item<T>) {
        self.count += 1;
        self.bytes += item.bytes();
        if item.was_deferred {
            self.deferred += 1;
            self.deferred_bytes += item.bytes();
            *self.deferred_at.entry(item.envelope.accepted_at()).or_default() += 1;
        }
        self.items.push_back(Some(item));
    }

    /// Removes the messages that an answer covers.
    pub(crate) fn take(&mut self, delivery_tag: u64, multiple: bool) -> Vec<Item<T>> {
        let end_tag = self.first_tag + self.items.len() as u64;
        // With `multiple`, 0 stands for all that have been published.
        let tag = if multiple && delivery_tag == 0 { end_tag.saturating_sub(1) } else { delivery_tag };
        if tag < self.first_tag || tag >= end_tag {
            return Vec::new();
        }
        let end = (tag - self.first_tag) as usize + 1;
        let from = if multiple { 0 } else { end - 1 };
        let taken: Vec<_> = self.items.range_mut(from..end).filter_map(Option::take).collect();
        while let Some(None) = self.items.front() {
            self.items.pop_front();
            self.first_tag += 1;
        }
        self.count -= taken.len();
        self.bytes -= taken.iter().map(Item::bytes).sum::<usize>();
        for item in taken.iter().filter(|item| item.was_deferred) {
            self.deferred -= 1;
            self.deferred_bytes -= item.bytes();
            if let Entry::Occupied(mut count) = self.deferred_at.entry(item.envelope.accepted_at()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        taken
    }

    /// The channel is closed: removes all messages, in order.
    pub(crate) fn close(&mut self) -> Vec<Item<T>> {
        self.is_open = false;
        (self.count, self.bytes, self.deferred, self.deferred_bytes) = (0, 0, 0, 0);
        self.deferred_at.clear();
        self.items.drain(..).flatten().collect()
    }
}
