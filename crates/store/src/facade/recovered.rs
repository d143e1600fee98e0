//! The contents of a store at the time it was opened.

use std::sync::Arc;

use super::StoreError;
use super::merge::RestartedQueue;
use super::queue_storage::{QueueStorage, StoredQueues};
use crate::journal::{LiveMessage, QueueId};
use crate::pages::Survey;

/// The messages of a store at the time it was opened.
pub struct Recovered {
    stored_queues: Arc<StoredQueues>,
    queues: Vec<RestartedQueue>,
}

/// A queue in the store, which may no longer be in the catalogue: see [`super::Store::forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredQueue {
    /// The number that the catalogue has assigned to it.
    pub id: QueueId,
    /// Higher than any position that it has used.
    pub next_position: u64,
    /// Summary of its messages in its own segments. All others are in the journal, at later positions.
    pub segments: Survey,
}

/// A message's entry in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredLocation {
    /// The number of the queue in the catalogue.
    pub queue: QueueId,
    /// Ascends in the order of arrival in the queue.
    pub position: u64,
    /// When it expires, in milliseconds since 1970; 0 for never.
    pub expires: u64,
    /// How often it was delivered.
    pub deliveries: u32,
}

impl Recovered {
    pub(super) fn new(stored_queues: Arc<StoredQueues>, queues: Vec<RestartedQueue>) -> Self {
        Self { stored_queues, queues }
    }

    /// The queues, with and without messages.
    pub fn queues(&self) -> impl Iterator<Item = RecoveredQueue> {
        let found = self.queues.iter();
        found.map(|found| RecoveredQueue {
            id: found.storage.log.id(),
            next_position: found.next_position,
            segments: found.survey,
        })
    }

    /// Calls `each` with every message of the queues that are not deleted, and all its entries, in no order: all messages
    /// in the journal, and those in segments of the queues that `whole` names. A message that was moved to segments is
    /// passed once for each queue.
    ///
    /// # Errors
    /// A message that cannot be read.
    pub fn read(
        self,
        whole: impl Fn(QueueId) -> bool,
        mut each: impl FnMut(&[u8], &[StoredLocation]),
    ) -> Result<(), StoreError> {
        let mut live: Vec<(QueueId, LiveMessage)> = Vec::new();
        for RestartedQueue { storage, .. } in self.queues.iter().filter(|found| !found.storage.is_forgotten())
        {
            if whole(storage.log.id()) {
                read_segments(storage, &mut each)?;
            }
            let messages = storage.log.messages_from(0, usize::MAX);
            live.extend(messages.into_iter().map(|message| (storage.log.id(), message)));
        }
        // In log order, so that the log is read sequentially. Each queue's entries are nearly always in that order, which a
        // stable sort exploits.
        live.sort_by_key(|(queue, live)| (live.message, *queue, live.position));
        let mut reader = self.stored_queues.journal.reader(READ_AHEAD);
        let mut places = Vec::new();
        for same in live.chunk_by(|(_, one), (_, other)| one.message == other.message) {
            places.clear();
            places.extend(same.iter().map(|(queue, live)| StoredLocation {
                queue: *queue,
                position: live.position,
                expires: live.expires,
                deliveries: live.deliveries,
            }));
            each(reader.read(same[0].1.message)?, &places);
        }
        Ok(())
    }
}

fn read_segments(
    storage: &QueueStorage,
    each: &mut impl FnMut(&[u8], &[StoredLocation]),
) -> Result<(), StoreError> {
    let Some(segments) = storage.segments() else { return Ok(()) };
    let mut from = 0;
    loop {
        let messages = segments.read(from, usize::MAX, READ_AHEAD)?;
        let Some(last) = messages.last() else { return Ok(()) };
        from = last.position + 1;
        for message in &messages {
            let (position, deliveries) = (message.position, message.deliveries);
            let expires = message.expires.unwrap_or(0);
            each(
                &message.payload,
                &[StoredLocation { queue: storage.log.id(), position, expires, deliveries }],
            );
        }
    }
}

/// Large enough to read the log at the disk's full speed.
const READ_AHEAD: usize = 1 << 20;
