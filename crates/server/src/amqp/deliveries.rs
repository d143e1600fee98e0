//! What a channel has delivered and not yet got settled: delivery tags, prefetch, and the way out to the client.
//!
//! Queues deliver from whatever task publishes; the client's own task settles. Both meet here, under the channel's
//! lock. Lock order: queue, then this, then the connection's line of consumers, then the outbox. So the settling side
//! takes entries out first, and talks to their queues after the lock is released.
//!
//! A channel may have very many consumers, so nothing here looks at all of them. A consumer that cannot take more says
//! so to its queue and waits for what it lacks: credit of its own (then settling one of its deliveries finds it), the
//! channel's credit (in line here), or room in the outbox ([`ConnectionConsumers`]).

mod connection;
mod consumer;
#[cfg(all(test, feature = "loom"))]
mod interleavings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{ConsumerId, Delivery, Leaving, MessageCounts, Passing, Queue, Timestamp};
use slab::Slab;
use sync::Mutex;

use super::content::Destination;

pub(crate) use connection::{Cancelled, ConnectionConsumers};
pub(crate) use consumer::{BasicDeliver, ChannelConsumer, Form};

/// Tombstones are swept out of the list of unsettled deliveries when there are more of them than live entries and
/// this many, so that one delivery that is never settled does not make the list grow for ever.
const TOMBSTONES_KEPT: usize = 64;

/// The delivering side of one channel.
pub(crate) struct Deliveries {
    connection: Arc<ConnectionConsumers>,
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
    /// Consumers that have credit of their own again and wait for the channel's, by the tickets that they drew.
    waiting: BTreeMap<u64, ConsumerKey>,
    next_ticket: u64,
    /// When [`Deliveries::is_overdue`] was asked, and the next delivery tag then, as long as older ones are unsettled.
    marks: VecDeque<(u64, Instant)>,
    /// What was delivered, and acknowledged.
    passing: Passing,
}

/// One consumer's share of the channel.
struct Credit {
    serial: u64,
    /// Deliveries that may be unsettled at once; 0 is no limit.
    limit: usize,
    /// Nothing is to be settled, so no limit applies, the channel's included.
    no_ack: bool,
    unsettled: usize,
    standing: Standing,
    /// It has just been called from the line for room, so that it need not join its end.
    in_turn: bool,
    /// Where to resume it; unknown until the queue has answered the consume.
    registration: Option<(Arc<Queue>, ConsumerId)>,
}

/// Whether a consumer's queue offers messages to it; and if not, as it was told that the consumer is full, what is
/// going to change that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It does.
    Served,
    /// The settlement of one of its own deliveries; for a new consumer, [`Deliveries::activate`].
    Exhausted,
    /// Its turn in [`Inner::waiting`], under this ticket.
    Waiting(u64),
    /// Its turn in the connection's line, under this ticket.
    OutOfRoom(u64),
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

impl Deliveries {
    pub(crate) fn new(connection: Arc<ConnectionConsumers>, destination: Destination) -> Self {
        let inner = Inner {
            next_tag: 1,
            unsettled: VecDeque::new(),
            unsettled_count: 0,
            consumed_count: 0,
            channel_limit: 0,
            consumers: Slab::new(),
            next_serial: 0,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            marks: VecDeque::new(),
            passing: Passing::default(),
        };
        Self { connection, destination, inner: Mutex::new(inner) }
    }

    /// The same, but for the first delivery tag.
    pub(crate) fn starting_at(self, delivery_tag: u64) -> Self {
        self.inner.lock().next_tag = delivery_tag;
        self
    }

    /// The delivery tag that is given out next.
    pub(crate) fn next_tag(&self) -> u64 {
        self.inner.lock().next_tag
    }

    /// The number of the channel.
    pub(crate) fn channel(&self) -> u16 {
        self.destination.channel
    }

    /// How many consumers there are, and unsettled deliveries.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.consumers.len(), inner.unsettled_count)
    }

    /// Makes a place for a consumer, full until [`Deliveries::activate`]. `limit` 0 is no limit.
    pub(crate) fn add_consumer(&self, limit: usize, no_ack: bool) -> ConsumerKey {
        let mut inner = self.inner.lock();
        let serial = inner.next_serial;
        inner.next_serial += 1;
        let standing = Standing::Exhausted;
        let credit =
            Credit { serial, limit, no_ack, unsettled: 0, standing, in_turn: false, registration: None };
        ConsumerKey { place: inner.consumers.insert(credit), serial }
    }

    /// The queue has taken the consumer. The caller then resumes it.
    pub(crate) fn activate(&self, key: ConsumerKey, queue: &Arc<Queue>, id: ConsumerId) {
        let mut inner = self.inner.lock();
        if let Some(credit) = inner.credit_mut(key) {
            credit.registration = Some((Arc::clone(queue), id));
            credit.standing = Standing::Served;
        }
    }

    /// Forgets a consumer, which its queue has let go. What it was delivered stays unsettled.
    pub(crate) fn remove_consumer(&self, key: ConsumerKey) {
        let mut inner = self.inner.lock();
        if inner.credit_mut(key).is_none() {
            return;
        }
        match inner.consumers.remove(key.place).standing {
            Standing::Waiting(ticket) => _ = inner.waiting.remove(&ticket),
            Standing::OutOfRoom(ticket) => self.connection.leave(ticket),
            Standing::Served | Standing::Exhausted => {}
        }
    }

    /// Sets the limit of the whole channel; 0 is none. The caller then [resumes](Self::resume).
    pub(crate) fn set_channel_limit(&self, limit: usize) {
        self.inner.lock().channel_limit = limit;
    }

    /// Lets the consumers that lacked credit have messages again, one after the other until the channel's credit is used
    /// up. Called without any lock held, after whatever gives credit back.
    pub(crate) fn resume(&self, now: Timestamp) {
        loop {
            let mut inner = self.inner.lock();
            let next = inner.next_with_credit();
            // Only this task gives credit back, so who joins the line meanwhile has found none.
            let more = !inner.waiting.is_empty();
            drop(inner);
            let Some((queue, id)) = next else { return };
            queue.resume(id, now);
            if !more {
                return;
            }
        }
    }

    /// The consumer's turn in the connection's line has come.
    fn resume_in_turn(&self, key: ConsumerKey, now: Timestamp) {
        let mut inner = self.inner.lock();
        let Some(credit) = inner.credit_mut(key) else { return };
        credit.standing = Standing::Served;
        credit.in_turn = true;
        let registration = credit.registration.clone();
        drop(inner);
        if let Some((queue, id)) = registration {
            queue.resume(id, now);
        }
    }

    /// What was delivered and acknowledged, as of `now`; `None` if nothing ever was.
    pub(crate) fn passed(&self, now: Timestamp) -> Option<MessageCounts> {
        self.inner.lock().passing.read(now)
    }

    /// Counts what no other call does.
    pub(crate) fn count(&self, leaving: Leaving, now: Timestamp) {
        self.inner.lock().passing.add(0, leaving, now);
    }

    /// Takes the next delivery tag for a basic.get, and remembers the delivery unless `no_ack`.
    pub(crate) fn register_get(
        &self,
        queue: &Arc<Queue>,
        delivery: &Delivery,
        no_ack: bool,
        now: Timestamp,
    ) -> u64 {
        let mut inner = self.inner.lock();
        inner.passing.add(0, Leaving::got(no_ack, delivery.redelivered()), now);
        let tag = inner.take_tag();
        if !no_ack {
            let entry = Unsettled { queue: Arc::clone(queue), delivery: delivery.clone(), consumer: None };
            inner.push(tag, entry);
        }
        tag
    }

    /// Takes out one delivery, or with `multiple` all up to `tag` (all there are, for tag 0). `None` for a tag that is
    /// not outstanding. They count as acknowledged, if they are, at `acked_at`. The caller gives the deliveries back to their
    /// queues, and then [resumes](Self::resume).
    pub(crate) fn settle(
        &self,
        tag: u64,
        multiple: bool,
        acked_at: Option<Timestamp>,
    ) -> Option<Vec<(u64, Unsettled)>> {
        let mut inner = self.inner.lock();
        let settled = inner.take(tag, multiple)?;
        if let Some(now) = acked_at {
            inner.passing.add(0, Leaving::acked(settled.len()), now);
        }
        inner.release(&settled);
        Some(settled)
    }

    /// Like [`Deliveries::settle`], but their credit is not given back yet: for a transaction, whose commit calls
    /// [`Deliveries::release`] and whose rollback [`Deliveries::restore`].
    pub(crate) fn hold(&self, tag: u64, multiple: bool) -> Option<Vec<(u64, Unsettled)>> {
        self.inner.lock().take(tag, multiple)
    }

    /// Gives back the credit of what was held. The caller then [resumes](Self::resume).
    pub(crate) fn release(&self, held: &[(u64, Unsettled)]) {
        self.inner.lock().release(held);
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

    /// Takes out everything, for recover and close. As after [`Deliveries::settle`], the caller has more to do.
    pub(crate) fn take_all(&self) -> Vec<(u64, Unsettled)> {
        let mut inner = self.inner.lock();
        let taken = inner.take_up_to(0).unwrap_or_default();
        inner.release(&taken);
        taken
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

    /// Whether the channel's limit lets a delivery pass.
    fn channel_has_credit(&self) -> bool {
        self.channel_limit == 0 || self.consumed_count < self.channel_limit
    }

    /// A consumer that was removed has none.
    fn has_credit(&self, key: ConsumerKey) -> bool {
        self.consumers.get(key.place).is_some_and(|credit| {
            credit.serial == key.serial && (credit.no_ack || credit.has_own() && self.channel_has_credit())
        })
    }

    /// Notes that a consumer was refused a message for want of credit.
    fn exhaust(&mut self, key: ConsumerKey) {
        let Some(credit) = self.credit_mut(key) else { return };
        if credit.has_own() {
            self.wait(key);
        } else {
            credit.standing = Standing::Exhausted;
        }
    }

    /// Puts a consumer at the end of the line for the channel's credit.
    fn wait(&mut self, key: ConsumerKey) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(credit) = self.credit_mut(key) {
            credit.standing = Standing::Waiting(ticket);
            self.waiting.insert(ticket, key);
        }
    }

    /// Takes the next consumer out of the line for the channel's credit, if there is any left.
    fn next_with_credit(&mut self) -> Option<(Arc<Queue>, ConsumerId)> {
        if !self.channel_has_credit() {
            return None;
        }
        let (_, key) = self.waiting.pop_first()?;
        let credit = self.credit_mut(key)?;
        credit.standing = Standing::Served;
        credit.registration.clone()
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
                if credit.standing == Standing::Exhausted && credit.has_own() {
                    self.wait(key);
                }
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
}

impl Credit {
    /// Whether its own limit, be there one, lets a delivery pass.
    fn has_own(&self) -> bool {
        self.limit == 0 || self.unsettled < self.limit
    }
}
