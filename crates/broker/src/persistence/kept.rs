//! Messages that are written down on their way into queues.

use std::sync::Arc;

use smallvec::SmallVec;
use store::journal::{Entry, Lsn, MessageRef, Transfer};
use store::{Store, StoredQueue};

use super::payload::with_parts;
use crate::message::Message;
use crate::queue::{Queue, stored_expiry};

/// Which of a batch of messages are in the store, and where.
pub(crate) struct KeptMessages {
    /// One for each message of the batch; none at all if nothing of it is kept.
    places: SmallVec<[Option<MessageRef>; USUAL_BATCH]>,
    /// The last of the batch's queues that keeps messages, by its place among them.
    last: usize,
    /// More waits to be written than should.
    pub(crate) full: bool,
}

/// The part of [`KeptMessages`] that is for one queue.
pub(crate) struct Kept<'k> {
    places: &'k [Option<MessageRef>],
    last: bool,
    /// Set while a message of another queue goes here, which is to leave that one at the same moment.
    transfer: Option<&'k mut Transfer>,
}

/// Notes what enters one queue.
pub(crate) struct Keeping<'k> {
    stored: &'k StoredQueue,
    kept: Kept<'k>,
    entries: SmallVec<[Entry; USUAL_BATCH]>,
}

impl KeptMessages {
    /// Writes down what is persistent, if one of the queues is to keep it.
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

    /// What is for the queue at a place. Each queue has to be asked for, in order.
    pub(crate) fn at(&self, at: usize) -> Kept<'_> {
        Kept { places: &self.places, last: at == self.last, transfer: None }
    }
}

impl<'k> Kept<'k> {
    /// Makes what enters the queue a part of a transfer.
    pub(crate) fn in_transfer(self, transfer: Option<&'k mut Transfer>) -> Self {
        Self { transfer, ..self }
    }

    /// Begins to fill a queue; `None` if there is nothing to note.
    pub(crate) fn begin(self, stored: Option<&'k StoredQueue>) -> Option<Keeping<'k>> {
        let stored = stored.filter(|_| !self.places.is_empty())?;
        Some(Keeping { stored, kept: self, entries: SmallVec::new() })
    }
}

impl Keeping<'_> {
    /// The message at `at` of the batch has got a position.
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

    /// The queue does not take the message at `at` of the batch.
    pub(crate) fn refuses(&self, at: usize) {
        if let Some(message) = self.kept.places[at].filter(|_| self.kept.last) {
            self.stored.release(message);
        }
    }

    /// The queue takes nothing at all.
    pub(crate) fn refuses_all(&self) {
        (0..self.kept.places.len()).for_each(|at| self.refuses(at));
    }

    /// Writes down what was taken. Called under the queue's lock. Returns what to wait for.
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

/// Messages of a batch that cost no allocation.
const USUAL_BATCH: usize = 8;
