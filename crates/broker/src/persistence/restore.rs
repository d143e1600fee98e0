//! Bringing messages back into their queues.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use store::journal::QueueId;
use store::{Recovered, Store, StoreError};

use super::payload::Decoder;
use crate::definitions::DefinitionsError;
use crate::queue::{Delivery, NEVER, Queue};
use crate::time::Timestamp;

/// Why a broker could not be brought back.
#[derive(Debug)]
pub enum RestoreError {
    /// The definitions.
    Definitions(DefinitionsError),
    /// A message cannot be read.
    Messages(StoreError),
    /// A message has a form that this version does not know, in the queue of this name.
    UnknownForm(Arc<str>),
}

/// Queues that have their messages back, in which time has stood still.
pub(crate) struct Restored {
    queues: Vec<Arc<Queue>>,
    messages: u64,
}

impl Restored {
    /// Fills queues, by their numbers on disk, with their messages. Those of other queues are forgotten.
    pub(crate) fn fill(
        store: &Store,
        recovered: Recovered,
        queues: &HashMap<u64, Arc<Queue>>,
    ) -> Result<Self, RestoreError> {
        let mut found = HashMap::new();
        for known in recovered.queues() {
            match queues.get(&known.id.0) {
                Some(queue) => drop(found.insert(known.id, (queue, known.next_position, Vec::new()))),
                None => store.forget(known.id),
            }
        }
        let unreadable = read(recovered, &mut found)?;
        if let Some(queue) = unreadable {
            return Err(RestoreError::UnknownForm(queue));
        }
        let mut restored = Self { queues: Vec::with_capacity(found.len()), messages: 0 };
        for (queue, next_position, mut deliveries) in found.into_values() {
            restored.messages += deliveries.len() as u64;
            deliveries.sort_unstable_by_key(|delivery| delivery.position);
            queue.restore(deliveries, next_position);
            restored.queues.push(queue.clone());
        }
        Ok(restored)
    }

    /// Lets time go on: messages expire, and what is too long is cut. Returns how many messages came back.
    pub(crate) fn resume(self, now: Timestamp) -> u64 {
        self.queues.iter().for_each(|queue| queue.restored(now));
        self.messages
    }
}

type Found<'q> = HashMap<QueueId, (&'q Arc<Queue>, u64, Vec<Delivery>)>;

/// The name of a queue with a message of an unknown form, if there is one.
fn read(recovered: Recovered, found: &mut Found<'_>) -> Result<Option<Arc<str>>, RestoreError> {
    let mut decoder = Decoder::default();
    let mut unreadable = None;
    let each = |payload: &[u8], places: &[store::Place]| {
        let message = decoder.decode(payload).map(Arc::new);
        for place in places {
            let Some((queue, _, deliveries)) = found.get_mut(&place.queue) else { continue };
            let Some(message) = &message else {
                unreadable = Some(queue.name().clone());
                continue;
            };
            deliveries.push(Delivery {
                position: place.position,
                expires: if place.expires == 0 { NEVER } else { place.expires },
                message: message.clone(),
                deliveries: place.deliveries,
            });
        }
    };
    recovered.read(each).map_err(RestoreError::Messages)?;
    Ok(unreadable)
}

impl From<DefinitionsError> for RestoreError {
    fn from(error: DefinitionsError) -> Self {
        Self::Definitions(error)
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definitions(error) => error.fmt(into),
            Self::Messages(error) => error.fmt(into),
            Self::UnknownForm(queue) => {
                write!(into, "queue '{queue}' has messages that were written by a newer version")
            }
        }
    }
}

impl std::error::Error for RestoreError {}
