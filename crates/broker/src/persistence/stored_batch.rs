//! Stores messages on their way into queues.

use std::sync::Arc;

use smallvec::SmallVec;
use store::journal::{Entry, Lsn, MessageRef, Transfer};
use store::{Store, StoredQueue};

use super::payload::with_parts;
use crate::message::Message;
use crate::queue::{Queue, StoredMessages, stored_expiry};

/// Records which messages of a batch are in the store, and where.
pub(crate) struct StoredBatch {
    /// One entry for each message of the batch; empty if none of them is stored.
    places: SmallVec<[Option<Place>; USUAL_BATCH]>,
    last: LastStoring,
    /// The store's backlog of unwritten data exceeds its limit.
    pub(crate) full: bool,
}

/// The indices of the last queues of a route that store persistent and transient messages.
#[derive(Clone, Copy)]
pub(crate) struct LastStoring {
    persistent: Option<usize>,
    transient: Option<usize>,
}

impl LastStoring {
    /// Examines all queues of a route.
    pub(crate) fn of(queues: &[Arc<Queue>]) -> Self {
        Self {
            persistent: queues.iter().rposition(|queue| queue.stored_messages() != StoredMessages::Nothing),
            transient: queues.iter().rposition(|queue| queue.stored_messages() == StoredMessages::All),
        }
    }

    fn of_message(self, message: &Message) -> Option<usize> {
        if message.broker_properties().persistent { self.persistent } else { self.transient }
    }
}

/// A message that is in the store.
#[derive(Clone, Copy)]
struct Place {
    message: MessageRef,
    /// If false, only queues that store all messages refer to it.
    is_persistent: bool,
}

/// The part of [`StoredBatch`] for one queue.
pub(crate) struct QueueBatch<'k> {
    places: &'k [Option<Place>],
    /// No later queue stores persistent messages.
    last: bool,
    /// No later queue stores transient messages.
    last_of_transient: bool,
    /// Set if the message comes from another queue, which it has to leave in the same atomic step.
    transfer: Option<&'k mut Transfer>,
}

/// Records the messages that enter one queue.
pub(crate) struct QueueAppend<'k> {
    stored: &'k StoredQueue,
    stores_all: bool,
    queue_batch: QueueBatch<'k>,
    entries: SmallVec<[Entry; USUAL_BATCH]>,
}

impl StoredBatch {
    /// Stores the messages that any of the queues stores.
    pub(crate) fn keep(store: Option<&Arc<Store>>, last: LastStoring, messages: &[Arc<Message>]) -> Self {
        let mut stored_batch = Self { places: SmallVec::new(), last, full: false };
        let Some(store) = store else { return stored_batch };
        if !messages.iter().any(|message| last.of_message(message).is_some()) {
            return stored_batch;
        }
        for message in messages {
            stored_batch.places.push(last.of_message(message).map(|_| {
                let appended = with_parts(message, |parts| store.append(parts));
                stored_batch.full |= appended.full;
                Place { message: appended.message, is_persistent: message.broker_properties().persistent }
            }));
        }
        stored_batch
    }

    /// The part for the queue at index `at`. Call it for each queue, in order.
    pub(crate) fn at(&self, at: usize) -> QueueBatch<'_> {
        let is_last = |last: Option<usize>| last == Some(at);
        QueueBatch {
            places: &self.places,
            last: is_last(self.last.persistent),
            last_of_transient: is_last(self.last.transient),
            transfer: None,
        }
    }
}

impl<'k> QueueBatch<'k> {
    /// Makes the messages that enter the queue part of a transfer.
    pub(crate) fn in_transfer(self, transfer: Option<&'k mut Transfer>) -> Self {
        Self { transfer, ..self }
    }

    /// Begins to enqueue; `None` if there is nothing to store.
    pub(crate) fn begin(self, queue: &'k Queue) -> Option<QueueAppend<'k>> {
        let stored = queue.stored().filter(|_| !self.places.is_empty())?;
        let stores_all = queue.stored_messages() == StoredMessages::All;
        Some(QueueAppend { stored, stores_all, queue_batch: self, entries: SmallVec::new() })
    }

    /// Whether this queue is the last one that refers to a message.
    fn is_last(&self, place: Place) -> bool {
        if place.is_persistent { self.last } else { self.last_of_transient }
    }
}

impl QueueAppend<'_> {
    /// Records the position of the message at index `at` of the batch.
    pub(crate) fn takes(&mut self, at: usize, position: u64, expires: u64) {
        if let Some(place) = self.place(at) {
            self.entries.push(Entry {
                position,
                message: place.message,
                expires: stored_expiry(expires),
                last: self.queue_batch.is_last(place),
            });
        }
    }

    /// Records that the queue does not take the message at index `at` of the batch.
    pub(crate) fn refuses(&self, at: usize) {
        if let Some(place) = self.place(at).filter(|place| self.queue_batch.is_last(*place)) {
            self.stored.release(place.message);
        }
    }

    /// Records that the queue takes no message of the batch.
    pub(crate) fn refuses_all(&self) {
        (0..self.queue_batch.places.len()).for_each(|at| self.refuses(at));
    }

    /// The message at index `at` of the batch, if the queue stores it.
    fn place(&self, at: usize) -> Option<Place> {
        self.queue_batch.places[at].filter(|place| place.is_persistent || self.stores_all)
    }

    /// Stores the recorded messages. Called under the queue's lock. Returns the log position to wait for.
    pub(crate) fn write(self) -> Option<Lsn> {
        if self.entries.is_empty() {
            return None;
        }
        Some(match self.queue_batch.transfer {
            Some(transfer) => self.stored.enqueue_in_transfer(&self.entries, transfer),
            None => self.stored.enqueue(&self.entries),
        })
    }
}

/// Batches of up to this many messages need no allocation.
const USUAL_BATCH: usize = 8;
