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

/// The most messages in flight on the careful channel: a refusal costs another attempt of all but one of them.
const CAREFUL_WINDOW: usize = 64;

/// Confirms, for each message that may be in flight on the careful channel, after which twice as many may be: where one message
/// in a hundred is refused, a refusal costs a few others another attempt.
const CONFIRMS_TO_GROW: usize = 16;

/// The share of the window that messages may use which have waited for their destination: three quarters.
const DEFERRED_SHARE: (usize, usize) = (3, 4);

/// The most messages that one call of [`Forwarding::poll_publish`] parks without asking the broker again.
const PARKED_AT_ONCE: usize = 256;

/// Destinations that are remembered because they have stalled a connection. If there are more, all are forgotten: each may
/// then stall one again, which costs seconds.
const SILENT_MAX: usize = 8_192;

/// How much a [`Forwarding`] has in memory.
#[derive(Debug, Clone, Copy)]
pub struct ForwardingLimits {
    /// Messages that may be published and unconfirmed.
    pub window: usize,
    /// Bytes of their records.
    pub window_bytes: usize,
    /// Messages of the main queue that may wait for their destination in memory. With more, those of the destinations with the
    /// most bytes move to backlogs.
    pub deferred: usize,
    /// Bytes of their records, and of those that are loaded from backlogs.
    pub deferred_bytes: usize,
    /// Destinations with a backlog of their own. Those beyond share one for each exchange.
    pub backlogs: usize,
    /// For how long the broker may nack a message, and everything for its destination, before the message is parked; `None`
    /// for no limit. One that is younger waits until it is as old.
    pub nacked_max: Option<Duration>,
}

/// After how many confirms it is less careful. Simulations have fewer messages than others have confirms.
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
    /// The order in which channels are asked for messages until none has any: destinations change to the other channel when
    /// one is asked.
    pub const ASKED: [Self; 3] = [Self::Fast, Self::Careful, Self::Fast];
}

/// A message that is done with for now.
#[derive(Debug)]
pub enum Settled<T> {
    /// The broker has confirmed it: its queue may forget it.
    Forwarded(T),
    /// The broker has refused it permanently: it is to be parked.
    Parked(Envelope, T, MessageRefusal),
    /// It is to be moved from the main queue to the end of a backlog. Those of a backlog come in order.
    Deferred(BacklogId, T),
    /// Its queue is to hand it out again, at its old position.
    Released(T),
    /// A backlog has no messages, or has got none at all. Its id may be used again for another one.
    Emptied(BacklogId),
}

/// The messages of one main queue on their way to the broker. `T` is what the queues need to settle one.
///
/// The caller gives it the next message of the main queue while [`Self::wants_more`], and that of a backlog while
/// [`Self::poll_load`] returns one; publishes what [`Self::poll_publish`] returns while a channel is open; reports what the
/// broker answers; and does what [`Self::poll_settled`] returns, in that order. Whenever that has returned something, there may
/// be more to read, to load and to publish.
///
/// The broker closes a channel to refuse a message, and does not say which one. If the reason names an exchange, its messages
/// go over the careful channel from then on, where few are in flight. Otherwise half as many messages are published at a time
/// until only one is in flight: that one is parked, and its exchange is one that refuses messages.
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
    /// Where the search for a backlog to be loaded begins.
    load_from: usize,
    /// Bytes of the records of all messages that were read and have not left.
    bytes: usize,
    /// Messages that may be in flight now: at most that of the limits.
    window: usize,
    /// Messages confirmed since the window has changed.
    confirmed: usize,
    careful_window: usize,
    /// The same for the careful channel.
    careful_confirmed: usize,
    refused_exchanges: RefusedExchanges,
    nacks: Nacks,
    /// Destinations that may have stalled a connection, until a message for them is answered. All their messages go through
    /// backlogs, so that a single one is in flight.
    silent: HashSet<DestinationKey>,
    /// The id of a message that was alone in flight when its connection was closed, and how often in a row.
    accused: Option<([u8; 16], u32)>,
    settled: VecDeque<Settled<T>>,
}

impl<T> Forwarding<T> {
    /// Nothing is read or open yet.
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
            accused: None,
            settled: VecDeque::new(),
        }
    }

    /// One that begins with nothing read or open. For how long the broker has nacked what, and what it has not answered, stays
    /// known.
    #[must_use]
    pub fn begin_anew(&mut self) -> Self {
        let (keys, nacks) = (self.keys.clone(), std::mem::take(&mut self.nacks));
        let silent = std::mem::take(&mut self.silent);
        Self { keys, nacks, silent, ..Self::with_caution(self.limits, self.caution) }
    }

    /// A backlog that a restart has found, with its number of messages. To be called before anything is read.
    pub fn restore(&mut self, name: BacklogName, messages: u64) -> BacklogId {
        self.backlogs.restore(&self.keys, name, messages)
    }

    /// The messages for which a backlog is.
    pub fn backlog(&self, id: BacklogId) -> Option<&BacklogName> {
        self.backlogs.name(id)
    }

    /// Whether the next message of the main queue is to be read: without a channel only the first one, for its age.
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

    /// The next message of the main queue has been read.
    pub fn read(&mut self, envelope: Envelope, handle: T) {
        let item = self.item(envelope, handle, Source::Main);
        self.queued.push_back(item);
    }

    /// A backlog whose next message is to be given to [`Self::loaded`], if it can be had.
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

    /// The next message of a backlog is in memory.
    pub fn loaded(&mut self, backlog: BacklogId, envelope: Envelope, handle: T) {
        self.backlogs.loaded(backlog, &envelope);
        let item = self.item(envelope, handle, Source::Backlog(backlog));
        let channel = self.channel_of(&item);
        self.deferred.insert(item, channel);
    }

    /// The next message of a backlog cannot be read, and the caller has removed it.
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

    /// A channel in confirm mode is open, on which nothing has been published.
    pub fn opened(&mut self, channel: ForwardingChannel) {
        self.channel_mut(channel).open();
    }

    /// The message that is to be published now on a channel, if one is. The channels are asked in the order of
    /// [`ForwardingChannel::ASKED`].
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
                // Parked messages keep their order, too: those before it may be refused as well.
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
            // The channels know no order: earlier ones that did not have to wait are on the fast one.
            let is_overtaking =
                chosen == ForwardingChannel::Careful && main_in_flight.contains_key(&item.destination);
            (!is_overtaking).then_some(chosen)
        })
    }

    /// Whether another message may be in flight. While the message is sought that costs the connection, both channels count.
    fn has_capacity(&self) -> bool {
        let is_narrow = self.window < self.limits.window;
        let count = if is_narrow { self.in_flight() } else { self.fast.count() };
        count < self.window && self.fast.bytes() < self.limits.window_bytes
    }

    /// The same for one that has waited: these leave some of the window to messages that need not wait.
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

    /// A message is no longer in flight.
    fn landed(&mut self, item: &Item<T>) {
        if item.is_main()
            && let Some(count) = self.main_in_flight.get_mut(&item.destination)
        {
            *count -= 1;
            if *count == 0 {
                self.main_in_flight.remove(&item.destination);
            }
        }
    }

    /// The next message that is done with.
    pub fn poll_settled(&mut self) -> Option<Settled<T>> {
        self.settled.pop_front()
    }

    /// Lets destinations continue whose pause is over by `now`. To be called at [`Self::next_deadline`] at the latest, also
    /// while nothing can be published.
    pub fn handle_deadline(&mut self, now: Instant) {
        self.deferred.end_pauses(now);
    }

    /// When [`Self::poll_publish`] may have something to publish again without another event.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deferred.next_deadline().filter(|_| self.fast.is_open())
    }

    /// The broker is asked again about exchanges that it has refused: an operator has changed something there.
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

    /// Bytes of the records of all messages that were read and have not left.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that wait for their destination, in memory or in backlogs.
    pub fn deferred(&self) -> u64 {
        let in_memory = self.deferred.main().messages + self.deferred.loaded().messages;
        in_memory as u64 + self.backlogs.not_loaded()
    }

    /// When the oldest message that has not left was accepted, in milliseconds since 1970, as far as it was read.
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
    if refused_exchanges.concern(keys, item.destination, &item.envelope) {
        ForwardingChannel::Careful
    } else {
        ForwardingChannel::Fast
    }
}

#[cfg(test)]
mod tests;
