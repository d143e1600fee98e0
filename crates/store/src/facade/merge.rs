//! Merges the parts of each queue that a restart finds in the journal and in segments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::StoreError;
use super::inventory::Inventory;
use super::queue_storage::{QueueStorage, StoredQueues, inclusive};
use crate::journal::{self, Journal, JournalQueue, QueueId};
use crate::pages::{Durability, Pages, PagesError, QueueSegments, Repair, Survey};

/// A queue as a restart finds it.
pub(super) struct RestartedQueue {
    pub(super) storage: Arc<QueueStorage>,
    /// Higher than any position that a record on disk names.
    pub(super) next_position: u64,
    /// The contents of its segments.
    pub(super) survey: Survey,
}

/// Opens the segments of all queues, and settles in them what the journal has settled. Includes queues that are no longer
/// in the catalogue.
///
/// # Errors
/// Segments that cannot be read, that are damaged, or that are missing although the inventory lists them.
pub(super) fn merge(
    journal: Arc<Journal>,
    pages: Pages,
    recovered: journal::RecoveredJournal,
    inventory: &Inventory,
) -> Result<(Arc<StoredQueues>, Vec<RestartedQueue>), StoreError> {
    pages.wipe_transient()?;
    for queue in inventory.queues().collect::<BTreeSet<_>>() {
        if let Some(missing) = pages.missing(queue, inventory.segments_of(queue))?.into_iter().next() {
            return Err(PagesError::Damaged(missing).into());
        }
    }
    // A queue may be in the journal, have segments, or both.
    let mut queues: BTreeMap<QueueId, Option<JournalQueue>> =
        recovered.queues.into_iter().map(|queue| (queue.queue.id(), Some(queue))).collect();
    let directories: BTreeSet<_> = pages.queues(Durability::Durable)?.into_iter().map(QueueId).collect();
    for id in &directories {
        queues.entry(*id).or_default();
    }
    let stored_queues = StoredQueues::new(journal, pages);
    let mut found = Vec::with_capacity(queues.len());
    for (id, queue) in queues {
        let mut next_position = queue.as_ref().map_or(0, |queue| queue.next_position);
        let mut segments = None;
        let mut survey = Survey::default();
        if directories.contains(&id) {
            let (opened, recovered) = stored_queues.pages.open(id.0, Repair::Refuse)?;
            for cut in &recovered.cut {
                let (file, offset, bytes) = (&cut.file, cut.offset, cut.bytes);
                tracing::warn!(file, offset, bytes, "truncated torn queue segment after a crash");
            }
            if let Some(queue) = &queue {
                repeat(&stored_queues.journal, queue, &opened, recovered.last);
            }
            next_position = next_position.max(recovered.last.map_or(0, |last| last + 1));
            // After replaying the journal, so that only live messages count.
            survey = opened.survey()?;
            segments = Some(opened);
        }
        let log = queue.map_or_else(|| stored_queues.journal.queue(id), |queue| queue.queue);
        found.push(RestartedQueue { storage: stored_queues.add(log, segments), next_position, survey });
    }
    Ok((Arc::new(stored_queues), found))
}

/// Replays the journal's events in the segments, and removes from the journal the messages that the segments have.
fn repeat(journal: &Journal, queue: &JournalQueue, segments: &QueueSegments, last: Option<u64>) {
    segments.settle(queue.settled.iter().map(inclusive));
    for (range, count) in &queue.delivered {
        segments.mark_delivered([inclusive(range)], *count);
    }
    // Messages are copied in order, so all up to the last copy were copied, and any that are missing were settled.
    let copied = last.map_or_else(Vec::new, |last| {
        let messages = queue.queue.messages_from(0, usize::MAX).into_iter();
        messages.map(|live| live.position).take_while(|position| *position <= last).collect()
    });
    journal.moved(&queue.queue, copied);
}
