//! The part of a queue that is in the store.

use store::StoredQueue;
use store::journal::{Lsn, Range, Transfer};

use super::ready::{ReadyStore, Run};
use super::state::QueueState;
use super::{DeathReason, Delivery, Effects, NEVER, Queue};
use crate::arguments::QueueKind;
use crate::message::Message;
use crate::persistence::Marks;
use crate::time::Timestamp;

/// Which messages of a queue are also in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredMessages {
    /// None: the queue is transient, or there is no store.
    Nothing,
    /// The persistent ones.
    Persistent,
    /// All, whatever their delivery mode (RabbitMQ, "Quorum Queues", "Feature Comparison").
    All,
}

impl StoredMessages {
    /// The value for a queue of this kind, which is stored or not.
    pub(super) fn of(kind: QueueKind, stored: Option<&StoredQueue>) -> Self {
        match (stored, kind) {
            (None, _) => Self::Nothing,
            (Some(_), QueueKind::Classic) => Self::Persistent,
            (Some(_), QueueKind::Quorum) => Self::All,
        }
    }

    /// Whether this message is in the store, if it is in the queue.
    #[inline]
    pub(crate) fn includes(self, message: &Message) -> bool {
        match self {
            Self::Nothing => false,
            Self::Persistent => message.broker_properties().persistent,
            Self::All => true,
        }
    }
}

impl Queue {
    /// Which of its messages are also in the store.
    pub(crate) fn stored_messages(&self) -> StoredMessages {
        StoredMessages::of(self.kind(), self.stored())
    }

    /// Its part of the store.
    pub(crate) fn stored(&self) -> Option<&StoredQueue> {
        self.stored.as_ref()
    }

    /// Records that a dead letter is stored in its queues, and that its original message has left in the same transfer.
    pub(crate) fn dead_letter_transferred(&self, position: u64, transfer: &Transfer) {
        // Required even for a deleted queue: otherwise the letter would be lost by a restart.
        if let Some(stored) = self.stored() {
            stored.transfer(&[Range::one(position)], transfer);
        }
    }

    /// Records that dead letters were sent to queues that do not store them, so that the original messages do not return.
    pub(crate) fn dead_letters_sent(&self, positions: Vec<u64>) {
        let mut marks = Marks::default();
        positions.into_iter().for_each(|position| marks.settled(position));
        self.persist(&marks);
    }

    /// Called when the queue has been deleted, and the catalogue has recorded it.
    pub(crate) fn forget_stored(&self) {
        self.stored.iter().for_each(StoredQueue::forget);
    }

    /// Restores the contents of the store, before any other operation on the queue: messages in order,
    /// followed by the messages that are on disk only, one run for each rank ([`crate::compatibility::DeliveryOrder`]).
    pub(crate) fn restore(
        &self,
        deliveries: Vec<Delivery>,
        runs: impl IntoIterator<Item = (u8, Run)>,
        next_position: u64,
    ) {
        let mut state = self.state.lock();
        state.next_position = next_position;
        deliveries.into_iter().for_each(|delivery| state.ready.restore(delivery));
        state.ready.restore_runs(runs);
    }

    /// Called after [`Queue::restore`], when everything else is restored, too: drops messages that exceeded the delivery
    /// limit with the delivery that the server's stop ended, that exceed the length limits, or that have expired.
    pub(crate) fn restored(&self, now: Timestamp) {
        let arguments = self.arguments.load();
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        if let Some(limit) = self.delivery_limit_of(&arguments) {
            state.drop_over_limit(limit, &mut effects);
        }
        let mut state = self.trim(state, &mut effects, now);
        state.drop_expired(now, &mut effects);
        self.finish(state, effects, now);
    }

    /// Records that all of these have left permanently; returns the log position to wait for until that is on
    /// disk.
    pub(super) fn settle_purged(&self, purged: &ReadyStore) -> Option<Lsn> {
        self.stored()?;
        let mut marks = Marks::default();
        let stores = self.stored_messages();
        purged.iter().for_each(|delivery| delivery.mark_taken(stores, true, &mut marks));
        purged.stored_ranges().for_each(|(first, last)| marks.settled_range(first, last));
        self.persist(&marks)
    }

    /// Records that messages have left permanently; returns the log position to wait for until that is on disk.
    pub(super) fn settle_stored<'d>(&self, deliveries: impl Iterator<Item = &'d Delivery>) -> Option<Lsn> {
        self.stored()?;
        let mut marks = Marks::default();
        let stores = self.stored_messages();
        deliveries.for_each(|delivery| delivery.mark_taken(stores, true, &mut marks));
        self.persist(&marks)
    }

    pub(super) fn persist(&self, marks: &Marks) -> Option<Lsn> {
        // The contents of a deleted queue are removed as a whole.
        self.stored().filter(|_| !self.is_deleted()).and_then(|stored| marks.write(stored))
    }
}

impl QueueState {
    fn drop_over_limit(&mut self, limit: u64, effects: &mut Effects) {
        for delivery in self.ready.extract(|delivery| delivery.has_just_failed_too_often(limit)) {
            self.dead_letter(delivery, DeathReason::DeliveryLimit, effects);
        }
        // Messages delivered before are at the front; those on disk are checked when they are loaded.
        self.ready.want_load();
    }
}

/// The expiry of a message as the store writes it: 0 for never.
pub(crate) fn stored_expiry(expires: u64) -> u64 {
    if expires == NEVER { 0 } else { expires.max(1) }
}
