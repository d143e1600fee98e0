//! Messages that clients have returned, in front of those of their level that have never left.

use std::collections::BTreeMap;

use super::run::Plan;
use super::waiting::Next;
use super::{Extent, OnDisk};
use crate::queue::delivery::Delivery;

/// The returned messages of a level, by their places: their positions, or the order of their return if returned messages
/// come first.
///
/// Messages that the store has can be paged out, the last ones first. Unlike those of a run, they have been delivered since
/// the broker started: the counts of deliveries and failures stay in memory, once for all neighbours with equal counts.
#[derive(Default)]
pub(super) struct ReturnedMessages {
    /// Messages that the store does not have. They stay in memory.
    fixed: BTreeMap<u64, Delivery>,
    /// Messages in memory that the store has.
    movable: BTreeMap<u64, Delivery>,
    /// The messages that are only on disk, each span at the place of its first message.
    spans: BTreeMap<u64, Span>,
    /// The number of messages in all spans.
    on_disk: u64,
    /// Bytes of memory that `fixed` takes.
    fixed_weight: u64,
    /// Bytes of memory that `movable` takes.
    movable_weight: u64,
    /// Bytes of `movable` that stay in memory while there are spans.
    reserve: u64,
    /// Some messages have been loaded since there were no spans.
    is_consumed: bool,
}

/// Messages on disk with consecutive places and positions, and equal delivery counts.
struct Span {
    /// The position of the first one.
    position: u64,
    messages: u64,
    /// Bytes of their bodies.
    bytes: u64,
    /// Lower bound of their expiry times.
    expires: u64,
    deliveries: u32,
    failures: u32,
}

/// The first of the returned messages.
pub(super) enum Front {
    InMemory(Next),
    /// It is on disk, and does not expire before this time.
    OnDisk(u64),
}

/// The outcome of a load.
#[derive(Default)]
pub(super) struct Reloaded {
    /// The messages that are no longer on disk, including the lost ones.
    pub(super) passed: OnDisk,
    /// The messages among `passed` that were not found.
    pub(super) lost: OnDisk,
    /// Bytes of memory that the loaded ones take.
    pub(super) weight: u64,
}

impl ReturnedMessages {
    pub(super) fn len(&self) -> u64 {
        (self.fixed.len() + self.movable.len()) as u64 + self.on_disk
    }

    /// Bytes of memory that cannot be paged out.
    pub(super) fn pinned(&self) -> u64 {
        let reserve = if self.spans.is_empty() { 0 } else { self.reserve.min(self.movable_weight) };
        self.fixed_weight + reserve
    }

    /// Adds a message; `stored` if the store has a copy.
    pub(super) fn insert(&mut self, place: u64, delivery: Delivery, stored: bool) {
        let weight = delivery.message.weight();
        let (messages, sum) = match stored {
            true => (&mut self.movable, &mut self.movable_weight),
            false => (&mut self.fixed, &mut self.fixed_weight),
        };
        *sum += weight;
        let replaced = messages.insert(place, delivery);
        debug_assert!(replaced.is_none(), "place {place} is taken");
    }

    /// Adds messages that are all in memory.
    pub(super) fn join(&mut self, other: Self) {
        let Self { fixed, movable, fixed_weight, movable_weight, .. } = other;
        self.fixed_weight += fixed_weight;
        self.movable_weight += movable_weight;
        join(&mut self.fixed, fixed);
        join(&mut self.movable, movable);
    }

    /// `None` if there are no messages.
    pub(super) fn front(&self) -> Option<Front> {
        let fixed = self.fixed.first_key_value();
        let movable = self.movable.first_key_value();
        let in_memory = fixed.into_iter().chain(movable).min_by_key(|(place, _)| **place);
        let on_disk = self.spans.first_key_value();
        match on_disk.filter(|(first, _)| in_memory.is_none_or(|(place, _)| *first < place)) {
            Some((_, span)) => Some(Front::OnDisk(span.expires)),
            None => in_memory.map(|(_, delivery)| Front::InMemory(Next::of(delivery))),
        }
    }

    /// Takes the first message, if it is in memory.
    pub(super) fn pop(&mut self) -> Option<Delivery> {
        let first = |messages: &BTreeMap<u64, Delivery>| messages.first_key_value().map(|(place, _)| *place);
        let (fixed, movable) = (first(&self.fixed), first(&self.movable));
        let place = fixed.into_iter().chain(movable).min()?;
        if self.spans.first_key_value().is_some_and(|(first, _)| *first < place) {
            return None;
        }
        let (messages, sum) = match fixed == Some(place) {
            true => (&mut self.fixed, &mut self.fixed_weight),
            false => (&mut self.movable, &mut self.movable_weight),
        };
        let (_, delivery) = messages.pop_first()?;
        *sum -= delivery.message.weight();
        Some(delivery)
    }

    /// Whether few messages are left before those on disk.
    pub(super) fn needs_load(&self) -> bool {
        !self.spans.is_empty()
            && (self.movable_weight < LOW || matches!(self.front(), Some(Front::OnDisk(_))))
    }

    /// All messages in memory, in no particular order.
    pub(super) fn in_memory(&self) -> impl Iterator<Item = &Delivery> {
        self.fixed.values().chain(self.movable.values())
    }

    /// First and last positions of the messages on disk.
    pub(super) fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spans.values().map(|span| (span.position, span.end() - 1))
    }

    /// Pages out up to `most` messages, except the first ones. Once messages have been loaded, the exception usually
    /// exceeds the extent's window: otherwise each delivery might reload messages that were just paged out.
    pub(super) fn page_out(&mut self, extent: Extent, most: usize) -> Vec<Delivery> {
        self.is_consumed &= !self.spans.is_empty();
        self.reserve = if self.is_consumed && extent == Extent::Usual { RESERVE } else { extent.window() };
        let mut freed = Vec::new();
        while freed.len() < most
            && let Some(last) = self.movable.last_entry()
        {
            let weight = last.get().message.weight();
            if self.movable_weight - weight < self.reserve {
                break;
            }
            self.movable_weight -= weight;
            let (place, delivery) = last.remove_entry();
            self.add_to_spans(place, &delivery);
            freed.push(delivery);
        }
        freed
    }

    fn add_to_spans(&mut self, place: u64, delivery: &Delivery) {
        self.on_disk += 1;
        let mut span = Span::of(delivery);
        if self.spans.get(&(place + 1)).is_some_and(|next| span.precedes(next))
            && let Some(next) = self.spans.remove(&(place + 1))
        {
            span.append(&next);
        }
        match self.spans.range_mut(..place).next_back() {
            Some((first, before)) if first + before.messages == place && before.precedes(&span) => {
                before.append(&span);
            }
            _ => drop(self.spans.insert(place, span)),
        }
    }

    /// The load of the first messages on disk, if it is needed.
    pub(super) fn plan(&self, rank: u8, epoch: u64) -> Option<Plan> {
        // If the places are not in the order of positions, the rest is left to later loads.
        let mut next = 0;
        let ascending = self.spans().take_while(|(first, last)| {
            let ascends = *first >= next;
            next = last + 1;
            ascends
        });
        self.needs_load().then(|| Plan::of_returned(rank, epoch, ascending))
    }

    /// Adds loaded messages: all of the plan up to `through`, in the order of their positions.
    pub(super) fn loaded(&mut self, plan: &Plan, found: Vec<Delivery>, through: u64) -> Reloaded {
        self.is_consumed = true;
        let mut reloaded = Reloaded::default();
        let mut found = found.into_iter().peekable();
        for (first, last) in plan.spans().take_while(|(first, _)| *first <= through) {
            let next = self.spans.first_entry().filter(|entry| entry.get().position == first);
            let Some((place, mut span)) = next.map(|entry| entry.remove_entry()) else { break };
            let (last, mut missing) = (last.min(through), last.min(through) - first + 1);
            self.on_disk -= missing;
            reloaded.passed.messages += missing;
            span.messages -= missing;
            span.position = last + 1;
            let rest = place + missing;
            while let Some(delivery) = found.next_if(|delivery| delivery.position <= last) {
                let bytes = delivery.message.body_len() as u64;
                missing -= 1;
                span.bytes = span.bytes.saturating_sub(bytes);
                reloaded.passed.bytes += bytes;
                reloaded.weight += delivery.message.weight();
                let Span { deliveries, failures, .. } = span;
                let place = place + (delivery.position - first);
                self.insert(place, Delivery { deliveries, failures, ..delivery }, true);
            }
            reloaded.lost.messages += missing;
            if span.messages > 0 {
                self.spans.insert(rest, span);
            } else {
                reloaded.passed.bytes += span.bytes;
                reloaded.lost.bytes += span.bytes;
            }
        }
        if reloaded.lost.messages > 0 {
            let messages = reloaded.lost.messages;
            tracing::error!(messages, "unreadable messages dropped");
        }
        reloaded
    }
}

impl Span {
    fn of(delivery: &Delivery) -> Self {
        let Delivery { position, expires, deliveries, failures, .. } = *delivery;
        Self {
            position,
            messages: 1,
            bytes: delivery.message.body_len() as u64,
            expires,
            deliveries,
            failures,
        }
    }

    /// The position behind its last one.
    fn end(&self) -> u64 {
        self.position + self.messages
    }

    /// Whether a span with the next places could be merged into this one.
    fn precedes(&self, next: &Self) -> bool {
        self.end() == next.position && (self.deliveries, self.failures) == (next.deliveries, next.failures)
    }

    fn append(&mut self, next: &Self) {
        self.messages += next.messages;
        self.bytes += next.bytes;
        self.expires = self.expires.min(next.expires);
    }
}

/// Joining two trees takes time for each message of both, though far less than inserting one.
fn join(messages: &mut BTreeMap<u64, Delivery>, mut others: BTreeMap<u64, Delivery>) {
    if others.len() < messages.len() / INSERTION {
        messages.extend(others);
    } else {
        messages.append(&mut others);
    }
}

/// Messages that can be moved to a new tree in the time in which one is inserted.
const INSERTION: usize = 8;

/// Bytes of memory below which more is loaded. This is less than what stays in memory of a queue without consumers, so the
/// first delivery triggers no load.
const LOW: u64 = 32 << 10;

/// Bytes that stay in memory once messages have been loaded. It exceeds the result of any load (less than [`LOW`] before
/// it, plus 1 MiB), so loaded messages are not paged out again.
const RESERVE: u64 = 2 << 20;
