//! Passes one message to all subscribers that it matches.

use std::sync::Arc;

use amqp::{FieldValue, Properties};
use hashbrown::HashMap;
use slab::Slab;
use smallvec::SmallVec;
use sync::work;

use super::answers::SLOT;
use super::inbox::{MultiplexedMessage, Pushed, SubscriptionNumbers};
use super::state::{
    BindingId, BindingSubscriber, MultiplexedBinding, SubscriberEntry, SubscribersState, subscriber_in,
};

/// Nanoseconds charged for a message without its copies: for parsing its frames, copying it once, and matching its key.
const MESSAGE: u32 = 1_000;

/// Nanoseconds charged for a matching binding key.
const MATCH: u32 = 30;

/// The capacity of a binding's subscriber table below which it is not shrunk.
const MIN_SHRUNK: usize = 64;

/// Nanoseconds charged for each client that gets the message: for writing to its inbox, and waking its task.
const COPY: u32 = 300;

/// Picoseconds charged for a byte of the message.
const BODY_BYTE: u32 = 150;

/// The bindings that a message matches.
pub(super) struct MatchedBindings {
    /// The number of the message among those of the queue.
    number: u64,
    /// In ascending order.
    ids: SmallVec<[BindingId; 8]>,
}

/// A message, and the progress of its fan-out, which may take several turns. Subscribers may join and leave in between.
pub(super) struct FanOut {
    message: Arc<MultiplexedMessage>,
    matched: MatchedBindings,
    /// The index of the next matching binding, and the next slot there.
    at: usize,
    slot: usize,
}

impl FanOut {
    pub(super) fn new(message: MultiplexedMessage, matched: MatchedBindings) -> Self {
        work::charge_bytes(BODY_BYTE, message.body.len());
        Self { message: Arc::new(message), matched, at: 0, slot: 0 }
    }
}

/// Passes the routing keys in the header CC to `each`.
fn each_in_cc(properties: &[u8], mut each: impl FnMut(&str)) {
    let headers = Properties::decode(properties).ok().and_then(|properties| properties.headers);
    let Some(headers) = headers.filter(|headers| !headers.is_empty()) else { return };
    if let Some(FieldValue::Array(keys)) = headers.decode().get("CC") {
        keys.iter().filter_map(FieldValue::as_text).for_each(&mut each);
    }
}

impl SubscribersState {
    /// Counts a message, and finds the bindings with subscribers that match it. Returns `None` if there are none.
    ///
    /// The message may have reached the queue's exchange through a binding or as its alternate exchange. It cannot have
    /// reached it from the default exchange, through which anybody may publish to the queue by name. The keys in its CC
    /// header are matched as well; those in BCC are unknown here.
    pub(super) fn matching(
        &mut self,
        exchange: &str,
        routing_key: &str,
        properties: &[u8],
    ) -> Option<MatchedBindings> {
        work::charge(MESSAGE, 1);
        self.counts.received += 1;
        if exchange.is_empty() {
            return None;
        }
        let Self { index, bindings, .. } = self;
        let mut ids = SmallVec::new();
        let mut find = |key: &str| {
            index.matches(key, |id| {
                if bindings.get(id).is_some_and(|binding| !binding.subscribers.is_empty()) {
                    ids.push(*id);
                }
            });
        };
        find(routing_key);
        each_in_cc(properties, &mut find);
        work::charge(MATCH, ids.len());
        ids.sort_unstable();
        ids.dedup();
        ids.iter().for_each(|id| self.shrink(*id));
        (!ids.is_empty()).then_some(MatchedBindings { number: self.counts.received, ids })
    }

    /// Compacts the slots of a binding that has had many more subscribers, so that messages visit few slots. No message
    /// is being fanned out to them.
    fn shrink(&mut self, id: BindingId) {
        let Self { bindings, subscribers, answers, .. } = self;
        let Some(binding) = bindings.get_mut(&id) else { return };
        let slots = binding.subscribers.capacity();
        if slots < MIN_SHRUNK || binding.subscribers.len() > slots / 4 || answers.is_for(id) {
            return;
        }
        work::charge(SLOT, slots);
        let mut moved = Slab::with_capacity(binding.subscribers.len());
        for own in std::mem::take(&mut binding.subscribers).into_iter().map(|(_, own)| own) {
            let entry = subscriber_in(subscribers, own.subscriber);
            let slot = moved.insert(own);
            if let Some(entry) = entry {
                entry.slots.insert(id, slot);
            }
        }
        binding.subscribers = moved;
    }

    /// Passes a message to the subscribers at the next `slots` slots. Returns whether it has been passed to all.
    ///
    /// A client whose subscriptions have several of the matching keys gets the message at the first of these, with all
    /// numbers.
    pub(super) fn fan_out(&mut self, fan_out: &mut FanOut, slots: usize) -> bool {
        let Self { bindings, subscribers, counts, .. } = self;
        let mut left = slots;
        while let Some(id) = fan_out.matched.ids.get(fan_out.at) {
            let binding = bindings.get(id).filter(|binding| fan_out.slot < binding.subscribers.capacity());
            let Some(binding) = binding else {
                fan_out.at += 1;
                fan_out.slot = 0;
                continue;
            };
            if left == 0 || work::is_turn_over() {
                return false;
            }
            left -= 1;
            work::charge(SLOT, 1);
            let own = binding.subscribers.get(fan_out.slot);
            fan_out.slot += 1;
            let Some(own) = own else { continue };
            let Some(entry) = subscriber_in(subscribers, own.subscriber) else { continue };
            if std::mem::replace(&mut entry.offered, fan_out.matched.number) == fan_out.matched.number {
                continue;
            }
            let numbers = match fan_out.matched.ids.len() {
                1 => answered(own).collect(),
                _ => numbers_of(entry, &fan_out.matched.ids, bindings),
            };
            if numbers.is_empty() {
                continue;
            }
            work::charge(COPY, 1);
            let copies = numbers.len() as u64;
            match entry.inbox.push_message(numbers, &fan_out.message) {
                Pushed::Taken => counts.copies += copies,
                Pushed::Displaced(dropped) => {
                    counts.copies += copies;
                    counts.dropped += dropped;
                }
                Pushed::Dropped(dropped) => counts.dropped += dropped,
                Pushed::Overflowed => counts.overflowed += 1,
                Pushed::Ignored => {}
            }
        }
        true
    }
}

/// The numbers of a client's subscriptions with a matching key. Walks the shorter of the two lists.
fn numbers_of(
    entry: &SubscriberEntry,
    matched: &[BindingId],
    bindings: &HashMap<BindingId, MultiplexedBinding>,
) -> SubscriptionNumbers {
    let mut numbers = SubscriptionNumbers::new();
    let mut add = |id: &BindingId, slot: usize| {
        let own = bindings.get(id).and_then(|binding| binding.subscribers.get(slot));
        numbers.extend(own.into_iter().flat_map(answered));
    };
    if entry.slots.len() < matched.len() {
        work::charge(SLOT, entry.slots.len());
        for (id, slot) in &entry.slots {
            if matched.binary_search(id).is_ok() {
                add(id, *slot);
            }
        }
    } else {
        work::charge(SLOT, matched.len());
        for id in matched {
            if let Some(slot) = entry.slots.get(id) {
                add(id, *slot);
            }
        }
    }
    numbers
}

/// The numbers of the subscriptions that have been answered to their client.
fn answered(own: &BindingSubscriber) -> impl Iterator<Item = u64> {
    own.subscriptions.iter().filter(|own| own.is_answered).map(|own| own.number)
}
