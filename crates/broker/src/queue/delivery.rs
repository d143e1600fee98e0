//! Delivery from a queue: consumers, offers and deliveries.

use std::borrow::Cow;
use std::sync::Arc;

use amqp::{FieldValue, Properties, RawTable};

use super::Queue;
use super::ready::ReadyStore;
use super::stored::StoredMessages;
use crate::SessionId;
use crate::arguments::QueueKind;
use crate::compatibility::Compatibility;
use crate::inspect::{with_headers, without_annotation};
use crate::message::Message;
use crate::persistence::Marks;
use crate::rates::DequeueCounts;
use crate::time::Timestamp;

/// The receiving end of a consumer.
///
/// The queue calls [`Consumer::accept`] under its own lock, so a consumer may take its own lock inside, and must not call
/// any queue while holding that lock.
pub trait Consumer: Send + Sync {
    /// Takes deliveries from `offer` until it has no capacity left (prefetch, bytes waiting to be written), and returns
    /// whether it is now full. It must neither call the queue nor block.
    ///
    /// After [`ConsumerCapacity::Full`] the consumer is not called until [`super::Queue::resume`]. Taking nothing counts
    /// as full.
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity;

    /// Called when the queue, and the consumer with it, has been deleted. Called once, without any lock held.
    fn cancelled(&self);

    /// The number of times that its connection was idle before, if the connection has work that waits for this server, and
    /// not for its client (unread input, or deliveries that the socket would accept). Called under the queue's lock.
    fn busy_since_rest(&self) -> Option<u32> {
        None
    }

    /// The number of its channel, for display. Called with the queue's lock held.
    fn channel(&self) -> u16 {
        0
    }

    /// Its limit of unacknowledged deliveries, for display; 0 means no limit. Called with the queue's lock
    /// held.
    fn prefetch(&self) -> u16 {
        0
    }
}

/// Whether a consumer accepts more deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerCapacity {
    /// It accepts more now.
    More,
    /// It accepts none before [`super::Queue::resume`].
    Full,
}

/// A consumer's number in its queue; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConsumerId(pub(crate) u64);

/// The arguments of `basic.consume`.
pub struct ConsumerSpec<'a> {
    /// The receiver of the deliveries.
    pub consumer: Arc<dyn Consumer>,
    /// The session of the consumer.
    pub session: SessionId,
    /// Its tag, for introspection. The session must ensure that tags are unique on their channel.
    pub tag: &'a str,
    /// Whether deliveries count as acknowledged once taken.
    pub no_ack: bool,
    /// Whether the queue may have no other consumer.
    pub exclusive: bool,
    /// The source of `x-priority`.
    pub arguments: RawTable<'a>,
}

/// A message on its way to a client. Unless it was taken with `no_ack`, the session stores it until it settles it with
/// [`super::Queue::ack`], [`super::Queue::requeue`] or [`super::Queue::reject`].
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Position in the queue, ascending in the order of publishing.
    pub(crate) position: u64,
    /// The time in milliseconds at which the message expires, or [`NEVER`].
    pub(crate) expires: u64,
    pub(crate) message: Arc<Message>,
    /// The number of times this queue has delivered it before.
    pub(crate) deliveries: u32,
    /// The number of failed deliveries, which count towards the delivery limit. For a dead letter they include those of the
    /// original message. A restart preserves this number, and uses it for the deliveries as well.
    pub(crate) failures: u32,
}

/// Why a client returns a delivery, to be requeued or dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// The client returned it without a failure: basic.nack and basic.recover. RabbitMQ 4 counts no failure, neither for
    /// the message nor for its dead letter.
    Released,
    /// The client failed to process it: basic.reject, or the end of its channel.
    Failed,
    /// No client has seen it: it counts as neither delivered nor failed.
    Unseen,
}

/// Marks a message that does not expire.
pub(crate) const NEVER: u64 = u64::MAX;

impl Delivery {
    /// The message, shared with the other queues it was routed to.
    pub fn message(&self) -> &Arc<Message> {
        &self.message
    }

    /// The message's properties as they were published, without the front end's annotation.
    pub fn published_properties(&self) -> Cow<'_, [u8]> {
        match self.message.properties() {
            whole if self.message.broker_properties().is_annotated => Cow::Owned(without_annotation(whole)),
            properties => Cow::Borrowed(properties),
        }
    }

    /// The message's properties as a client of the queue sees them. Quorum queues add the header `x-delivery-count`. In
    /// RabbitMQ 3.10 it is the number of earlier deliveries: always for `basic.get`, and for consumers from the second
    /// delivery on. In RabbitMQ 4 it is the number of failed ones, if any; `x-acquired-count` is the number of all from
    /// this queue, or of the failed ones if there are no others.
    pub fn properties(&self, from: &Queue, by_get: bool) -> Cow<'_, [u8]> {
        let properties = self.published_properties();
        let by_get = by_get && from.compatibility() == Compatibility::V3_10;
        if from.kind() != QueueKind::Quorum || (!self.redelivered() && !by_get) {
            return properties;
        }
        let decoded = Properties::decode(&properties).unwrap_or_default();
        let mut headers = decoded.headers.map(|headers| headers.decode()).unwrap_or_default();
        let count = |count: u32| FieldValue::I64(count.into());
        match from.compatibility() {
            Compatibility::V3_10 => headers.insert("x-delivery-count", count(self.deliveries)),
            Compatibility::V4 => {
                let acquired = if self.deliveries == 0 { self.failures } else { self.deliveries };
                headers.insert("x-acquired-count", count(acquired));
                if self.failures > 0 {
                    headers.insert("x-delivery-count", count(self.failures));
                }
            }
        }
        headers.sort();
        Cow::Owned(with_headers(&decoded, &headers))
    }

    /// Records that it was taken, if the queue stores it.
    pub(super) fn mark_taken(&self, stores: StoredMessages, no_ack: bool, marks: &mut Marks) {
        match no_ack {
            _ if !stores.includes(&self.message) => {}
            true => marks.settled(self.position),
            false => marks.delivered(self.position, self.failures.saturating_add(1)),
        }
    }

    /// Whether its last delivery, which ended with a stop of the server, was the first failure above `limit`. A message
    /// with more failures had them before the limit existed, and is dropped with its next failure.
    pub(super) fn has_just_failed_too_often(&self, limit: u64) -> bool {
        u64::from(self.failures) == limit.saturating_add(1)
    }

    /// Its position in the queue, ascending in publishing order. Persistent messages of a durable queue keep it across a
    /// restart.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The time at which it expires, if it does.
    pub fn expires(&self) -> Option<Timestamp> {
        (self.expires != NEVER).then_some(Timestamp(self.expires))
    }

    /// Whether it was delivered before, to any consumer; as in RabbitMQ 4, this includes a dead letter whose original
    /// message had failed.
    pub fn redelivered(&self) -> bool {
        self.deliveries > 0 || self.failures > 0
    }
}

/// The result of `basic.get`.
#[derive(Debug)]
pub struct Got {
    /// The message, which is unacknowledged unless the call was with `no-ack`.
    pub delivery: Delivery,
    /// Ready messages left in the queue.
    pub remaining: u64,
}

/// The result of [`super::Queue::fetch`].
#[derive(Debug)]
pub enum Fetched {
    /// The queue had a message in memory.
    Got(Got),
    /// The queue is empty.
    Empty,
    /// The next message is on disk; ask again when the waiter is woken.
    Later,
}

/// Messages on offer to one consumer.
pub struct Offer<'a> {
    pub(super) ready: &'a mut ReadyStore,
    /// The time, in milliseconds, up to which messages count as expired.
    pub(super) expired_by: u64,
    pub(super) now: Timestamp,
    /// See [`Offer::is_urgent`].
    pub(super) is_urgent: bool,
    /// The number of messages that may still be taken in this turn.
    pub(super) allowance: usize,
    pub(super) taken: usize,
    pub(super) redelivered: usize,
    /// Deliveries count as acknowledged once taken.
    pub(super) no_ack: bool,
    pub(super) stores: StoredMessages,
    /// Records the changes to stored messages.
    pub(super) marks: &'a mut Marks,
}

impl Offer<'_> {
    /// Takes the next message; `None` if the queue is empty or the consumer's turn is over.
    #[expect(clippy::should_implement_trait, reason = "an iterator could be drained by accident")]
    pub fn next(&mut self) -> Option<Delivery> {
        if self.is_over() {
            return None;
        }
        let delivery = self.ready.pop()?;
        self.allowance -= 1;
        self.taken += 1;
        self.redelivered += usize::from(delivery.redelivered());
        delivery.mark_taken(self.stores, self.no_ack, self.marks);
        Some(delivery)
    }

    /// Whether a consumer with capacity should take messages now, even if the current thread has worked for long: otherwise
    /// new messages may be dropped or refused, and deferring many consumers for few messages takes longer.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// The counts of the messages taken so far, and the time.
    pub fn taken(&self) -> (DequeueCounts, Timestamp) {
        (DequeueCounts::delivered(self.taken, self.no_ack, self.redelivered), self.now)
    }

    /// Whether the consumer's turn is over, or the queue has to drop the message at its head.
    fn is_over(&self) -> bool {
        self.allowance == 0
            || self.taken > 0 && self.ready.front().is_some_and(|next| next.expires <= self.expired_by)
    }
}
