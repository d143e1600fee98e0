//! Messages that wait for their destination: the broker has nacked an earlier one, or refused one for its exchange, or
//! earlier ones still wait.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::backlogs::{BacklogId, Backlogs};
use crate::forwarding::ForwardingChannel;
use crate::item::{DestinationKey, Item};

/// First pause after a nack. Each further one doubles it.
pub(crate) const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Messages of a backlog that stay in memory while their destination pauses.
const LOADED_IN_PAUSE: usize = 64;

/// The destinations for which messages wait, with these messages in order.
///
/// After a pause one message of a destination may be in flight, and with each confirm one more, so that their number doubles
/// with each round trip. After a nack the next pause begins as soon as none is in flight.
#[derive(Debug)]
pub(crate) struct Deferred<T> {
    by_destination: HashMap<DestinationKey, Destination<T>>,
    /// Destinations whose pause ends at these times.
    pauses: BTreeMap<PauseKey, DestinationKey>,
    /// Makes the keys of `pauses` unique.
    next_pause: u64,
    /// Destinations that have messages to publish now, by channel. Entries may be outdated.
    ready: [VecDeque<DestinationKey>; 2],
    /// Messages that were read from the main queue.
    main: DeferredSize,
    /// Messages that were loaded from backlogs.
    loaded: DeferredSize,
}

type PauseKey = (Instant, u64);

/// Number of waiting messages, and the bytes of their records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeferredSize {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
struct Destination<T> {
    /// All from the main queue, or all from a backlog.
    items: VecDeque<Item<T>>,
    /// The size of `items`.
    size: DeferredSize,
    /// Number of messages that have waited here and are in flight.
    in_flight: usize,
    /// Limit of `in_flight`.
    allowance: usize,
    /// How long the next pause takes.
    pause: Duration,
    /// Set during a pause, to its end.
    pause_ends: Option<PauseKey>,
    /// Set by a nack, until none is in flight.
    has_failed: bool,
    /// Whether it is in a list of `ready`.
    is_listed: bool,
    /// Set when its messages will move to a backlog, until no earlier one is in flight.
    moves_to: Option<BacklogId>,
    /// The channel of its messages. It changes only while none of them is in flight.
    channel: ForwardingChannel,
}

impl<T> Deferred<T> {
    pub(crate) fn new() -> Self {
        Self {
            by_destination: HashMap::new(),
            pauses: BTreeMap::new(),
            next_pause: 0,
            ready: Default::default(),
            main: DeferredSize::default(),
            loaded: DeferredSize::default(),
        }
    }

    /// Size of the messages of the main queue that wait here.
    pub(crate) fn main(&self) -> DeferredSize {
        self.main
    }

    /// Size of the messages of backlogs that wait here.
    pub(crate) fn loaded(&self) -> DeferredSize {
        self.loaded
    }

    pub(crate) fn contains(&self, destination: DestinationKey) -> bool {
        !self.by_destination.is_empty() && self.by_destination.contains_key(&destination)
    }

    /// Whether messages of the main queue wait for a destination.
    pub(crate) fn has_main(&self, destination: DestinationKey) -> bool {
        let front = self.by_destination.get(&destination).and_then(|found| found.items.front());
        front.is_some_and(Item::is_main)
    }

    /// When the first pause ends.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pauses.first_key_value().map(|((at, _), _)| *at)
    }

    /// The oldest message of each destination.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &Item<T>> {
        self.by_destination.values().filter_map(|found| found.items.front())
    }

    /// Messages of a destination that may be in flight: 0 during a pause, 1 if none wait.
    pub(crate) fn allowance(&self, destination: DestinationKey) -> usize {
        self.by_destination.get(&destination).map_or(1, |found| {
            if found.has_failed || found.pause_ends.is_some() { 0 } else { found.allowance }
        })
    }

    /// Adds a message, in the order of their numbers.
    pub(crate) fn insert(&mut self, item: Item<T>, channel: ForwardingChannel) {
        let destination = item.destination;
        self.size_of(&item).add(&item);
        let found = self.by_destination.entry(destination).or_insert_with(|| Destination::new(channel));
        found.insert(item);
        self.list(destination);
    }

    /// Handles a message that the broker has nacked.
    pub(crate) fn nacked(&mut self, mut item: Item<T>, channel: ForwardingChannel) {
        let was_deferred = std::mem::take(&mut item.was_deferred);
        let destination = item.destination;
        self.size_of(&item).add(&item);
        let is_first = !self.by_destination.contains_key(&destination);
        let found = self.by_destination.entry(destination).or_insert_with(|| Destination::new(channel));
        found.insert(item);
        found.has_failed |= is_first || was_deferred;
        found.in_flight -= usize::from(was_deferred);
    }

    /// Handles a message that has waited here, and is now confirmed or refused permanently.
    pub(crate) fn left(&mut self, destination: DestinationKey, is_confirmed: bool) {
        if let Some(found) = self.by_destination.get_mut(&destination) {
            found.in_flight -= 1;
            if is_confirmed {
                found.allowance += 1;
                found.pause = MIN_PAUSE;
            }
        }
    }

    /// Handles a message that returns without an answer.
    pub(crate) fn returned(&mut self, mut item: Item<T>, channel: ForwardingChannel) {
        if std::mem::take(&mut item.was_deferred)
            && let Some(found) = self.by_destination.get_mut(&item.destination)
        {
            found.in_flight -= 1;
        }
        self.insert(item, channel);
    }

    /// Takes the message to be published next on a channel. `channel_of` chooses the channel of a destination; `None` makes
    /// it wait until a message that has not waited here is answered.
    pub(crate) fn take(
        &mut self,
        channel: ForwardingChannel,
        channel_of: impl Fn(&Item<T>) -> Option<ForwardingChannel>,
    ) -> Option<Item<T>> {
        while let Some(destination) = self.ready[channel as usize].pop_front() {
            let Some(found) = self.by_destination.get_mut(&destination) else { continue };
            found.is_listed = false;
            if found.in_flight == 0
                && let Some(front) = found.items.front()
            {
                let Some(chosen) = channel_of(front) else { continue };
                found.channel = chosen;
            }
            if found.channel == channel
                && found.is_ready()
                && let Some(mut item) = found.items.pop_front()
            {
                found.in_flight += 1;
                found.size.remove(&item);
                item.was_deferred = true;
                self.size_of(&item).remove(&item);
                self.list(destination);
                return Some(item);
            }
            self.list(destination);
        }
        None
    }

    /// Ends the pauses that are over, so that their destinations continue.
    pub(crate) fn end_pauses(&mut self, now: Instant) {
        while let Some(first) = self.pauses.first_entry()
            && first.key().0 <= now
        {
            let destination = first.remove();
            if let Some(found) = self.by_destination.get_mut(&destination) {
                found.pause_ends = None;
            }
            self.list(destination);
        }
    }

    /// Called after each answer for a destination: begins its pause, or removes it. Returns messages of a backlog that need
    /// not be in memory meanwhile.
    pub(crate) fn answered(
        &mut self,
        destination: DestinationKey,
        backlogs: &Backlogs,
        now: Instant,
    ) -> VecDeque<Item<T>> {
        let Some(found) = self.by_destination.get_mut(&destination) else { return VecDeque::new() };
        if found.in_flight > 0 {
            self.list(destination);
            return VecDeque::new();
        }
        let mut unneeded = VecDeque::new();
        if std::mem::take(&mut found.has_failed) {
            found.allowance = 1;
            let key = (now + found.pause, self.next_pause);
            found.pause = MAX_PAUSE.min(2 * found.pause);
            let before = found.pause_ends.replace(key);
            if found.items.front().is_some_and(|item| !item.is_main()) && found.items.len() > LOADED_IN_PAUSE
            {
                unneeded = found.items.split_off(LOADED_IN_PAUSE);
                unneeded.iter().for_each(|item| found.size.remove(item));
            }
            self.next_pause += 1;
            before.map(|before| self.pauses.remove(&before));
            self.pauses.insert(key, destination);
        } else {
            self.forget_unused(destination, backlogs);
        }
        unneeded.iter().for_each(|item| self.size_of(item).remove(item));
        self.list(destination);
        unneeded
    }

    /// Removes a destination for which nothing waits any more.
    pub(crate) fn forget_unused(&mut self, destination: DestinationKey, backlogs: &Backlogs) {
        let Some(found) = self.by_destination.get(&destination) else { return };
        if found.items.is_empty()
            && found.in_flight == 0
            && !found.has_failed
            && !backlogs.has_own(destination)
        {
            let pause_ends = found.pause_ends;
            self.by_destination.remove(&destination);
            pause_ends.map(|key| self.pauses.remove(&key));
        }
    }

    /// Whether a message waits only for a channel to open.
    pub(crate) fn is_ready(&self, channel: ForwardingChannel) -> bool {
        !self.ready[channel as usize].is_empty()
    }

    /// Destinations with the most bytes, whose messages of the main queue have to move to backlogs until at most `stay`
    /// remains.
    pub(crate) fn largest(&self, stay: DeferredSize) -> Vec<(DestinationKey, &Item<T>)> {
        let (mut left, mut all) = (self.main, Vec::new());
        for (destination, found) in &self.by_destination {
            let Some(front) = found.items.front().filter(|item| item.is_main()) else { continue };
            if found.moves_to.is_none() {
                all.push((found.size, *destination, front));
            } else {
                left.subtract(found.size);
            }
        }
        all.sort_by_key(|(size, _, front)| (std::cmp::Reverse(size.bytes), front.number));
        let mut largest = Vec::new();
        for (size, destination, front) in all {
            if left.messages <= stay.messages && left.bytes <= stay.bytes {
                break;
            }
            left.subtract(size);
            largest.push((destination, front));
        }
        largest
    }

    /// Plans the move of a destination's messages to a backlog with [`Self::take_moving`]. Returns false if that was
    /// planned already.
    pub(crate) fn move_to(&mut self, destination: DestinationKey, backlog: BacklogId) -> bool {
        let found = self.by_destination.get_mut(&destination);
        found.is_some_and(|found| found.moves_to.replace(backlog).is_none())
    }

    /// Takes the messages that move to a backlog, in order.
    pub(crate) fn take_moving(
        &mut self,
        destination: DestinationKey,
    ) -> Option<(BacklogId, VecDeque<Item<T>>)> {
        let found = self.by_destination.get_mut(&destination)?;
        let backlog = found.moves_to.take()?;
        let items = std::mem::take(&mut found.items);
        found.size = DeferredSize::default();
        items.iter().for_each(|item| self.main.remove(item));
        Some((backlog, items))
    }

    /// Takes the messages of backlogs whose destination pauses, but only from backlogs of a single destination: those of an
    /// exchange's backlog would be loaded again before the pause is over.
    pub(crate) fn take_pausing(&mut self, backlogs: &Backlogs) -> Vec<Item<T>> {
        let mut taken = Vec::new();
        for (destination, found) in &mut self.by_destination {
            // Only during the pause: before it, later messages that are still in flight may return, and would precede these.
            let is_pausing = found.pause_ends.is_some();
            let is_of_backlog = found.items.front().is_some_and(|item| !item.is_main());
            if is_pausing && is_of_backlog && backlogs.has_own(*destination) {
                self.loaded.subtract(std::mem::take(&mut found.size));
                taken.extend(found.items.drain(..));
            }
        }
        taken
    }

    /// Takes all messages, and clears the state of all destinations.
    pub(crate) fn take_all(&mut self) -> Vec<Item<T>> {
        let all = std::mem::replace(self, Self::new());
        all.by_destination.into_values().flat_map(|found| found.items).collect()
    }

    fn list(&mut self, destination: DestinationKey) {
        if let Some(found) = self.by_destination.get_mut(&destination)
            && !found.is_listed
            && found.is_ready()
        {
            found.is_listed = true;
            self.ready[found.channel as usize].push_back(destination);
        }
    }

    fn size_of(&mut self, item: &Item<T>) -> &mut DeferredSize {
        if item.is_main() { &mut self.main } else { &mut self.loaded }
    }
}

impl DeferredSize {
    fn add<T>(&mut self, item: &Item<T>) {
        self.messages += 1;
        self.bytes += item.bytes();
    }

    fn remove<T>(&mut self, item: &Item<T>) {
        self.messages -= 1;
        self.bytes -= item.bytes();
    }

    fn subtract(&mut self, other: Self) {
        self.messages -= other.messages;
        self.bytes -= other.bytes;
    }
}

impl<T> Destination<T> {
    fn new(channel: ForwardingChannel) -> Self {
        Self {
            items: VecDeque::new(),
            size: DeferredSize::default(),
            in_flight: 0,
            allowance: 1,
            pause: MIN_PAUSE,
            pause_ends: None,
            has_failed: false,
            is_listed: false,
            moves_to: None,
            channel,
        }
    }

    fn is_ready(&self) -> bool {
        !self.items.is_empty()
            && self.in_flight < self.allowance
            && !self.has_failed
            && self.pause_ends.is_none()
            && self.moves_to.is_none()
    }

    /// Inserts a message in the order of their numbers. Most come last or first.
    fn insert(&mut self, item: Item<T>) {
        self.size.add(&item);
        let at = self.items.partition_point(|other| other.number < item.number);
        self.items.insert(at, item);
    }
}
