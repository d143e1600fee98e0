//! A channel's unsettled deliveries: delivery tags, prefetch, and the delivery to the client.
//!
//! Queues deliver from whichever task publishes; the client's own task settles. Both synchronise here on the
//! channel's lock, which is taken below a queue's (ARCHITECTURE.md, "Lock order"). So the settling side removes
//! entries first, and calls their queues after it has released the lock.
//!
//! A channel may have very many consumers, so nothing here iterates over all of them. A consumer that cannot take more
//! tells its queue so. It then waits for its own credit (until one of its deliveries is settled), for the channel's
//! credit (in a wait queue here), or for outbox capacity ([`ConnectionConsumers`]).

mod committed;
mod connection;
mod consumer;
mod departure;
mod inner;
#[cfg(feature = "loom")]
pub mod loom_models;
mod settlement;
#[cfg(test)]
mod tests;
mod traces;

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{ConsumerId, Delivery, DequeueCounts, MessageCounts, Queue, Timestamp};
use sync::{Mutex, Rank};

use super::content::Destination;

pub(crate) use committed::{CommittedSettlements, HeldSettlement};
pub(crate) use connection::{Cancelled, ConnectionConsumers};
pub(crate) use consumer::{BasicDeliver, ChannelConsumer, Form};
pub(crate) use departure::ChannelTeardown;
pub(crate) use inner::Settling;
use inner::{Credit, DeliveringChannel, Standing, UsedCredit};
pub(crate) use settlement::{DeliverySettlement, SETTLEMENT, Settlement};
pub(crate) use traces::{TracePublisher, Traces};

/// The delivering side of one channel.
pub(crate) struct Deliveries {
    connection: Arc<ConnectionConsumers>,
    destination: Destination,
    /// Allocated for the first consumer or basic.get, since very many channels may only publish or be idle.
    inner: Mutex<Option<Box<DeliveringChannel>>, { Rank::ChannelDeliveries as u8 }>,
}

/// A delivery that is not settled yet.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) queue: Arc<Queue>,
    pub(crate) delivery: Delivery,
    /// The consumer that it was delivered to; `None` for basic.get.
    consumer: Option<ConsumerKey>,
}

/// A consumer of a channel. Slots are reused, serial numbers are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConsumerKey {
    place: usize,
    serial: u64,
}

impl Deliveries {
    pub(crate) fn new(connection: Arc<ConnectionConsumers>, destination: Destination) -> Self {
        Self { connection, destination, inner: Mutex::default() }
    }

    /// Sets the first delivery tag, which is 1 or more.
    pub(crate) fn starting_at(self, delivery_tag: u64) -> Self {
        self.inner.lock().get_or_insert_default().last_tag = delivery_tag - 1;
        self
    }

    /// The next delivery tag to be assigned.
    pub(crate) fn next_tag(&self) -> u64 {
        self.inner.lock().as_ref().map_or(0, |inner| inner.last_tag) + 1
    }

    /// The number of the channel.
    pub(crate) fn channel(&self) -> u16 {
        self.destination.channel
    }

    /// The numbers of consumers and of unsettled deliveries.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        inner.as_ref().map_or((0, 0), |inner| (inner.consumers.len(), inner.unsettled_count))
    }

    /// Adds a consumer, which accepts nothing until [`Deliveries::activate`]. A `limit` of 0 means no limit.
    pub(crate) fn add_consumer(&self, limit: usize, settling: Settling) -> ConsumerKey {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        if inner.consumers.capacity() == 0 {
            // Most channels that consume have one consumer.
            inner.consumers.reserve_exact(1);
        }
        let serial = inner.next_serial;
        inner.next_serial += 1;
        let standing = Standing::Exhausted;
        let credit =
            Credit { serial, limit, settling, unsettled: 0, standing, in_turn: false, registration: None };
        ConsumerKey { place: inner.consumers.insert(credit), serial }
    }

    /// Called when the queue has accepted the consumer. The caller then resumes it.
    pub(crate) fn activate(&self, key: ConsumerKey, queue: &Arc<Queue>, id: ConsumerId) {
        let mut inner = self.inner.lock();
        if let Some(credit) = inner.as_mut().and_then(|inner| inner.credit_mut(key)) {
            credit.registration = Some((Arc::clone(queue), id));
            credit.standing = Standing::Served;
        }
    }

    /// Removes a consumer that its queue has released. Its deliveries stay unsettled.
    pub(crate) fn remove_consumer(&self, key: ConsumerKey) {
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_mut().filter(|inner| inner.has(key)) else { return };
        match inner.consumers.remove(key.place).standing {
            Standing::Waiting(ticket) => _ = inner.waiting.remove(&ticket),
            Standing::OutboxFull(ticket) => self.connection.leave(ticket),
            Standing::Served | Standing::Exhausted => {}
        }
    }

    /// Sets the limit of the whole channel; 0 is none. The caller then [resumes](Self::resume).
    pub(crate) fn set_channel_limit(&self, limit: usize) {
        self.inner.lock().get_or_insert_default().channel_limit = limit;
    }

    /// Resumes consumers that lacked credit, one after another, until the channel's credit is used up. Called without any
    /// lock, after credit was returned.
    pub(crate) fn resume(&self, now: Timestamp) {
        loop {
            let mut lock = self.inner.lock();
            let Some(inner) = lock.as_mut() else { return };
            let next = inner.next_with_credit();
            // Only this task returns credit, so a consumer that starts to wait meanwhile has found none.
            let more = !inner.waiting.is_empty();
            drop(lock);
            let Some((queue, id)) = next else { return };
            queue.resume(id, now);
            if !more {
                return;
            }
        }
    }

    /// Resumes a consumer whose turn in the connection's wait queue has come.
    fn resume_in_turn(&self, key: ConsumerKey, now: Timestamp) {
        let mut lock = self.inner.lock();
        let Some(credit) = lock.as_mut().and_then(|inner| inner.credit_mut(key)) else { return };
        credit.standing = Standing::Served;
        credit.in_turn = true;
        let registration = credit.registration.clone();
        drop(lock);
        if let Some((queue, id)) = registration {
            queue.resume(id, now);
        }
    }

    /// Counts of deliveries and acknowledgements as of `now`; `None` if there were none.
    pub(crate) fn passed(&self, now: Timestamp) -> Option<MessageCounts> {
        self.inner.lock().as_ref()?.passing.read(now)
    }

    /// Counts an event that no other call counts.
    pub(crate) fn count(&self, leaving: DequeueCounts, now: Timestamp) {
        self.inner.lock().get_or_insert_default().passing.add(0, leaving, now);
    }

    /// Takes the next delivery tag for a basic.get, and records the delivery unless `no_ack`.
    pub(crate) fn register_get(
        &self,
        queue: &Arc<Queue>,
        delivery: &Delivery,
        no_ack: bool,
        now: Timestamp,
    ) -> u64 {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        inner.passing.add(0, DequeueCounts::got(no_ack, delivery.redelivered()), now);
        let tag = inner.take_tag();
        if !no_ack {
            let entry = Unsettled { queue: Arc::clone(queue), delivery: delivery.clone(), consumer: None };
            inner.push(tag, entry);
        }
        tag
    }

    /// Removes one delivery, or with `multiple` all up to `tag` (all of them for tag 0). Returns `None` for a
    /// tag that is not outstanding. Acknowledged ones are counted at `acked_at`. The caller then settles them in this way,
    /// by [`DeliverySettlement::apply`].
    pub(crate) fn settle(
        &self,
        tag: u64,
        multiple: bool,
        how: DeliverySettlement,
        acked_at: Option<Timestamp>,
    ) -> Option<Vec<(u64, Unsettled)>> {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        let settled = inner.take(tag, multiple)?;
        if let Some(now) = acked_at {
            inner.passing.add(0, DequeueCounts::acked(settled.len()), now);
        }
        if !how.keeps_credit() {
            inner.release(&settled);
        }
        Some(settled)
    }

    /// Like [`Deliveries::settle`], but keeps their credit: for a transaction, whose commit calls [`Deliveries::release`]
    /// before it settles them, and whose rollback calls [`Deliveries::restore`].
    pub(crate) fn hold(&self, tag: u64, multiple: bool) -> Option<Vec<(u64, Unsettled)>> {
        self.inner.lock().get_or_insert_default().take(tag, multiple)
    }

    /// Gives back the credit of deliveries taken with `hold` which are to be settled in this way, unless that comes after.
    /// Acknowledged ones are counted.
    fn release(&self, held: &[(u64, Unsettled)], how: DeliverySettlement, now: Timestamp) {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        if how == DeliverySettlement::Ack {
            inner.passing.add(0, DequeueCounts::acked(held.len()), now);
        }
        if !how.keeps_credit() {
            inner.release(held);
        }
    }

    /// Gives back the credit of deliveries that have been requeued.
    fn give_back(&self, used: &UsedCredit) {
        let mut inner = self.inner.lock();
        if let Some(inner) = inner.as_mut() {
            used.iter().for_each(|(key, count)| inner.give_back(key, count));
        }
    }

    /// Whether the oldest delivery has been unsettled for `timeout`. Each call records the next delivery tag, which
    /// bounds the age of later deliveries without a timestamp for each. So the answer is late by at most one interval
    /// between calls.
    pub(crate) fn is_overdue(&self, now: Instant, timeout: Duration) -> bool {
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_mut() else { return false };
        let oldest = inner.unsettled.front().map_or(u64::MAX, |(tag, _)| *tag);
        while inner.marks.front().is_some_and(|(next_tag, _)| *next_tag <= oldest) {
            inner.marks.pop_front();
        }
        let next_tag = inner.last_tag + 1;
        if oldest < next_tag && inner.marks.back().is_none_or(|(marked, _)| *marked < next_tag) {
            inner.marks.push_back((next_tag, now));
        }
        inner.marks.front().is_some_and(|(_, since)| now.saturating_duration_since(*since) >= timeout)
    }

    /// Whether the client has deliveries to settle, or consumers that may get some.
    pub(crate) fn is_in_use(&self) -> bool {
        self.inner.lock().as_ref().is_some_and(|inner| {
            inner.unsettled_count > 0
                || inner.consumers.iter().any(|(_, credit)| credit.settling == Settling::Client)
        })
    }

    /// Removes all consumers and all deliveries, at the end of the channel, and adds the deliveries to `teardown`. The
    /// consumers take nothing any more, but their queues keep them until the deliveries have been returned.
    pub(crate) fn close(&self, teardown: &mut ChannelTeardown) {
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_mut() else { return };
        for credit in inner.consumers.drain() {
            if let Standing::OutboxFull(ticket) = credit.standing {
                self.connection.leave(ticket);
            }
        }
        inner.waiting.clear();
        let (count, unsettled) = inner.take_at_end();
        teardown.add(count, unsettled.into_iter().filter_map(|(_, entry)| entry));
    }

    /// Puts back deliveries taken with `hold`.
    pub(crate) fn restore(&self, entries: Vec<(u64, Unsettled)>) {
        if !entries.is_empty() {
            self.inner.lock().get_or_insert_default().restore(entries);
        }
    }
}
