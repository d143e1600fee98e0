//! Messages that queues have delivered for one client, until the client's task handles them.
//!
//! A queue delivers from the task of whichever publisher; the client's packets are built by its own task, which has its
//! session. In between messages wait here, up to a limit above which they stay in their queues.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Consumer, ConsumerCapacity, Delivery, Offer};
use slab::Slab;
use sync::{Mutex, Rank};
use transport::Outbox;

/// Messages per queue that wait here for a consumer without acknowledgements: enough for one wake-up of the client's
/// task.
const MAX_WAITING: usize = 128;

/// Bytes of bodies that wait here for such a consumer.
const MAX_WAITING_BYTES: usize = 256 * 1024;

/// The receiving side of all queues that one client consumes from.
pub(super) struct Inbox {
    outbox: Arc<Outbox>,
    sources: Mutex<Slab<InboxQueue>, { Rank::ChannelDeliveries as u8 }>,
}

struct InboxQueue {
    serial: u64,
    arrived: VecDeque<Delivery>,
    /// Bytes of bodies in `arrived`.
    bytes: usize,
    /// Messages that the client's task has taken and not settled.
    unsettled: usize,
    /// The limit of `arrived` plus `unsettled`; `None` for a consumer without acknowledgements.
    limit: Option<usize>,
    /// Whether the queue waits until it is resumed.
    starved: bool,
    /// Whether the queue was deleted.
    gone: bool,
}

/// Identifies a queue of the client. Slots are reused, serial numbers are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceKey {
    place: usize,
    serial: u64,
}

/// The consumer of one queue.
pub(super) struct QueueConsumer {
    inbox: Arc<Inbox>,
    key: SourceKey,
}

impl Inbox {
    pub(super) fn new(outbox: &Arc<Outbox>) -> Arc<Self> {
        Arc::new(Self { outbox: Arc::clone(outbox), sources: Mutex::default() })
    }

    /// Adds a queue; returns its key and its consumer. `limit` is its prefetch: the maximum of messages that wait here or
    /// are unsettled. `None` for a consumer without acknowledgements.
    pub(super) fn add(
        self: &Arc<Self>,
        serial: u64,
        limit: Option<usize>,
    ) -> (SourceKey, Arc<QueueConsumer>) {
        let source = InboxQueue {
            serial,
            arrived: VecDeque::new(),
            bytes: 0,
            unsettled: 0,
            limit,
            starved: true,
            gone: false,
        };
        let place = self.sources.lock().insert(source);
        let key = SourceKey { place, serial };
        (key, Arc::new(QueueConsumer { inbox: Arc::clone(self), key }))
    }

    /// Removes a queue, whose consumer accepts nothing after this; returns the messages that had arrived.
    pub(super) fn remove(&self, key: SourceKey) -> VecDeque<Delivery> {
        let mut sources = self.sources.lock();
        if find(&mut sources, key).is_none() {
            return VecDeque::new();
        }
        sources.remove(key.place).arrived
    }

    /// Takes the next message from a queue. If it has to be settled, it counts until [`Inbox::settled`].
    pub(super) fn take(&self, key: SourceKey) -> Option<Delivery> {
        let mut sources = self.sources.lock();
        let source = find(&mut sources, key)?;
        let delivery = source.arrived.pop_front()?;
        source.bytes -= delivery.message().body_len();
        source.unsettled += usize::from(source.limit.is_some());
        if source.arrived.is_empty() {
            source.arrived = VecDeque::new();
        }
        Some(delivery)
    }

    /// Whether messages from a queue wait here.
    pub(super) fn has(&self, key: SourceKey) -> bool {
        find(&mut self.sources.lock(), key).is_some_and(|source| !source.arrived.is_empty())
    }

    /// Records that `count` messages of the queue have been settled.
    pub(super) fn settled(&self, key: SourceKey, count: usize) {
        if let Some(source) = find(&mut self.sources.lock(), key) {
            source.unsettled = source.unsettled.saturating_sub(count);
        }
    }

    /// Counts messages as unsettled that an earlier connection has left so.
    pub(super) fn add_pending(&self, key: SourceKey, count: usize) {
        if let Some(source) = find(&mut self.sources.lock(), key) {
            source.unsettled += count;
        }
    }

    /// Whether the queue waits and there is capacity again. The caller must then resume it.
    pub(super) fn wants_resuming(&self, key: SourceKey) -> bool {
        let mut sources = self.sources.lock();
        let Some(source) = find(&mut sources, key) else { return false };
        let resumes = source.starved && !source.is_full();
        source.starved &= !resumes;
        resumes
    }

    /// Whether a queue was deleted, and its consumer with it.
    pub(super) fn is_gone(&self, key: SourceKey) -> bool {
        find(&mut self.sources.lock(), key).is_none_or(|source| source.gone)
    }
}

fn find(sources: &mut Slab<InboxQueue>, key: SourceKey) -> Option<&mut InboxQueue> {
    sources.get_mut(key.place).filter(|source| source.serial == key.serial)
}

impl InboxQueue {
    fn is_full(&self) -> bool {
        match self.limit {
            Some(limit) => self.arrived.len() + self.unsettled >= limit,
            None => self.arrived.len() >= MAX_WAITING || self.bytes >= MAX_WAITING_BYTES,
        }
    }
}

impl Consumer for QueueConsumer {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        let mut sources = self.inbox.sources.lock();
        let Some(source) = find(&mut sources, self.key) else { return ConsumerCapacity::Full };
        let before = source.arrived.len();
        let space = loop {
            if source.is_full() {
                source.starved = true;
                break ConsumerCapacity::Full;
            }
            let Some(delivery) = offer.next() else { break ConsumerCapacity::More };
            source.bytes += delivery.message().body_len();
            source.arrived.push_back(delivery);
        };
        if source.arrived.len() > before {
            self.inbox.outbox.nudge();
        }
        space
    }

    fn cancelled(&self) {
        if let Some(source) = find(&mut self.inbox.sources.lock(), self.key) {
            source.gone = true;
        }
        self.inbox.outbox.nudge();
    }

    fn busy_since_rest(&self) -> Option<u32> {
        self.inbox.outbox.busy_since_rest()
    }
}
