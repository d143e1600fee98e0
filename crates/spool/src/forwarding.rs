//! Forwards the messages of one main queue, and of its backlogs, over two channels in confirm mode.

mod answers;
mod deferring;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use crate::backlogs::{BacklogId, BacklogName, Backlogs};
use crate::deferred::Deferred;
use crate::envelope::Envelope;
use crate::in_flight::InFlight;
use crate::item::{DestinationKey, DestinationKeys, Item, Source};
use crate::nacks::Nacks;
use crate::refusal::MessageRefusal;
use crate::refused_exchanges::{CONFIRMS_TO_CLEAR, RefusedExchanges};

/// The most messages in flight on the careful channel: after a refusal all others of them need another attempt.
const CAREFUL_WINDOW: usize = 64;

/// Confirms, for each message that may be in flight on the careful channel, after which twice as many may be: where one message
/// in a hundred is refused, a refusal costs a few others another attempt.
const CONFIRMS_TO_GROW: usize = 16;

/// The share of the window that messages may use which have waited for their destination: three quarters.
const DEFERRED_SHARE: (usize, usize) = (3, 4);

/// The most messages that one call of [`Forwarding::poll_publish`] parks without asking the broker again.
const PARKED_AT_ONCE: usize = 256;

/// The most destinations recorded as having stalled a connection. If there are more, all are forgotten: each may then
/// stall another one, which takes seconds.
const SILENT_MAX: usize = 8_192;

/// Limits of a [`Forwarding`].
#[derive(Debug, Clone, Copy)]
pub struct ForwardingLimits {
    /// Messages that may be published and unconfirmed.
    pub window: usize,
    /// Bytes of their records.
    pub window_bytes: usize,
    /// Messages of the main queue that may wait for their destination in memory. Beyond that, those of the destinations
    /// with the most bytes move to backlogs.
    pub deferred: usize,
    /// Bytes of their records, and of messages loaded from backlogs.
    pub deferred_bytes: usize,
    /// The most destinations with a backlog of their own. All further ones share a backlog per exchange.
    pub backlogs: usize,
    /// How long the broker may nack a message, and everything for its destination, before the message is parked; `None` for
    /// no limit. A younger message waits until it is that old.
    pub nacked_max: Option<Duration>,
}

/// How many confirms end or widen the use of the careful channel. Simulations have too few messages for the real values.
#[derive(Debug, Clone, Copy)]
struct Caution {
    /// Confirms in a row that clear an exchange after its first refusal.
    confirms_to_clear: u32,
    /// Confirms, for each message that may be in flight on the careful channel, after which twice as many may be.
    confirms_to_grow: usize,
}

const CAUTION: Caution = Caution { confirms_to_clear: CONFIRMS_TO_CLEAR, confirms_to_grow: CONFIRMS_TO_GROW };

/// One of the two channels of a [`Forwarding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardingChannel {
    /// As many messages as the limits allow are in flight.
    Fast = 0,
    /// Few are in flight, for exchanges for which messages have been refused.
    Careful = 1,
}

impl ForwardingChannel {
    /// The order in which channels are polled for messages until none has any: polling one channel may move destinations to
    /// the other.
    pub const POLL_ORDER: [Self; 3] = [Self::Fast, Self::Careful, Self::Fast];
}

/// A message that needs no further work for now.
#[derive(Debug)]
pub enum Settled<T> {
    /// The broker has confirmed it: its queue may drop it.
    Forwarded(T),
    /// The broker has refused it permanently: park it.
    Parked(Envelope, T, MessageRefusal),
    /// Move it from the main queue to the end of a backlog. Those of one backlog come in order.
    Deferred(BacklogId, T),
    /// Its queue has to return it again, at its old position.
    Released(T),
    /// A backlog has no messages left, or never got any. Its id may be reused.
    Emptied(BacklogId),
}

/// Forwards the messages of one main queue to the broker. `T` is the handle by which the queues settle a message.
///
/// The caller passes the next message of the main queue while [`Self::wants_more`], and that of a backlog while
/// [`Self::poll_load`] returns one. It publishes the messages of [`Self::poll_publish`] while a channel is open, reports
/// the broker's answers, and carries out [`Self::poll_settled`], in that order. Whenever that has returned something, there
/// may be more to read, to load and to publish.
///
/// The broker closes a channel to refuse a message, and does not say which one. If the reason names an exchange, the
/// messages of that exchange use the careful channel from then on, where few are in flight. Otherwise half as many messages
/// are published at a time until only one is in flight: that one is parked, and its exchange counts as one that refuses
/// messages.
#[derive(Debug)]
pub struct Forwarding<T> {
    limits: ForwardingLimits,
    caution: Caution,
    keys: DestinationKeys,
    next_number: u64,
    /// Messages of the main queue to be published next, in their order.
    queued: VecDeque<Item<T>>,
    fast: InFlight<T>,
    careful: InFlight<T>,
    /// Messages of the main queue that are in flight, by destination.
    main_in_flight: HashMap<DestinationKey, u32>,
    deferred: Deferred<T>,
    backlogs: Backlogs,
    /// Where the search for a backlog to load starts.
    load_from: usize,
    /// Bytes of the records of all messages that were read and have not left yet.
    bytes: usize,
    /// Messages that may be in flight now: at most that of the limits.
    window: usize,
    /// Messages confirmed since the window changed.
    confirmed: usize,
    careful_window: usize,
    /// The same for the careful channel.
    careful_confirmed: usize,
    refused_exchanges: RefusedExchanges,
    nacks: Nacks,
    /// Destinations that may have stalled a connection, until a message for them is answered. All their messages go through
    /// backlogs, so that a single one is in flight.
    silent: HashSet<DestinationKey>,
    /// The id of a message that was the only one in flight when its connection was closed, and how often in a row.
    suspect: Option<([u8; 16], u32)>,
    settled: VecDeque<Settled<T>>,
}

impl<T> Forwarding<T> {
    /// A new instance, with nothing read or open.
    pub fn new(limits: ForwardingLimits) -> Self {
        Self::with_caution(limits, CAUTION)
    }

    fn with_caution(limits: ForwardingLimits, caution: Caution) -> Self {
        Self {
            window: limits.window,
            limits,
            caution,
            keys: DestinationKeys::default(),
            next_number: 0,
            queued: VecDeque::new(),
            fast: InFlight::new(),
            careful: InFlight::new(),
            main_in_flight: HashMap::new(),
            deferred: Deferred::new(),
            backlogs: Backlogs::default(),
            load_from: 0,
            bytes: 0,
            confirmed: 0,
            careful_window: 1,
            careful_confirmed: 0,
            refused_exchanges: RefusedExchanges::new(caution.confirms_to_clear),
            nacks: Nacks::default(),
            silent: HashSet::new(),
            suspect: None,
            settled: VecDeque::new(),
        }
    }

    /// A new instance with nothing read or open, which takes over the durations of nacks and the silent destinations.
    #[must_use]
    pub fn begin_anew(&mut self) -> Self {
        let (keys, nacks) = (self.keys.clone(), std::mem::take(&mut self.nacks));
        let silent = std::mem::take(&mut self.silent);
        Self { keys, nacks, silent, ..Self::with_caution(self.limits, self.caution) }
    }

    /// Registers a backlog that was found after a restart, with its number of messages. Call it before anything is read.
    pub fn restore(&mut self, name: BacklogName, messages: u64) -> BacklogId {
        self.backlogs.restore(&self.keys, name, messages)
    }

    /// The messages that belong in a backlog.
    pub fn backlog(&self, id: BacklogId) -> Option<&BacklogName> {
        self.backlogs.name(id)
    }

    /// Whether to read the next message of the main queue: without a channel only the first one, for its age.
    pub fn wants_more(&self) -> bool {
        let waiting = self.deferred.main();
        if !self.fast.is_open() {
            return self.queued.is_empty() && waiting.messages == 0 && self.in_flight() == 0;
        }
        self.queued.is_empty()
            && self.has_capacity()
            && waiting.messages < self.limits.deferred
            && waiting.bytes < self.limits.deferred_bytes
    }

    /// Adds the next message of the main queue.
    pub fn read(&mut self, envelope: Envelope, handle: T) {
        let item = self.item(envelope, handle, Source::Main);
        self.queued.push_back(item);
    }

    /// A backlog whose next message is to be passed to [`Self::loaded`], if there is one.
    pub fn poll_load(&mut self) -> Option<BacklogId> {
        if self.backlogs.is_empty() {
            return None;
        }
        let is_busy = !self.fast.is_open() || self.deferred.loaded().bytes >= self.limits.deferred_bytes;
        let allowance = |destination| self.deferred.allowance(destination);
        let next = self.backlogs.next_to_load(is_busy, self.load_from, allowance)?;
        self.load_from = next.following();
        Some(next)
    }

    /// Adds the next message of a backlog.
    pub fn loaded(&mut self, backlog: BacklogId, envelope: Envelope, handle: T) {
        self.backlogs.loaded(backlog, &envelope);
        let item = self.item(envelope, handle, Source::Backlog(backlog));
        let channel = self.channel_of(&item);
        self.deferred.insert(item, channel);
    }

    /// Reports that the next message of a backlog is unreadable, and that the caller has removed it.
    pub fn skipped(&mut self, backlog: BacklogId) {
        if self.backlogs.skipped(backlog) {
            self.settled.push_back(Settled::Emptied(backlog));
        }
    }

    fn item(&mut self, envelope: Envelope, handle: T, source: Source) -> Item<T> {
        let number = self.next_number;
        self.next_number += 1;
        self.bytes += envelope.bytes().len();
        let destination = self.keys.of(envelope.exchange(), envelope.routing_key());
        Item { number, destination, envelope, handle, source, was_deferred: false }
    }

    /// Reports that a channel in confirm mode is open, on which nothing has been published.
    pub fn opened(&mut self, channel: ForwardingChannel) {
        self.channel_mut(channel).open();
    }

    /// The message to publish now on a channel, if there is one. Poll the channels in the order of
    /// [`ForwardingChannel::POLL_ORDER`].
    pub fn poll_publish(&mut self, channel: ForwardingChannel, now: Instant) -> Option<Envelope> {
        if !self.channel(channel).is_open() {
            return None;
        }
        self.deferred.end_pauses(now);
        let mut to_park = PARKED_AT_ONCE;
        while to_park > 0
            && self.has_capacity_on(channel)
            && let Some(item) = self.take_deferred(channel)
        {
            // Deferred messages go first: they are older.
            match self.refused_exchanges.known_refusal(&item.envelope, now) {
                None => return Some(self.launch(channel, item)),
                Some(refusal) => {
                    to_park -= 1;
                    let destination = item.destination;
                    self.deferred.left(destination, false);
                    self.park(item, refusal);
                    self.answered(destination, now);
                }
            }
        }
        while to_park > 0
            && channel == ForwardingChannel::Fast
            && self.has_capacity()
            && let Some(item) = self.queued.pop_front()
        {
            match self.refused_exchanges.known_refusal(&item.envelope, now) {
                // Messages are parked in order, too: earlier ones may be refused as well.
                Some(refusal) if !self.is_behind_others(&item) => {
                    to_park -= 1;
                    self.park(item, refusal);
                }
                _ => {
                    if let Some(item) = self.defer(item) {
                        return Some(self.launch(channel, item));
                    }
                }
            }
        }
        None
    }

    /// Whether earlier messages of its destination have not been answered.
    fn is_behind_others(&self, item: &Item<T>) -> bool {
        let destination = item.destination;
        self.main_in_flight.contains_key(&destination)
            || self.deferred.contains(destination)
            || self.covering(item).is_some()
    }

    fn take_deferred(&mut self, channel: ForwardingChannel) -> Option<Item<T>> {
        let (refused_exchanges, keys, main_in_flight) =
            (&self.refused_exchanges, &self.keys, &self.main_in_flight);
        self.deferred.take(channel, |item| {
            let chosen = channel_of(refused_exchanges, keys, item);
            // The channels are not ordered relative to each other: earlier messages that did not wait are on the fast one.
            let is_overtaking =
                chosen == ForwardingChannel::Careful && main_in_flight.contains_key(&item.destination);
            (!is_overtaking).then_some(chosen)
        })
    }

    /// Whether another message may be in flight. During the search for a message for which the broker closes the
    /// connection, both channels count.
    fn has_capacity(&self) -> bool {
        let is_narrow = self.window < self.limits.window;
        let count = if is_narrow { self.in_flight() } else { self.fast.count() };
        count < self.window && self.fast.bytes() < self.limits.window_bytes
    }

    /// The same for a message that has waited: waiting messages leave part of the window to those that need not wait.
    fn has_capacity_on(&self, channel: ForwardingChannel) -> bool {
        match channel {
            ForwardingChannel::Fast => {
                let share = |of: usize| (of / DEFERRED_SHARE.1 * DEFERRED_SHARE.0).max(1);
                self.has_capacity()
                    && self.fast.deferred() < share(self.window)
                    && self.fast.deferred_bytes() < share(self.limits.window_bytes)
            }
            ForwardingChannel::Careful => {
                let is_narrow = self.window < self.limits.window;
                self.careful.count() < self.careful_window && (!is_narrow || self.in_flight() < self.window)
            }
        }
    }

    fn launch(&mut self, channel: ForwardingChannel, item: Item<T>) -> Envelope {
        if item.is_main() {
            *self.main_in_flight.entry(item.destination).or_default() += 1;
        }
        let envelope = item.envelope.clone();
        self.channel_mut(channel).push(item);
        envelope
    }

    /// Records that a message is no longer in flight.
    fn remove_from_flight(&mut self, item: &Item<T>) {
        if item.is_main()
            && let Some(count) = self.main_in_flight.get_mut(&item.destination)
        {
            *count -= 1;
            if *count == 0 {
                self.main_in_flight.remove(&item.destination);
            }
        }
    }

    /// The next message that needs no further work.
    pub fn poll_settled(&mut self) -> Option<Settled<T>> {
        self.settled.pop_front()
    }

    /// Ends the pauses that are over by `now`. Call it at [`Self::next_deadline`] at the latest, even while nothing can be
    /// published.
    pub fn handle_deadline(&mut self, now: Instant) {
        self.deferred.end_pauses(now);
    }

    /// When [`Self::poll_publish`] may have something to publish again without another event.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deferred.next_deadline().filter(|_| self.fast.is_open())
    }

    /// Discards known refusals, so that the broker decides again: an operator has changed something there.
    pub fn forget_refusals(&mut self) {
        self.refused_exchanges.forget_refusals();
    }

    /// Messages that have been published and not answered.
    pub fn in_flight(&self) -> usize {
        self.fast.count() + self.careful.count()
    }

    /// Whether messages are to be published on a channel once it is open.
    pub fn wants_channel(&self, channel: ForwardingChannel) -> bool {
        channel == ForwardingChannel::Fast || self.deferred.is_ready(channel)
    }

    /// Messages that have been published on one channel and not answered.
    pub fn in_flight_on(&self, channel: ForwardingChannel) -> usize {
        self.channel(channel).count()
    }

    /// Bytes of the records of all messages that were read and have not left yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that wait for their destination, in memory or in backlogs.
    pub fn deferred(&self) -> u64 {
        let in_memory = self.deferred.main().messages + self.deferred.loaded().messages;
        in_memory as u64 + self.backlogs.not_loaded()
    }

    /// When the oldest message that was read and has not left was accepted, in milliseconds since 1970.
    pub fn oldest(&self) -> Option<u64> {
        let waiting = self.queued.front().into_iter().chain(self.deferred.fronts());
        let in_flight = self.fast.oldest().into_iter().chain(self.careful.oldest());
        waiting.map(|item| item.envelope.accepted_at()).chain(in_flight).chain(self.backlogs.oldest()).min()
    }

    fn channel(&self, channel: ForwardingChannel) -> &InFlight<T> {
        match channel {
            ForwardingChannel::Fast => &self.fast,
            ForwardingChannel::Careful => &self.careful,
        }
    }

    fn channel_mut(&mut self, channel: ForwardingChannel) -> &mut InFlight<T> {
        match channel {
            ForwardingChannel::Fast => &mut self.fast,
            ForwardingChannel::Careful => &mut self.careful,
        }
    }
}

fn channel_of<T>(
    refused_exchanges: &RefusedExchanges,
    keys: &DestinationKeys,
    item: &Item<T>,
) -> ForwardingChannel {
    if refused_exchanges.needs_care(keys, item.destination, &item.envelope) {
        ForwardingChannel::Careful
    } else {
        ForwardingChannel::Fast
    }
}

#[cfg(test)]
mod tests;
