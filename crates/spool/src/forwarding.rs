//! Forwards the messages of one local queue over one channel in confirm mode.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::envelope::Envelope;
use crate::held::HeldMessages;

/// How long a refusal of an exchange holds for further messages without asking the broker: a queue full of messages for a
/// deleted exchange would take a round trip for each otherwise.
const REFUSAL_HOLDS: Duration = Duration::from_secs(1);

/// Refusals that are remembered at once.
const MAX_REFUSALS: usize = 64;

/// How much a [`Forwarding`] has in memory.
#[derive(Debug, Clone, Copy)]
pub struct ForwardingLimits {
    /// Messages that may be published and unconfirmed.
    pub window: usize,
    /// Bytes of their records.
    pub window_bytes: usize,
    /// Messages that may wait for their destination after a nack; nothing more is read beyond.
    pub held: usize,
    /// Bytes of their records.
    pub held_bytes: usize,
}

/// Why the broker has refused a message for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRefusal {
    /// The reply code of the channel.close, such as 404.
    pub code: u16,
    /// Its reply text, which names the exchange in most cases.
    pub text: String,
}

/// A message that has left. The local queue may forget it.
#[derive(Debug)]
pub enum Settled<T> {
    /// The broker has confirmed it.
    Forwarded(T),
    /// The broker has refused it for good; it is to be parked first.
    Parked(Envelope, T, MessageRefusal),
}

/// A message between the local queue and the broker's confirm.
#[derive(Debug)]
pub(crate) struct Item<T> {
    /// Ascending in the order in which they were read.
    pub(crate) number: u64,
    pub(crate) envelope: Envelope,
    pub(crate) handle: T,
    /// It was held, and is in flight again.
    pub(crate) is_retry: bool,
}

impl<T> Item<T> {
    pub(crate) fn destination(&self) -> (Box<str>, Box<str>) {
        (self.envelope.exchange().into(), self.envelope.routing_key().into())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.envelope.bytes().len()
    }
}

/// The messages of one local queue on their way to the broker. `T` is what the queue needs to settle one.
///
/// The caller gives it the next message while [`Self::wants_more`], publishes what [`Self::poll_publish`] returns while a
/// channel in confirm mode is open, reports what the broker answers, and settles what [`Self::poll_settled`] returns.
///
/// The broker closes the channel to refuse a message, and does not say which one. If the reason names an exchange, the first
/// unconfirmed message for it is published alone, after those before it; otherwise all of them are published again, half as
/// many at a time, until only one is in flight. That one is parked, and the number in flight grows again.
#[derive(Debug)]
pub struct Forwarding<T> {
    limits: ForwardingLimits,
    next_number: u64,
    /// Messages to be published next, in their order.
    queued: VecDeque<Item<T>>,
    /// Messages that have been published, in that order; `None` for one that is settled.
    in_flight: VecDeque<Option<Item<T>>>,
    /// The delivery tag of the first of them on this channel.
    first_tag: u64,
    in_flight_count: usize,
    in_flight_bytes: usize,
    /// Bytes of the records of all messages that were read and have not left.
    bytes: usize,
    held: HeldMessages<T>,
    /// Messages that may be in flight now: at most that of the limits.
    window: usize,
    /// Messages confirmed since the window has changed.
    confirmed: usize,
    /// The message that is to be in flight alone.
    suspect: Option<u64>,
    refusals: Vec<KnownRefusal>,
    is_open: bool,
    settled: VecDeque<Settled<T>>,
}

#[derive(Debug)]
struct KnownRefusal {
    exchange: Box<str>,
    /// `None` for all keys.
    routing_key: Option<Box<str>>,
    refusal: MessageRefusal,
    until: Instant,
}

impl<T> Forwarding<T> {
    /// Nothing is read or open yet.
    pub fn new(limits: ForwardingLimits) -> Self {
        Self {
            window: limits.window,
            limits,
            next_number: 0,
            queued: VecDeque::new(),
            in_flight: VecDeque::new(),
            first_tag: 1,
            in_flight_count: 0,
            in_flight_bytes: 0,
            bytes: 0,
            held: HeldMessages::new(),
            confirmed: 0,
            suspect: None,
            refusals: Vec::new(),
            is_open: false,
            settled: VecDeque::new(),
        }
    }

    /// Whether the next message of the queue is to be read: without a channel only the first one, for its age.
    pub fn wants_more(&self) -> bool {
        let (held, held_bytes) = self.held.size();
        if !self.is_open {
            return self.queued.is_empty() && held == 0;
        }
        self.queued.is_empty()
            && self.in_flight_count < self.window
            && self.in_flight_bytes < self.limits.window_bytes
            && held < self.limits.held
            && held_bytes < self.limits.held_bytes
    }

    /// The next message of the queue has been read.
    pub fn read(&mut self, envelope: Envelope, handle: T) {
        let number = self.next_number;
        self.next_number += 1;
        self.bytes += envelope.bytes().len();
        self.queued.push_back(Item { number, envelope, handle, is_retry: false });
    }

    /// A channel in confirm mode is open, on which nothing has been published.
    pub fn opened(&mut self) {
        self.is_open = true;
        self.first_tag = 1;
    }

    /// The message that is to be published now, if one is.
    pub fn poll_publish(&mut self, now: Instant) -> Option<Envelope> {
        let has_room = self.in_flight_count < self.window && self.in_flight_bytes < self.limits.window_bytes;
        if !self.is_open || !has_room || self.suspect_is_in_flight() {
            return None;
        }
        // Those that waited come first: they are older.
        if let Some(next) = self.held.peek(now) {
            if self.suspect == Some(next.number) && self.in_flight_count > 0 {
                return None;
            }
            if let Some(item) = self.held.take() {
                return Some(self.launch(item));
            }
        }
        while let Some(item) = self.queued.pop_front() {
            if self.suspect == Some(item.number) && self.in_flight_count > 0 {
                self.queued.push_front(item);
                return None;
            }
            if let Some(refusal) = self.known_refusal(&item, now) {
                self.parked(item, refusal);
                continue;
            }
            if let Some(item) = self.held.hold_behind(item) {
                return Some(self.launch(item));
            }
        }
        None
    }

    fn launch(&mut self, item: Item<T>) -> Envelope {
        let envelope = item.envelope.clone();
        self.in_flight_count += 1;
        self.in_flight_bytes += item.bytes();
        self.in_flight.push_back(Some(item));
        envelope
    }

    fn parked(&mut self, item: Item<T>, refusal: MessageRefusal) {
        self.bytes -= item.bytes();
        self.settled.push_back(Settled::Parked(item.envelope, item.handle, refusal));
    }

    fn suspect_is_in_flight(&self) -> bool {
        let first = || self.in_flight.iter().flatten().next();
        self.suspect.is_some_and(|suspect| first().is_some_and(|item| item.number == suspect))
    }

    /// The broker has confirmed messages, by the tags of the channel.
    pub fn acked(&mut self, delivery_tag: u64, multiple: bool, now: Instant) {
        for item in self.take_in_flight(delivery_tag, multiple) {
            self.confirmed += 1;
            if item.is_retry {
                self.held.settled(&item.destination(), now);
            }
            if self.suspect == Some(item.number) {
                self.suspect = None;
            }
            self.bytes -= item.bytes();
            self.settled.push_back(Settled::Forwarded(item.handle));
        }
        if self.window < self.limits.window && self.confirmed >= self.window {
            self.window = self.limits.window.min(2 * self.window);
            self.confirmed = 0;
        }
    }

    /// The broker has not taken messages, such as those for a full queue: they are tried again later.
    pub fn nacked(&mut self, delivery_tag: u64, multiple: bool, now: Instant) {
        for item in self.take_in_flight(delivery_tag, multiple) {
            if self.suspect == Some(item.number) {
                self.suspect = None;
            }
            self.held.nacked(item, now);
        }
    }

    /// The broker has closed the channel, because of one of the messages in flight.
    pub fn refused(&mut self, refusal: MessageRefusal, now: Instant) {
        self.is_open = false;
        let mut back: Vec<_> = self.in_flight.drain(..).flatten().collect();
        (self.in_flight_count, self.in_flight_bytes) = (0, 0);
        self.suspect = None;
        match back.len() {
            0 => {}
            1 => {
                let culprit = back.remove(0);
                self.remember(&culprit, &refusal, now);
                if culprit.is_retry {
                    self.held.settled(&culprit.destination(), now);
                }
                self.parked(culprit, refusal);
            }
            count => match back.iter().find(|item| refusal.names_exchange_of(&item.envelope)) {
                Some(named) => self.suspect = Some(named.number),
                None => {
                    self.window = (count / 2).max(1);
                    self.confirmed = 0;
                }
            },
        }
        self.put_back(back, now);
    }

    /// The channel is lost, whatever was published on it.
    pub fn lost(&mut self, now: Instant) {
        self.is_open = false;
        let back: Vec<_> = self.in_flight.drain(..).flatten().collect();
        (self.in_flight_count, self.in_flight_bytes) = (0, 0);
        self.put_back(back, now);
    }

    /// The next message that has left.
    pub fn poll_settled(&mut self) -> Option<Settled<T>> {
        self.settled.pop_front()
    }

    /// When [`Self::poll_publish`] has something to publish again without another event.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.held.next_deadline().filter(|_| self.is_open)
    }

    /// The broker is asked again about exchanges that it has refused: an operator has changed something there.
    pub fn forget_refusals(&mut self) {
        self.refusals.clear();
    }

    /// Messages that have been published and not confirmed.
    pub fn in_flight(&self) -> usize {
        self.in_flight_count
    }

    /// Bytes of the records of all messages that were read and have not left.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that wait after a nack.
    pub fn held(&self) -> usize {
        self.held.size().0
    }

    /// When the oldest message that was read and has not left was accepted, in milliseconds since 1970.
    pub fn oldest(&self) -> Option<u64> {
        let in_flight = self.in_flight.iter().flatten().next();
        let fronts = in_flight.into_iter().chain(self.queued.front()).chain(self.held.fronts());
        fronts.map(|item| item.envelope.accepted_at()).min()
    }

    /// All messages that were read and have not left; their queue has to hand them out again.
    pub fn into_unsettled(self) -> impl Iterator<Item = T> {
        let Self { in_flight, queued, held, .. } = self;
        in_flight.into_iter().flatten().chain(queued).chain(held.into_items()).map(|item| item.handle)
    }

    /// The messages in flight that an answer is for.
    fn take_in_flight(&mut self, delivery_tag: u64, multiple: bool) -> Vec<Item<T>> {
        let last = self.first_tag + self.in_flight.len() as u64;
        let tag = if multiple && delivery_tag == 0 { last.saturating_sub(1) } else { delivery_tag };
        if tag < self.first_tag || tag >= last {
            return Vec::new();
        }
        let end = (tag - self.first_tag) as usize + 1;
        let from = if multiple { 0 } else { end - 1 };
        let items: Vec<_> = self.in_flight.range_mut(from..end).filter_map(Option::take).collect();
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.first_tag += 1;
        }
        self.in_flight_count -= items.len();
        self.in_flight_bytes -= items.iter().map(Item::bytes).sum::<usize>();
        items
    }

    /// Messages without a verdict, in their order, are published again before all others.
    fn put_back(&mut self, mut back: Vec<Item<T>>, now: Instant) {
        for item in back.extract_if(.., |item| item.is_retry) {
            self.held.returned(item, now);
        }
        // After a nack a later message of the destination may have been in flight, and belongs behind it.
        for item in back.into_iter().rev() {
            if let Some(item) = self.held.hold_behind(item) {
                self.queued.push_front(item);
            }
        }
    }

    fn known_refusal(&mut self, item: &Item<T>, now: Instant) -> Option<MessageRefusal> {
        self.refusals.retain(|known| known.until > now);
        let envelope = &item.envelope;
        let concerns = |known: &&KnownRefusal| {
            *known.exchange == *envelope.exchange()
                && known.routing_key.as_ref().is_none_or(|key| **key == *envelope.routing_key())
        };
        self.refusals.iter().find(concerns).map(|known| known.refusal.clone())
    }

    /// Remembers a refusal that is sure to concern other messages.
    fn remember(&mut self, item: &Item<T>, refusal: &MessageRefusal, now: Instant) {
        let envelope = &item.envelope;
        if !refusal.names_exchange_of(envelope) || self.refusals.len() >= MAX_REFUSALS {
            return;
        }
        let routing_key = match refusal.code {
            NOT_FOUND => None,
            // Permissions may depend on the key.
            ACCESS_REFUSED => Some(envelope.routing_key().into()),
            _ => return,
        };
        let (exchange, until) = (envelope.exchange().into(), now + REFUSAL_HOLDS);
        self.refusals.push(KnownRefusal { exchange, routing_key, refusal: refusal.clone(), until });
    }
}

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;

impl MessageRefusal {
    /// Whether another attempt would end the same way, unless somebody changes something at the broker.
    pub fn is_for_good(&self) -> bool {
        // 311, 312 and 313 are of content; 540 is of what the broker does not implement.
        matches!(self.code, 311..=313 | 402 | ACCESS_REFUSED | NOT_FOUND | 405 | 406 | 540)
    }

    /// Whether the text names the message's exchange, as RabbitMQ's do: "no exchange 'orders' in vhost '/'".
    fn names_exchange_of(&self, envelope: &Envelope) -> bool {
        let (before, after) = ("exchange '", "'");
        let name = envelope.exchange();
        self.text.match_indices(before).any(|(at, _)| {
            let rest = &self.text[at + before.len()..];
            rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(after))
        })
    }
}

#[cfg(test)]
mod tests;
