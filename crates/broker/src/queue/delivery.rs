//! How messages leave a queue: consumers, offers and deliveries.

use std::borrow::Cow;
use std::sync::Arc;

use amqp::{FieldValue, Properties, RawTable};

use super::ready::ReadyStore;
use crate::SessionId;
use crate::arguments::QueueKind;
use crate::inspect::with_headers;
use crate::message::Message;
use crate::persistence::Marks;
use crate::rates::Leaving;
use crate::time::Timestamp;

/// The receiving end of a consumer.
///
/// Lock order: the queue calls [`Consumer::accept`] with its own lock held, so a consumer may take its own lock
/// inside, and must not call any queue with that lock held.
pub trait Consumer: Send + Sync {
    /// Takes deliveries from `offer` until there is no more room (prefetch, bytes waiting to be written), and returns
    /// whether the consumer is now full. It must neither call the queue back nor block.
    ///
    /// After [`Room::Full`] the consumer is left alone until [`super::Queue::resume`]. Taking nothing counts as full.
    fn accept(&self, offer: &mut Offer<'_>) -> Room;

    /// The queue has been deleted, and the consumer with it. Called once, without any lock held.
    fn cancelled(&self);

    /// The number of its channel, to be shown. Called with the queue's lock held.
    fn channel(&self) -> u16 {
        0
    }

    /// How many deliveries it may leave unsettled, to be shown; 0 is no limit. Called with the queue's lock held.
    fn prefetch(&self) -> u16 {
        0
    }
}

/// Whether a consumer takes more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It does.
    More,
    /// Not before [`super::Queue::resume`].
    Full,
}

/// A consumer's number in its queue; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConsumerId(pub(crate) u64);

/// What `basic.consume` asks for.
pub struct ConsumerSpec<'a> {
    /// Where deliveries go.
    pub consumer: Arc<dyn Consumer>,
    /// Whose it is.
    pub session: SessionId,
    /// Its tag, for introspection. That tags are unique on their channel is the session's care.
    pub tag: &'a str,
    /// Deliveries count as acknowledged once taken.
    pub no_ack: bool,
    /// No other consumer may exist beside it.
    pub exclusive: bool,
    /// `x-priority` is read from here.
    pub arguments: RawTable<'a>,
}

/// A message on its way to a client. Unless it was taken with `no_ack`, the session keeps it and gives it back by
/// [`super::Queue::ack`], [`super::Queue::requeue`] or [`super::Queue::reject`].
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Place in the queue: ascending in the order of publishing.
    pub(crate) position: u64,
    /// When the message expires in milliseconds, [`NEVER`] if it does not.
    pub(crate) expires: u64,
    pub(crate) message: Arc<Message>,
    /// How often it was delivered before.
    pub(crate) deliveries: u32,
}

/// Stands for no expiry.
pub(crate) const NEVER: u64 = u64::MAX;

impl Delivery {
    /// The message.
    pub fn message(&self) -> &Arc<Message> {
        &self.message
    }

    /// The message's properties as a client is to see them. Quorum queues tell in the header `x-delivery-count` how
    /// often the message was delivered before: always to `basic.get`, and to consumers from the second time on.
    pub fn properties(&self, from: QueueKind, by_get: bool) -> Cow<'_, [u8]> {
        let properties = self.message.properties();
        if from != QueueKind::Quorum || (self.deliveries == 0 && !by_get) {
            return Cow::Borrowed(properties);
        }
        let decoded = Properties::decode(properties).unwrap_or_default();
        let mut headers = decoded.headers.map(|headers| headers.decode()).unwrap_or_default();
        headers.insert("x-delivery-count", FieldValue::I64(self.deliveries.into()));
        Cow::Owned(with_headers(&decoded, &headers))
    }

    /// Notes that it was taken, if it is stored: its queue keeps messages, and it is persistent.
    pub(super) fn mark_taken(&self, no_ack: bool, marks: &mut Marks) {
        match no_ack {
            _ if !self.message.traits().persistent => {}
            true => marks.settled(self.position),
            false => marks.delivered(self.position, self.deliveries.saturating_add(1)),
        }
    }

    /// Its place in the queue, ascending in the order of publishing. A durable queue's persistent messages keep theirs over
    /// a restart.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// When it expires, if it does.
    pub fn expires(&self) -> Option<Timestamp> {
        (self.expires != NEVER).then_some(Timestamp(self.expires))
    }

    /// Whether it was delivered before, to whomever.
    pub fn redelivered(&self) -> bool {
        self.deliveries > 0
    }
}

/// What `basic.get` gives.
#[derive(Debug)]
pub struct Got {
    /// The message.
    pub delivery: Delivery,
    /// Ready messages left in the queue.
    pub remaining: u64,
}

/// What [`super::Queue::fetch`] came to.
#[derive(Debug)]
pub enum Fetched {
    /// A message.
    Got(Got),
    /// There is none.
    Empty,
    /// The next message is on disk: to be asked again when the waiter is woken.
    Later,
}

/// Messages on offer to one consumer.
pub struct Offer<'a> {
    pub(super) ready: &'a mut ReadyStore,
    /// In milliseconds, as messages expire.
    pub(super) expired_by: u64,
    pub(super) now: Timestamp,
    /// How many it may still take in this turn.
    pub(super) allowance: usize,
    pub(super) taken: usize,
    pub(super) redelivered: usize,
    /// Deliveries count as acknowledged once taken.
    pub(super) no_ack: bool,
    /// Where the queue notes what happens to stored messages, if it keeps them.
    pub(super) marks: Option<&'a mut Marks>,
}

impl Offer<'_> {
    /// Takes the next message; `None` when the queue is empty or others are to have their turn.
    #[expect(clippy::should_implement_trait, reason = "an iterator could be drained by accident")]
    pub fn next(&mut self) -> Option<Delivery> {
        if self.is_over() {
            return None;
        }
        let delivery = self.ready.pop()?;
        self.allowance -= 1;
        self.taken += 1;
        self.redelivered += usize::from(delivery.redelivered());
        if let Some(marks) = &mut self.marks {
            delivery.mark_taken(self.no_ack, marks);
        }
        Some(delivery)
    }

    /// Length in bytes of the body that [`Offer::next`] would give; `None` when it would give nothing. Lets a
    /// consumer with a limit in bytes decline.
    pub fn peek_len(&self) -> Option<usize> {
        if self.is_over() { None } else { self.ready.front().map(|delivery| delivery.message.body_len()) }
    }

    /// What was taken so far, to be counted, and when.
    pub fn taken(&self) -> (Leaving, Timestamp) {
        (Leaving::delivered(self.taken, self.no_ack, self.redelivered), self.now)
    }

    /// Whether others are to have their turn, or the queue has to drop what has come to its head.
    fn is_over(&self) -> bool {
        self.allowance == 0
            || self.taken > 0 && self.ready.front().is_some_and(|next| next.expires <= self.expired_by)
    }
}
