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
mod inner;
#[cfg(all(test, feature = "loom"))]
mod interleavings;
#[cfg(test)]
mod tests;
mod traces;

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{ConsumerId, Delivery, Leaving, MessageCounts, Queue, Timestamp};
use sync::Mutex;

use super::content::Destination;

pub(crate) use connection::{Cancelled, ConnectionConsumers};
pub(crate) use consumer::{BasicDeliver, ChannelConsumer, Form};
pub(crate) use inner::Settling;
use inner::{Credit, Inner, Standing};
pub(crate) use traces::{TracePublisher, Traces};

/// The delivering side of one channel.
pub(crate) struct Deliveries {
    connection: Arc<ConnectionConsumers>,
    destination: Destination,
    /// Made when a consumer comes, or something is got: very many channels may be open that only publish, or rest.
    inner: Mutex<Option<Box<Inner>>>,
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
        Self { connection, destination, inner: Mutex::default() }
    }

    /// The same, but for the first delivery tag, which is 1 or more.
    pub(crate) fn starting_at(self, delivery_tag: u64) -> Self {
        self.inner.lock().get_or_insert_default().last_tag = delivery_tag - 1;
        self
    }

    /// The delivery tag that is given out next.
    pub(crate) fn next_tag(&self) -> u64 {
        self.inner.lock().as_ref().map_or(0, |inner| inner.last_tag) + 1
    }

    /// The number of the channel.
    pub(crate) fn channel(&self) -> u16 {
        self.destination.channel
    }

    /// How many consumers there are, and unsettled deliveries.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        inner.as_ref().map_or((0, 0), |inner| (inner.consumers.len(), inner.unsettled_count))
    }

    /// Makes a place for a consumer, full until [`Deliveries::activate`]. `limit` 0 is no limit.
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

    /// The queue has taken the consumer. The caller then resumes it.
    pub(crate) fn activate(&self, key: ConsumerKey, queue: &Arc<Queue>, id: ConsumerId) {
        let mut inner = self.inner.lock();
        if let Some(credit) = inner.as_mut().and_then(|inner| inner.credit_mut(key)) {
            credit.registration = Some((Arc::clone(queue), id));
            credit.standing = Standing::Served;
        }
    }

    /// Forgets a consumer, which its queue has let go. What it was delivered stays unsettled.
    pub(crate) fn remove_consumer(&self, key: ConsumerKey) {
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_mut().filter(|inner| inner.has(key)) else { return };
        match inner.consumers.remove(key.place).standing {
            Standing::Waiting(ticket) => _ = inner.waiting.remove(&ticket),
            Standing::OutOfRoom(ticket) => self.connection.leave(ticket),
            Standing::Served | Standing::Exhausted => {}
        }
    }

    /// Sets the limit of the whole channel; 0 is none. The caller then [resumes](Self::resume).
    pub(crate) fn set_channel_limit(&self, limit: usize) {
        self.inner.lock().get_or_insert_default().channel_limit = limit;
    }

    /// Lets the consumers that lacked credit have messages again, one after the other until the channel's credit is used
    /// up. Called without any lock held, after whatever gives credit back.
    pub(crate) fn resume(&self, now: Timestamp) {
        loop {
            let mut lock = self.inner.lock();
            let Some(inner) = lock.as_mut() else { return };
            let next = inner.next_with_credit();
            // Only this task gives credit back, so who joins the line meanwhile has found none.
            let more = !inner.waiting.is_empty();
            drop(lock);
            let Some((queue, id)) = next else { return };
            queue.resume(id, now);
            if !more {
                return;
            }
        }
    }

    /// The consumer's turn in the connection's line has come.
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

    /// What was delivered and acknowledged, as of `now`; `None` if nothing ever was.
    pub(crate) fn passed(&self, now: Timestamp) -> Option<MessageCounts> {
        self.inner.lock().as_ref()?.passing.read(now)
    }

    /// Counts what no other call does.
    pub(crate) fn count(&self, leaving: Leaving, now: Timestamp) {
        self.inner.lock().get_or_insert_default().passing.add(0, leaving, now);
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
        let inner = inner.get_or_insert_default();
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
        let inner = inner.get_or_insert_default();
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
        self.inner.lock().get_or_insert_default().take(tag, multiple)
    }

    /// Gives back the credit of what was held. The caller then [resumes](Self::resume).
    pub(crate) fn release(&self, held: &[(u64, Unsettled)]) {
        self.inner.lock().get_or_insert_default().release(held);
    }

    /// Whether the oldest delivery has been unsettled for `timeout`. Asked now and then, it remembers how far deliveries
    /// had got, which tells their age without noting the time of each; the answer is late by an interval at most.
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

    /// Whether anything has been delivered, or may be at any time, that has to be settled.
    pub(crate) fn is_in_use(&self) -> bool {
        self.inner.lock().as_ref().is_some_and(|inner| {
            inner.unsettled_count > 0
                || inner.consumers.iter().any(|(_, credit)| credit.settling == Settling::Client)
        })
    }

    /// Takes out everything, for recover and close. As after [`Deliveries::settle`], the caller has more to do.
    pub(crate) fn take_all(&self) -> Vec<(u64, Unsettled)> {
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_mut() else { return Vec::new() };
        let taken = inner.take_up_to(0).unwrap_or_default();
        inner.release(&taken);
        taken
    }

    /// Puts back what was held.
    pub(crate) fn restore(&self, entries: Vec<(u64, Unsettled)>) {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
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
