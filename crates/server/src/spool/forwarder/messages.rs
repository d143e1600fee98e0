//! A forwarder's messages: reads them from the local queues, and settles them there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use amqp::{Fault, ReplyCode};
use broker::{Delivery, Fetched, Moving, Queue, Returned, Timestamp};
use bytes::Bytes;
use spool::{BacklogId, Envelope, ForwardingChannel, MessageRefusal, Settled};
use sync::work;

use super::{Forwarder, Taken};

/// Backlogs with their next message on disk that one call requests a message from.
const ASKED_AT_ONCE: usize = 16;

/// Nanoseconds charged for reading a message.
const READ: u32 = 300;
/// Nanoseconds charged for moving a message to a backlog or parking it, which writes it again.
const MOVE: u32 = 2_000;

/// Bytes of records that a forwarder without a connection may hold, to know the age of each local queue's oldest message.
const UNCONNECTED: usize = 64 << 10;

/// The reasons why messages could not be moved.
const NO_PARKED: &str = "no local queue for parked messages";
const PARKING_FULL: &str = "parked messages take the user's share of half of spool_max_bytes; they have to be forwarded again or dropped";
const NO_BACKLOG: &str = "no local queue for messages that wait for their destination";

/// Settled messages by outcome, gathered so that each queue is locked once.
#[derive(Default)]
struct Batches {
    /// Messages that have been forwarded or parked, by queue.
    done: Vec<(Arc<Queue>, Vec<Delivery>)>,
    released: Vec<(Arc<Queue>, Vec<Delivery>)>,
    /// Messages to move from the main queue to a backlog, in order.
    moving: Vec<(BacklogId, Vec<Delivery>)>,
}

fn add<K: PartialEq, V>(batches: &mut Vec<(K, Vec<V>)>, key: K, value: V) {
    match batches.last_mut() {
        Some((last, values)) if *last == key => values.push(value),
        _ => batches.push((key, vec![value])),
    }
}

fn add_of(batches: &mut Vec<(Arc<Queue>, Vec<Delivery>)>, Taken { from, delivery }: Taken) {
    match batches.iter_mut().find(|(queue, _)| Arc::ptr_eq(queue, &from)) {
        Some((_, deliveries)) => deliveries.push(delivery),
        None => batches.push((from, vec![delivery])),
    }
}

impl Forwarder {
    /// Reads messages of the local queues as far as they are needed; returns their number.
    pub(super) fn fill(&mut self, now: Instant) -> usize {
        let (mut count, at) = (0, self.local.timestamp(now));
        while self.forwarding.wants_more() && (self.may_load() || self.free_memory(now)) {
            let Fetched::Got(got) = self.queue.queue().fetch_unrecorded(at, &self.waiter) else { break };
            count += 1;
            work::charge(READ, 1);
            let bytes = got.delivery.message().body().to_bytes();
            if self.queue.take_requeued() {
                self.forwarding.forget_refusals();
            }
            let taken = Taken { from: Arc::clone(self.queue.queue()), delivery: got.delivery };
            match Envelope::decode(bytes.clone()) {
                Ok(envelope) => {
                    self.forwarding.read(envelope, taken);
                    self.count_loaded();
                }
                Err(error) => _ = self.park_unknown(taken, bytes, &error.to_string(), at),
            }
        }
        count + self.load(at)
    }

    /// Reads messages of backlogs; returns their number.
    fn load(&mut self, at: Timestamp) -> usize {
        let (mut count, mut missing) = (0, 0);
        while missing < ASKED_AT_ONCE
            && self.may_load()
            && let Some(backlog) = self.forwarding.poll_load()
        {
            let Some(queue) = self.backlogs.get(&backlog) else { break };
            let Fetched::Got(got) = queue.fetch_unrecorded(at, &self.waiter) else {
                missing += 1;
                continue;
            };
            count += 1;
            work::charge(READ, 1);
            let bytes = got.delivery.message().body().to_bytes();
            let taken = Taken { from: Arc::clone(queue), delivery: got.delivery };
            match Envelope::decode(bytes.clone()) {
                Ok(envelope) => {
                    self.forwarding.loaded(backlog, envelope, taken);
                    self.count_loaded();
                }
                Err(error) => {
                    if self.park_unknown(taken, bytes, &error.to_string(), at) {
                        self.forwarding.skipped(backlog);
                    }
                }
            }
        }
        count
    }

    /// Parks a record that cannot be decoded. Returns whether it is parked.
    fn park_unknown(&mut self, taken: Taken, bytes: Bytes, reason: &str, at: Timestamp) -> bool {
        let Taken { from, delivery } = taken;
        let size = bytes.len() as u64;
        if !self.local.has_parking_capacity(&self.queue) {
            self.parking_is_full(&from, delivery, at);
            return false;
        }
        match self.local.parked().park_unknown(&from, delivery, bytes, &self.queue, reason, at) {
            Ok(()) => {
                tracing::error!(queue = &**from.name(), reason, "unknown spool record parked");
                self.queue.parked.fetch_add(1, Ordering::Relaxed);
                self.local.left(&self.queue, size);
                true
            }
            Err(deliveries) => {
                self.failed(&from, deliveries, failure(NO_PARKED), at);
                false
            }
        }
    }

    /// Whether another message may be held in memory. A forwarder that holds messages asks again when they are settled.
    fn may_load(&self) -> bool {
        let allows = || match &self.share {
            Some(_) => self.local.loaded().allows(self.loaded),
            None => self.loaded < UNCONNECTED,
        };
        !self.is_draining() && self.failure.is_none() && (self.loaded == 0 || allows())
    }

    /// Returns messages that only wait for their destination from memory to their backlogs. Returns whether another
    /// message may be held then.
    fn free_memory(&mut self, now: Instant) -> bool {
        if self.is_draining() || self.failure.is_some() || !self.forwarding.free_memory() {
            return false;
        }
        // Must precede reading from their backlogs, in which they get back their positions.
        let has_settled = self.settle(now);
        self.has_settled |= has_settled;
        self.may_load()
    }

    fn count_loaded(&mut self) {
        let before = std::mem::replace(&mut self.loaded, self.forwarding.bytes());
        self.local.loaded().changed(self.loaded, before);
    }

    /// The next message to publish on a channel.
    pub(in crate::spool) fn next_to_publish(
        &mut self,
        channel: ForwardingChannel,
        now: Instant,
    ) -> Option<Envelope> {
        if self.is_draining() || self.is_paused() || self.failure.is_some() || self.is_renewing {
            return None;
        }
        loop {
            if let Some(envelope) = self.forwarding.poll_publish(channel, now) {
                return Some(envelope);
            }
            // Messages that are moved to a backlog or parked do not have to be published.
            if self.fill(now) == 0 || work::is_turn_over() {
                return None;
            }
        }
    }

    /// Whether a channel is needed.
    pub(in crate::spool) fn wants_channel(&self, channel: ForwardingChannel) -> bool {
        self.forwarding.wants_channel(channel)
    }

    pub(in crate::spool) fn opened(&mut self, channel: ForwardingChannel, now: Instant) {
        self.heard(now);
        self.forwarding.opened(channel);
    }

    pub(in crate::spool) fn acked(
        &mut self,
        channel: ForwardingChannel,
        delivery_tag: u64,
        multiple: bool,
        now: Instant,
    ) {
        self.heard(now);
        self.forwarding.acked(channel, delivery_tag, multiple, now);
    }

    pub(in crate::spool) fn nacked(
        &mut self,
        channel: ForwardingChannel,
        delivery_tag: u64,
        multiple: bool,
        now: Instant,
    ) {
        self.heard(now);
        // If it cannot be parked, the message waits like others for its destination, and delays nothing else.
        let at = self.local.has_parking_capacity(&self.queue).then(|| self.local.timestamp(now).0);
        self.forwarding.nacked(channel, delivery_tag, multiple, now, at);
    }

    /// Handles the closing of a channel because of a message. Returns false if no message was in flight on it.
    pub(in crate::spool) fn refused(
        &mut self,
        channel: ForwardingChannel,
        refusal: MessageRefusal,
        now: Instant,
    ) -> bool {
        if self.forwarding.in_flight_on(channel) == 0 {
            return false;
        }
        self.heard(now);
        let (vhost, user) = (self.queue.vhost(), self.queue.user());
        tracing::debug!(vhost, user, code = refusal.code, reason = refusal.text, "spooled message refused");
        self.forwarding.refused(channel, refusal, now);
        true
    }

    /// Applies decisions about messages to the local queues. Returns whether there were any since the last call, which
    /// may have freed capacity.
    pub(in crate::spool) fn settle(&mut self, now: Instant) -> bool {
        let at = self.local.timestamp(now);
        let (mut batches, mut has_changed) = (Batches::default(), std::mem::take(&mut self.has_settled));
        while let Some(settled) = self.forwarding.poll_settled() {
            has_changed = true;
            match settled {
                Settled::Forwarded(taken) => {
                    self.queue.forwarded.fetch_add(1, Ordering::Relaxed);
                    add_of(&mut batches.done, taken);
                }
                // After a failure it is released; it will be read and refused again.
                Settled::Parked(_, taken, _) if self.failure.is_some() => {
                    add_of(&mut batches.released, taken)
                }
                Settled::Parked(envelope, taken, refusal) => self.park(&envelope, taken, &refusal, at),
                Settled::Deferred(backlog, taken) => {
                    add(&mut batches.moving, backlog, taken.delivery);
                }
                Settled::Released(taken) => add_of(&mut batches.released, taken),
                Settled::Emptied(backlog) => {
                    self.finish(&mut batches, at);
                    if self.failure.is_none()
                        && let Some(queue) = self.backlogs.remove(&backlog)
                    {
                        self.local.release_backlog(&self.queue, &queue);
                    }
                }
            }
        }
        self.finish(&mut batches, at);
        self.count_loaded();
        self.queue.deferred.store(self.forwarding.deferred(), Ordering::Relaxed);
        self.queue.set_oldest(self.forwarding.oldest());
        if self.queue.waits_for_parking() && self.queue.messages() == 0 {
            self.local.can_park(&self.queue);
        }
        if has_changed {
            self.local.changed(&self.queue);
        }
        has_changed
    }

    fn park(&mut self, envelope: &Envelope, taken: Taken, refusal: &MessageRefusal, at: Timestamp) {
        let Taken { from, delivery } = taken;
        work::charge(MOVE, 1);
        let bytes = delivery.message().body_len() as u64;
        if !self.local.has_parking_capacity(&self.queue) {
            return self.parking_is_full(&from, delivery, at);
        }
        match self.local.parked().park(&from, delivery, envelope, refusal, at) {
            Ok(()) => {
                if self.queue.parked.fetch_add(1, Ordering::Relaxed) == 0 {
                    let (vhost, user) = (self.queue.vhost(), self.queue.user());
                    let (code, reason) = (refusal.code, &*refusal.text);
                    tracing::warn!(
                        vhost,
                        user,
                        code,
                        reason,
                        "the first spooled message of a user is parked"
                    );
                }
                self.local.left(&self.queue, bytes);
                self.local.can_park(&self.queue);
            }
            Err(deliveries) => self.failed(&from, deliveries, failure(NO_PARKED), at),
        }
    }

    /// Handles a message that cannot be parked for lack of space: requeues it.
    fn parking_is_full(&mut self, from: &Queue, delivery: Delivery, at: Timestamp) {
        self.local.cannot_park(&self.queue);
        self.failed(from, vec![delivery], failure(PARKING_FULL), at);
    }

    /// Handles messages that could not be moved between local queues: requeues them. Decisions about later messages are
    /// void: the connection ends, and the forwarder starts again.
    fn failed(&mut self, from: &Queue, deliveries: Vec<Delivery>, failure: Fault, at: Timestamp) {
        from.requeue(deliveries, Returned::Released, at);
        if self.failure.is_none() {
            let (vhost, user) = (self.queue.vhost(), self.queue.user());
            tracing::error!(vhost, user, %failure, "cannot move spooled messages between local queues");
            self.failure = Some(failure);
        }
    }

    /// After a failure of a local queue: releases all messages, starts again with the queues' content, and returns the
    /// failure.
    pub(super) fn restart(&mut self, now: Instant) -> Option<Fault> {
        self.failure.as_ref()?;
        self.release_all(now);
        self.restore();
        self.failure.take()
    }

    /// Starts again with the queues' content if an operator drops messages, or if some have become unreadable. Must be
    /// called without a connection.
    pub(super) fn apply_operator_requests(&mut self, now: Instant) {
        let Some(purges) = self.queue.take_purges() else { return };
        self.release_all(now);
        let count = if purges.is_empty() { 0 } else { self.local.purge(&self.queue) };
        self.restore();
        self.settle(now);
        for asked in purges {
            // Fails if the caller has stopped waiting.
            let _ = asked.try_send(count);
        }
    }

    fn release_all(&mut self, now: Instant) {
        self.forwarding.lost(None);
        self.settle(now);
    }

    /// Starts again with the local queues' content.
    fn restore(&mut self) {
        for (_, backlog) in self.queue.backlogs() {
            if backlog.message_count() == 0 {
                self.local.release_backlog(&self.queue, &backlog);
            }
        }
        (self.forwarding, self.backlogs) = super::restored(&self.queue, self.forwarding.begin_anew());
    }

    fn finish(&mut self, batches: &mut Batches, at: Timestamp) {
        let Batches { done, released, moving } = std::mem::take(batches);
        for (backlog, moving) in moving {
            self.move_to(backlog, moving, at);
        }
        for (queue, deliveries) in done {
            let bytes = deliveries.iter().map(|delivery| delivery.message().body_len() as u64).sum();
            queue.ack(deliveries, at);
            self.local.left(&self.queue, bytes);
        }
        for (queue, deliveries) in released {
            queue.requeue(deliveries, Returned::Released, at);
        }
    }

    /// Moves messages from the main queue to a backlog.
    fn move_to(&mut self, backlog: BacklogId, deliveries: Vec<Delivery>, at: Timestamp) {
        work::charge(MOVE, deliveries.len());
        let main = Arc::clone(self.queue.queue());
        if self.failure.is_some() {
            // Earlier messages have been requeued in the main queue.
            return main.requeue(deliveries, Returned::Released, at);
        }
        let queue = match self.local_queue_of(backlog) {
            Ok(queue) => queue,
            Err(failure) => return self.failed(&main, deliveries, failure, at),
        };
        let moving = deliveries.into_iter().map(Moving::unchanged).collect();
        if let Err(deliveries) = main.move_to(&queue, moving, at) {
            self.failed(&main, deliveries, failure(NO_BACKLOG), at);
        }
    }

    /// The local queue of a backlog, created for its first message.
    fn local_queue_of(&mut self, backlog: BacklogId) -> Result<Arc<Queue>, Fault> {
        if let Some(queue) = self.backlogs.get(&backlog) {
            return Ok(Arc::clone(queue));
        }
        let name = self.forwarding.backlog(backlog).ok_or_else(|| failure(NO_BACKLOG))?;
        let created = self.local.backlog(&self.queue, name);
        let queue = created.map_err(|error| failure(&format!("{NO_BACKLOG}: {error}")))?;
        self.backlogs.insert(backlog, Arc::clone(&queue));
        Ok(queue)
    }
}

fn failure(reason: &str) -> Fault {
    Fault::new(ReplyCode::InternalError, reason.to_owned())
}
