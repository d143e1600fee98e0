//! Stores messages on their way into queues.

use std::sync::Arc;

use smallvec::SmallVec;
use store::journal::{Entry, Lsn, MessageRef, Transfer};
use store::{Store, StoredQueue};

use super::payload::with_parts;
use crate::message::Message;
use crate::queue::{Queue, stored_expiry};

/// Records which messages of a batch are in the store, and where.
pub(crate) struct StoredBatch {
    /// One entry for each message of the batch; empty if none of them is stored.
    places: SmallVec<[Option<MessageRef>; USUAL_BATCH]>,
    /// The index of the last of the batch's queues that stores messages.
    last: usize,
    /// The store has more waiting to be written than its limit.
    pub(crate) full: bool,
}

/// The part of [`StoredBatch`] for one queue.
pub(crate) struct QueueBatch<'k> {
    places: &'k [Option<MessageRef>],
    last: bool,
    /// Set if the message comes from another queue, which it is to leave in the same atomic step.
    transfer: Option<&'k mut Transfer>,
}

/// Records the messages that enter one queue.
pub(crate) struct Keeping<'k> {
    stored: &'k StoredQueue,
    kept: QueueBatch<'k>,
    entries: SmallVec<[Entry; USUAL_BATCH]>,
}

impl StoredBatch {
    /// Stores the persistent messages, if one of the queues stores messages.
    pub(crate) fn keep(store: Option<&Arc<Store>>, queues: &[Arc<Queue>], messages: &[Arc<Message>]) -> Self {
        let mut kept = Self { places: SmallVec::new(), last: 0, full: false };
        let Some(store) = store else { return kept };
        let persistent = |message: &Arc<Message>| message.traits().persistent;
        if !messages.iter().any(persistent) {
            return kept;
        }
        let Some(last) = queues.iter().rposition(|queue| queue.stored().is_some()) else { return kept };
        kept.last = last;
        for message in messages {
            kept.places.push(persistent(message).then(|| {
                let appended = with_parts(message, |parts| store.append(parts));
                kept.full |= appended.full;
                appended.message
            }));
        }
        kept
    }

    /// The part for the queue at index `at`. It has to be called for each queue, in order.
    pub(crate) fn at(&self, at: usize) -> QueueBatch<'_> {
        QueueBatch { places: &self.places, last: at == self.last, transfer: None }
    }
}

impl<'k> QueueBatch<'k> {
    /// Makes the messages that enter the queue part of a transfer.
    pub(crate) fn in_transfer(self, transfer: Option<&'k mut Transfer>) -> Self {
        Self { transfer, ..self }
    }

    /// Begins to enqueue; `None` if there is nothing to store.
    pub(crate) fn begin(self, stored: Option<&'k StoredQueue>) -> Option<Keeping<'k>> {
        let stored = stored.filter(|_| !self.places.is_empty())?;
        Some(Keeping { stored, kept: self, entries: SmallVec::new() })
    }
}

impl Keeping<'_> {
    /// Records the position of the message at index `at` of the batch.
    pub(crate) fn takes(&mut self, at: usize, position: u64, expires: u64) {
        if let Some(message) = self.kept.places[at] {
            self.entries.push(Entry {
                position,
                message,
                expires: stored_expiry(expires),
                last: self.kept.last,
            });
        }
    }

    /// Records that the queue does not take the message at index `at` of the batch.
    pub(crate) fn refuses(&self, at: usize) {
        if let Some(message) = self.kept.places[at].filter(|_| self.kept.last) {
            self.stored.release(message);
        }
    }

    /// Records that the queue takes no message of the batch.
    pub(crate) fn refuses_all(&self) {
        (0..self.kept.places.len()).for_each(|at| self.refuses(at));
    }

    /// Stores the recorded messages. Called under the queue's lock. Returns the log position to wait for.
    pub(crate) fn write(self) -> Option<Lsn> {
        if self.entries.is_empty() {
            return None;
        }
        Some(match self.kept.transfer {
            Some(transfer) => self.stored.enqueue_in_transfer(&self.entries, transfer),
            None => self.stored.enqueue(&self.entries),
        })
    }
}

/// Messages of a batch up to which no allocation is needed.
const USUAL_BATCH: usize = 8;
