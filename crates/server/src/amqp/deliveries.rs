//! What a channel has delivered and not yet got settled: delivery tags, prefetch, and the way out to the client.
//!
//! Queues deliver from whatever task publishes; the client's own task settles. Both meet here, under the channel's
//! lock. Lock order: queue, then this, then the outbox. So the settling side takes entries out first, and talks to
//! their queues after the lock is released.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Consumer, ConsumerId, Delivery, Offer, Queue, Room};
use parking_lot::Mutex;
use slab::Slab;
use transport::Outbox;

use super::content::{Destination, write_deliver};

/// Tombstones are swept out of the list of unsettled deliveries when there are more of them than live entries and
/// this many, so that one delivery that is never settled does not make the list grow for ever.
const TOMBSTONES_KEPT: usize = 64;

/// The delivering side of one channel.
pub(crate) struct Deliveries {
    outbox: Arc<Outbox>,
    destination: Destination,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The next delivery tag; the first is 1.
    next_tag: u64,
    /// By rising delivery tag. Settled entries leave a tombstone until they reach the front.
    unsettled: VecDeque<(u64, Option<Unsettled>)>,
    /// Live entries of `unsettled`.
    unsettled_count: usize,
    /// Deliveries through consumers whose credit has not been given back: what `channel_limit` limits. Settlements of
    /// an open transaction still count.
    consumed_count: usize,
    /// basic.qos with global=true; 0 is no limit.
    channel_limit: usize,
    consumers: Slab<Credit>,
    /// Serial number of the next consumer.
    next_serial: u64,
    /// Consumers whose queue was told that they are full.
    full_count: usize,
    /// When [`Deliveries::is_overdue`] was asked, and the next delivery tag then, as long as older ones are unsettled.
    marks: VecDeque<(u64, Instant)>,
}

/// One consumer's share of the channel.
struct Credit {
    serial: u64,
    /// Deliveries that may be unsettled at once; 0 is no limit.
    limit: usize,
    /// Nothing is to be settled, so no limit applies, the channel's included.
    no_ack: bool,
    unsettled: usize,
    /// The queue was told that there is no room, and waits for [`Queue::resume`].
    full: bool,
    /// Where to resume it; unknown until the queue has answered the consume.
    registration: Option<(Arc<Queue>, ConsumerId)>,
}

/// A delivery on its way to being settled.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) queue: Arc<Queue>,
    pub(crate) delivery: Delivery,
    /// The consumer that it came through; `None` for basic.get.
    consumer: Option<ConsumerKey>,
}

/// A consumer of a channel. Places are used again, serial numbers are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConsumerKey {
    place: usize,
    serial: u64,
}

/// Consumers that have room again.
pub(crate) type Resumable = Vec<(Arc<Queue>, ConsumerId)>;

/// A consumer as its queue sees it.
pub(crate) struct ChannelConsumer {
    pub(crate) deliveries: Arc<Deliveries>,
    pub(crate) key: ConsumerKey,
    pub(crate) tag: Box<str>,
    pub(crate) no_ack: bool,
    pub(crate) queue: Arc<Queue>,
    pub(crate) cancellations: Arc<Cancellations>,
}

/// Consumers that the broker cancelled, for the connection's own task to tell its client.
#[derive(Default)]
pub(crate) struct Cancellations(Mutex<Vec<(Arc<Deliveries>, ConsumerKey)>>);

impl Cancellations {
    /// The channel and key of each.
    pub(crate) fn take(&self) -> Vec<(Arc<Deliveries>, ConsumerKey)> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Deliveries {
    pub(crate) fn new(outbox: Arc<Outbox>, destination: Destination) -> Self {
        let inner = Inner {
            next_tag: 1,
            unsettled: VecDeque::new(),
            unsettled_count: 0,
            consumed_count: 0,
            channel_limit: 0,
            consumers: Slab::new(),
            next_serial: 0,
            full_count: 0,
            marks: VecDeque::new(),
        };
        Self { outbox, destination, inner: Mutex::new(inner) }
    }

    /// The number of the channel.
    pub(crate) fn channel(&self) -> u16 {
        self.destination.channel
    }

    /// Makes a place for a consumer, full until [`Deliveries::activate`]. `limit` 0 is no limit.
    pub(crate) fn add_consumer(&self, limit: usize, no_ack: bool) -> ConsumerKey {
        let mut inner = self.inner.lock();
        let serial = inner.next_serial;
        inner.next_serial += 1;
        inner.full_count += 1;
        let credit = Credit { serial, limit, no_ack, unsettled: 0, full: true, registration: None };
        ConsumerKey { place: inner.consumers.insert(credit), serial }
    }

    /// The queue has taken the consumer. The caller then resumes it.
    pub(crate) fn activate(&self, key: ConsumerKey, queue: &Arc<Queue>, id: ConsumerId) {
        let mut inner = self.inner.lock();
        if let Some(credit) = inner.credit_mut(key) {
            credit.registration = Some((Arc::clone(queue), id));
        }
        inner.set_full(key, false);
    }

    /// Forgets a consumer, which its queue has let go. What it was delivered stays unsettled.
    pub(crate) fn remove_consumer(&self, key: ConsumerKey) {
        let mut inner = self.inner.lock();
        inner.set_full(key, false);
        if inner.credit_mut(key).is_some() {
            inner.consumers.remove(key.place);
        }
    }

    /// Sets the limit of the whole channel; 0 is none.
    pub(crate) fn set_channel_limit(&self, limit: usize) -> Resumable {
        let mut inner = self.inner.lock();
        inner.channel_limit = limit;
        inner.resumable()
    }

    /// Consumers that were full and are not any more; after the outbox has room again.
    pub(crate) fn resumable(&self) -> Resumable {
        self.inner.lock().resumable()
    }

    /// Takes the next delivery tag for a basic.get, and remembers the delivery unless `no_ack`.
    pub(crate) fn register_get(&self, queue: &Arc<Queue>, delivery: &Delivery, no_ack: bool) -> u64 {
        let mut inner = self.inner.lock();
        let tag = inner.take_tag();
        if !no_ack {
            let entry = Unsettled { queue: Arc::clone(queue), delivery: delivery.clone(), consumer: None };
            inner.push(tag, entry);
        }
        tag
    }

    /// Takes out one delivery, or with `multiple` all up to `tag` (all there are, for tag 0). `None` for a tag that is
    /// not outstanding.
    pub(crate) fn settle(&self, tag: u64, multiple: bool) -> Option<(Vec<(u64, Unsettled)>, Resumable)> {
        let mut inner = self.inner.lock();
        let settled = inner.take(tag, multiple)?;
        inner.release(&settled);
        let resumable = inner.resumable();
        Some((settled, resumable))
    }

    /// Like [`Deliveries::settle`], but their credit is not given back yet: for a transaction, whose commit calls
    /// [`Deliveries::release`] and whose rollback [`Deliveries::restore`].
    pub(crate) fn hold(&self, tag: u64, multiple: bool) -> Option<Vec<(u64, Unsettled)>> {
        self.inner.lock().take(tag, multiple)
    }

    /// Gives back the credit of what was held.
    pub(crate) fn release(&self, held: &[(u64, Unsettled)]) -> Resumable {
        let mut inner = self.inner.lock();
        inner.release(held);
        inner.resumable()
    }

    /// Whether the oldest delivery has been unsettled for `timeout`. Asked now and then, it remembers how far deliveries
    /// had got, which tells their age without noting the time of each; the answer is late by an interval at most.
    pub(crate) fn is_overdue(&self, now: Instant, timeout: Duration) -> bool {
        let mut inner = self.inner.lock();
        let oldest = inner.unsettled.front().map_or(u64::MAX, |(tag, _)| *tag);
        while inner.marks.front().is_some_and(|(next_tag, _)| *next_tag <= oldest) {
            inner.marks.pop_front();
        }
        let next_tag = inner.next_tag;
        if oldest < next_tag && inner.marks.back().is_none_or(|(marked, _)| *marked < next_tag) {
            inner.marks.push_back((next_tag, now));
        }
        inner.marks.front().is_some_and(|(_, since)| now.saturating_duration_since(*since) >= timeout)
    }

    /// Whether anything has been delivered, or may be at any time, that has to be settled.
    pub(crate) fn is_in_use(&self) -> bool {
        let inner = self.inner.lock();
        inner.unsettled_count > 0 || inner.consumers.iter().any(|(_, credit)| !credit.no_ack)
    }

    /// Takes out everything, for recover and close.
    pub(crate) fn take_all(&self) -> (Vec<(u64, Unsettled)>, Resumable) {
        let mut inner = self.inner.lock();
        let taken = inner.take_up_to(0).unwrap_or_default();
        inner.release(&taken);
        let resumable = inner.resumable();
        (taken, resumable)
    }

    /// Puts back what was held.
    pub(crate) fn restore(&self, entries: Vec<(u64, Unsettled)>) {
        let mut inner = self.inner.lock();
        for (tag, entry) in entries {
            inner.unsettled_count += 1;
            let at = inner.unsettled.partition_point(|(other, _)| *other < tag);
            match inner.unsettled.get_mut(at) {
                Some((other, slot)) if *other == tag => *slot = Some(entry),
                _ => inner.unsettled.insert(at, (tag, Some(entry))),
            }
        }
    }
}

impl Inner {
    fn take_tag(&mut self) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        tag
    }

    fn credit_mut(&mut self, key: ConsumerKey) -> Option<&mut Credit> {
        self.consumers.get_mut(key.place).filter(|credit| credit.serial == key.serial)
    }

    fn set_full(&mut self, key: ConsumerKey, full: bool) {
        if let Some(credit) = self.credit_mut(key)
            && std::mem::replace(&mut credit.full, full) != full
        {
            self.full_count = self.full_count.wrapping_add_signed(if full { 1 } else { -1 });
        }
    }

    /// A consumer that was removed has none.
    fn has_credit(&self, key: ConsumerKey) -> bool {
        self.consumers.get(key.place).is_some_and(|credit| {
            credit.serial == key.serial
                && (credit.no_ack
                    || (credit.limit == 0 || credit.unsettled < credit.limit)
                        && (self.channel_limit == 0 || self.consumed_count < self.channel_limit))
        })
    }

    fn push(&mut self, tag: u64, entry: Unsettled) {
        if let Some(key) = entry.consumer {
            self.consumed_count += 1;
            if let Some(credit) = self.credit_mut(key) {
                credit.unsettled += 1;
            }
        }
        self.unsettled_count += 1;
        self.unsettled.push_back((tag, Some(entry)));
    }

    /// Gives back the credit of deliveries that were taken out.
    fn release(&mut self, taken: &[(u64, Unsettled)]) {
        for key in taken.iter().filter_map(|(_, entry)| entry.consumer) {
            self.consumed_count -= 1;
            if let Some(credit) = self.credit_mut(key) {
                credit.unsettled -= 1;
            }
        }
    }

    fn take(&mut self, tag: u64, multiple: bool) -> Option<Vec<(u64, Unsettled)>> {
        if multiple { self.take_up_to(tag) } else { Some(vec![(tag, self.take_one(tag)?)]) }
    }

    fn take_one(&mut self, tag: u64) -> Option<Unsettled> {
        let at = match self.unsettled.front() {
            Some((front, _)) if *front == tag => 0,
            _ => self.unsettled.binary_search_by_key(&tag, |(other, _)| *other).ok()?,
        };
        let entry = self.unsettled[at].1.take()?;
        self.unsettled_count -= 1;
        while self.unsettled.front().is_some_and(|(_, entry)| entry.is_none()) {
            self.unsettled.pop_front();
        }
        if self.unsettled.len() > 2 * self.unsettled_count + TOMBSTONES_KEPT {
            self.unsettled.retain(|(_, entry)| entry.is_some());
        }
        Some(entry)
    }

    /// `None` when `tag` is not outstanding itself, whatever is below it: so RabbitMQ has it.
    fn take_up_to(&mut self, tag: u64) -> Option<Vec<(u64, Unsettled)>> {
        let end = if tag == 0 {
            self.unsettled.len()
        } else {
            let at = self.unsettled.binary_search_by_key(&tag, |(other, _)| *other).ok()?;
            self.unsettled[at].1.as_ref()?;
            at + 1
        };
        let taken: Vec<_> =
            self.unsettled.drain(..end).filter_map(|(tag, entry)| Some((tag, entry?))).collect();
        self.unsettled_count -= taken.len();
        Some(taken)
    }

    fn resumable(&mut self) -> Resumable {
        if self.full_count == 0 {
            return Vec::new();
        }
        let full: Vec<ConsumerKey> = self
            .consumers
            .iter()
            .filter(|(_, credit)| credit.full)
            .map(|(place, credit)| ConsumerKey { place, serial: credit.serial })
            .collect();
        let mut resumable = Vec::new();
        for key in full {
            if self.has_credit(key)
                && let Some(registration) = self.consumers[key.place].registration.clone()
            {
                self.set_full(key, false);
                resumable.push(registration);
            }
        }
        resumable
    }
}

impl Consumer for ChannelConsumer {
    fn accept(&self, offer: &mut Offer<'_>) -> Room {
        let outbox = &self.deliveries.outbox;
        let kind = self.queue.kind();
        let mut inner = self.deliveries.inner.lock();
        loop {
            // Asked before each round: a no leaves word with the outbox, so that the session is called when it has
            // room again.
            if !outbox.has_room() || !inner.has_credit(self.key) {
                inner.set_full(self.key, true);
                return Room::Full;
            }
            let allowance = outbox.limit().saturating_sub(outbox.backlog());
            let emptied = outbox.append(|buf| {
                let start = buf.len();
                while buf.len() - start <= allowance && inner.has_credit(self.key) {
                    let Some(delivery) = offer.next() else { return true };
                    let tag = inner.take_tag();
                    write_deliver(buf, self.deliveries.destination, &self.tag, tag, &delivery, kind);
                    if !self.no_ack {
                        let queue = Arc::clone(&self.queue);
                        inner.push(tag, Unsettled { queue, delivery, consumer: Some(self.key) });
                    }
                }
                false
            });
            match emptied {
                Some(true) => return Room::More,
                Some(false) => {}
                // The connection has ended; its session will cancel the consumer.
                None => return Room::Full,
            }
        }
    }

    fn cancelled(&self) {
        self.cancellations.0.lock().push((Arc::clone(&self.deliveries), self.key));
        self.deliveries.outbox.nudge();
    }
}
