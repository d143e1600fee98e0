//! Messages that wait because the broker has nacked one of their exchange and key.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::forwarding::Item;

/// First pause after a nack. Each further one doubles it.
pub(crate) const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Exchange and routing key.
type Destination = (Box<str>, Box<str>);

/// The destinations that the broker takes nothing for at present, with their messages in order.
///
/// After its pause a destination has a first message tried. If the broker takes it, two follow, then four, and so on until none
/// waits; if not, the pause doubles.
#[derive(Debug)]
pub(crate) struct HeldMessages<T> {
    by_destination: HashMap<Destination, Held<T>>,
    /// Destinations whose pause ends at these times.
    pauses: BTreeMap<(Instant, u64), Destination>,
    /// Makes keys of `pauses` unique.
    next_pause: u64,
    /// Destinations that have messages to be published now.
    ready: VecDeque<Destination>,
    count: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Held<T> {
    items: VecDeque<Item<T>>,
    pause: Duration,
    /// Messages of the present or next batch.
    allowance: usize,
    /// Those of the present batch that have not been published.
    left: usize,
    /// Those that have been, and are not settled.
    in_flight: usize,
    /// Whether one of the present batch was nacked.
    has_failed: bool,
}

impl<T> HeldMessages<T> {
    pub(crate) fn new() -> Self {
        Self {
            by_destination: HashMap::new(),
            pauses: BTreeMap::new(),
            next_pause: 0,
            ready: VecDeque::new(),
            count: 0,
            bytes: 0,
        }
    }

    /// Messages that wait here, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.count, self.bytes)
    }

    /// When the first pause ends.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pauses.first_key_value().map(|((at, _), _)| *at)
    }

    /// The oldest message of each destination.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &Item<T>> {
        self.by_destination.values().filter_map(|held| held.items.front())
    }

    /// Keeps a message behind earlier ones of its destination, or hands it back if none is held.
    pub(crate) fn hold_behind(&mut self, item: Item<T>) -> Option<Item<T>> {
        if self.by_destination.is_empty() {
            return Some(item);
        }
        let destination = item.destination();
        let Some(held) = self.by_destination.get_mut(&destination) else { return Some(item) };
        self.count += 1;
        self.bytes += item.bytes();
        held.insert(item);
        None
    }

    /// The broker has nacked a message.
    pub(crate) fn nacked(&mut self, mut item: Item<T>, now: Instant) {
        let destination = item.destination();
        self.count += 1;
        self.bytes += item.bytes();
        let was_tried = std::mem::take(&mut item.is_retry);
        match self.by_destination.get_mut(&destination) {
            None => {
                let items = VecDeque::from([item]);
                let pause = MIN_PAUSE;
                let held = Held { items, pause, allowance: 1, left: 0, in_flight: 0, has_failed: false };
                self.by_destination.insert(destination.clone(), held);
                self.pause(destination, now + pause);
            }
            Some(held) => {
                held.insert(item);
                if was_tried {
                    // Nothing of its batch may overtake it, nor may it be tried again at once.
                    (held.has_failed, held.left) = (true, 0);
                    held.in_flight -= 1;
                    self.end_batch(&destination, now);
                }
            }
        }
    }

    /// A message that was tried has left for good.
    pub(crate) fn settled(&mut self, destination: &Destination, now: Instant) {
        if let Some(held) = self.by_destination.get_mut(destination) {
            held.in_flight -= 1;
            self.end_batch(destination, now);
        }
    }

    /// A message that was tried comes back without a verdict: its batch begins anew.
    pub(crate) fn returned(&mut self, mut item: Item<T>, now: Instant) {
        item.is_retry = false;
        let destination = item.destination();
        let Some(held) = self.by_destination.get_mut(&destination) else { return };
        self.count += 1;
        self.bytes += item.bytes();
        held.insert(item);
        held.in_flight -= 1;
        if held.in_flight == 0 {
            (held.left, held.has_failed) = (0, false);
            self.pause(destination, now);
        }
    }

    /// The message to be tried next, without taking it.
    pub(crate) fn peek(&mut self, now: Instant) -> Option<&Item<T>> {
        while let Some(first) = self.pauses.first_entry()
            && first.key().0 <= now
        {
            let destination = first.remove();
            if let Some(held) = self.by_destination.get_mut(&destination) {
                held.left = held.allowance;
                self.ready.push_back(destination);
            }
        }
        while let Some(destination) = self.ready.front() {
            if let Some(held) = self.by_destination.get_mut(destination) {
                if held.left > 0 && !held.items.is_empty() {
                    break;
                }
                // Messages that come later belong to the next batch.
                held.left = 0;
            }
            self.ready.pop_front();
        }
        self.by_destination.get(self.ready.front()?)?.items.front()
    }

    /// Takes the message that [`Self::peek`] has returned.
    pub(crate) fn take(&mut self) -> Option<Item<T>> {
        let held = self.by_destination.get_mut(self.ready.front()?)?;
        let mut item = held.items.pop_front()?;
        held.left -= 1;
        held.in_flight += 1;
        item.is_retry = true;
        self.count -= 1;
        self.bytes -= item.bytes();
        Some(item)
    }

    /// All messages that wait here.
    pub(crate) fn into_items(self) -> impl Iterator<Item = Item<T>> {
        self.by_destination.into_values().flat_map(|held| held.items)
    }

    fn pause(&mut self, destination: Destination, until: Instant) {
        self.pauses.insert((until, self.next_pause), destination);
        self.next_pause += 1;
    }

    /// Goes on once all messages of a batch are settled.
    fn end_batch(&mut self, destination: &Destination, now: Instant) {
        let Some(held) = self.by_destination.get_mut(destination) else { return };
        if held.in_flight > 0 || (held.left > 0 && !held.items.is_empty()) {
            return;
        }
        held.left = 0;
        if std::mem::take(&mut held.has_failed) {
            held.allowance = 1;
            held.pause = MAX_PAUSE.min(2 * held.pause);
            let until = now + held.pause;
            self.pause(destination.clone(), until);
        } else if held.items.is_empty() {
            self.by_destination.remove(destination);
        } else {
            held.allowance = held.allowance.saturating_mul(2);
            held.pause = MIN_PAUSE;
            self.pause(destination.clone(), now);
        }
    }
}

impl<T> Held<T> {
    /// Inserts a message in the order of their numbers. Most come last or first.
    fn insert(&mut self, item: Item<T>) {
        let at = self.items.partition_point(|other| other.number < item.number);
        self.items.insert(at, item);
    }
}
