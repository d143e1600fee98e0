//! What a queue's lock protects, and the steps that are taken under it.

use std::sync::Arc;

use super::consumers::Consumers;
use super::delivery::{Delivery, NEVER, Offer, Room};
use super::ready::ReadyStore;
use crate::arguments::{Overflow, QueueArguments};
use crate::message::Message;
use crate::time::Timestamp;

pub(super) struct QueueState {
    pub(super) ready: ReadyStore,
    pub(super) consumers: Consumers,
    /// Deliveries that sessions hold.
    pub(super) unacked: u64,
    pub(super) deleted: bool,
    /// When the queue was last declared, read by `get`, or lost its last consumer (`x-expires`).
    pub(super) last_used: Timestamp,
    /// Under which time the queue stands in the broker's list of deadlines.
    pub(super) scheduled: Option<Timestamp>,
    next_position: u64,
}

/// A message that a queue has dropped and that may go to a dead-letter exchange.
#[derive(Debug)]
pub(crate) struct DeadLetter {
    pub(crate) message: Arc<Message>,
    pub(crate) reason: DeathReason,
}

/// Why a message was dropped, as the header `x-death` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeathReason {
    Rejected,
    Expired,
    MaxLength,
    DeliveryLimit,
}

/// What a step leads to that must be done, or counted, once the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) dead: Vec<DeadLetter>,
    pub(super) delivered: usize,
    pub(super) redelivered: usize,
}

impl Effects {
    pub(super) fn bury(&mut self, message: Arc<Message>, reason: DeathReason) {
        self.dead.push(DeadLetter { message, reason });
    }
}

impl QueueState {
    pub(super) fn new(arguments: &QueueArguments) -> Self {
        Self {
            ready: ReadyStore::new(arguments.max_priority.unwrap_or(0)),
            consumers: Consumers::new(arguments.single_active_consumer),
            unacked: 0,
            deleted: false,
            last_used: Timestamp::default(),
            scheduled: None,
            next_position: 0,
        }
    }

    /// Adds a message at the end.
    pub(super) fn push(&mut self, message: Arc<Message>, arguments: &QueueArguments, now: Timestamp) {
        let ttl = match (arguments.message_ttl, message.traits().expiration) {
            (Some(queue), Some(own)) => Some(queue.min(own)),
            (queue, own) => queue.or(own),
        };
        let expires = ttl.map_or(NEVER, |ttl| now.after(ttl).0);
        let position = self.next_position;
        self.next_position += 1;
        self.ready.push(Delivery { position, expires, message, deliveries: 0 });
    }

    /// Whether one more message would be too many.
    pub(super) fn would_overflow(&self, message: &Message, arguments: &QueueArguments) -> bool {
        let bytes = self.ready.bytes() + message.body_len() as u64;
        arguments.max_length.is_some_and(|max| self.ready.len() as u64 + 1 > max)
            || arguments.max_length_bytes.is_some_and(|max| bytes > max)
    }

    /// Drops messages from the head that are too many. Only ready messages count (RabbitMQ, "Queue Length Limit").
    pub(super) fn trim(&mut self, arguments: &QueueArguments, effects: &mut Effects) {
        if arguments.overflow != Overflow::DropHead {
            return;
        }
        while arguments.max_length.is_some_and(|max| self.ready.len() as u64 > max)
            || arguments.max_length_bytes.is_some_and(|max| self.ready.bytes() > max)
        {
            let Some(delivery) = self.ready.pop() else { return };
            effects.bury(delivery.message, DeathReason::MaxLength);
        }
    }

    /// Drops messages at the head that have expired.
    pub(super) fn drop_expired(&mut self, now: Timestamp, effects: &mut Effects) {
        while let Some(delivery) = self.ready.pop_expired(now.0) {
            effects.bury(delivery.message, DeathReason::Expired);
        }
    }

    /// Gives messages to consumers as long as there are messages, and consumers with room: those of the highest
    /// priority first, in turn, one message each; a single one takes as many as it likes, up to [`MAX_TURN`].
    ///
    /// What has expired by `now` is dropped when it comes to the head. [`JUST_CAME`] spares what a consumer may take
    /// at once, however short its life.
    pub(super) fn pump(&mut self, now: Timestamp, effects: &mut Effects) {
        loop {
            self.drop_expired(now, effects);
            if self.ready.is_empty() {
                return;
            }
            let Some((slot, alone)) = self.consumers.next() else { return };
            let entry = self.consumers.get(slot);
            let allowance = if alone { MAX_TURN } else { 1 };
            let ready = &mut self.ready;
            let mut offer = Offer { ready, now: now.0, allowance, taken: 0, redelivered: 0 };
            let room = entry.consumer.accept(&mut offer);
            let (taken, redelivered) = (offer.taken, offer.redelivered);
            if !entry.no_ack {
                self.unacked += taken as u64;
            }
            effects.delivered += taken;
            effects.redelivered += redelivered;
            self.consumers.served(slot, if taken == 0 { Room::Full } else { room });
        }
    }
}

/// A time before every expiry, for messages that have just come.
pub(super) const JUST_CAME: Timestamp = Timestamp(0);

/// Most messages that one call of a consumer may take, so that its own lock is released now and then.
const MAX_TURN: usize = 1024;
