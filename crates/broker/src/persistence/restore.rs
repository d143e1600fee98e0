//! Restores messages to their queues.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use store::journal::QueueId;
use store::{Recovered, Store, StoreError};

use super::filling::{LoadBudget, QueueRecovery};
use super::payload::Decoder;
use crate::definitions::DefinitionsError;
use crate::queue::Queue;
use crate::time::Timestamp;

/// The reason why a broker could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The definitions cannot be loaded.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// A message cannot be read.
    #[error(transparent)]
    Messages(StoreError),
    /// A message in the queue of this name has a format that this version does not know.
    #[error("queue '{0}' has messages that were written by a newer version")]
    UnknownForm(Arc<str>),
}

/// Queues whose messages are restored, and in which nothing has expired yet.
pub(crate) struct Restored {
    queues: Vec<Arc<Queue>>,
    messages: u64,
}

impl Restored {
    /// Fills queues, keyed by their numbers on disk, with their messages. Messages of other queues are dropped. For queues
    /// with many messages only the counts are restored: the messages stay on disk until they are needed.
    pub(crate) fn fill(
        store: &Store,
        recovered: Recovered,
        queues: &HashMap<u64, Arc<Queue>>,
        watermark: u64,
    ) -> Result<Self, RestoreError> {
        let mut space = LoadBudget(watermark.min(WARM_BYTES));
        let mut found = HashMap::new();
        for known in recovered.queues() {
            match queues.get(&known.id.0) {
                Some(queue) => drop(found.insert(known.id, QueueRecovery::new(queue, &known, &mut space))),
                None => store.forget(known.id),
            }
        }
        let unreadable = read(recovered, &mut found, space)?;
        if let Some(queue) = unreadable {
            return Err(RestoreError::UnknownForm(queue));
        }
        let mut restored = Self { queues: Vec::with_capacity(found.len()), messages: 0 };
        for filling in found.into_values() {
            restored.queues.push(filling.queue.clone());
            restored.messages += filling.finish();
        }
        Ok(restored)
    }

    /// Applies expiry and length limits. Returns the number of messages restored.
    pub(crate) fn resume(self, now: Timestamp) -> u64 {
        self.queues.iter().for_each(|queue| queue.restored(now));
        self.messages
    }
}

/// Reads all messages into `found`. Returns the name of a queue with a message of an unknown format, if there
/// is one.
fn read(
    recovered: Recovered,
    found: &mut HashMap<QueueId, QueueRecovery<'_>>,
    mut space: LoadBudget,
) -> Result<Option<Arc<str>>, RestoreError> {
    let mut decoder = Decoder::default();
    let mut unreadable = None;
    let whole: HashSet<QueueId> =
        found.iter().filter(|(_, filling)| filling.wants_segments()).map(|(id, _)| *id).collect();
    let each = |payload: &[u8], places: &[store::StoredLocation]| {
        let message = decoder.decode(payload).map(|mut message| {
            message.share(places.len());
            Arc::new(message)
        });
        for place in places {
            let Some(filling) = found.get_mut(&place.queue) else { continue };
            match &message {
                Some(message) => filling.take(message, place, &mut space),
                None => unreadable = Some(filling.queue.name().clone()),
            }
        }
    };
    recovered.read(|id| whole.contains(&id), each).map_err(RestoreError::Messages)?;
    Ok(unreadable)
}

/// The most bytes of memory that a start fills with messages: a small broker has all its messages in memory again, and a
/// large one starts within seconds.
const WARM_BYTES: u64 = 64 << 20;
