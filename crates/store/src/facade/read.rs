//! Reads a queue's messages from the journal and from its segments.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::StoreError;
use super::queue_storage::QueueStorage;
use crate::journal::{Journal, LiveMessage, ReadError};
use crate::pages::{Damage, PagesError, QueueSegments, Stored};

/// Live messages from a position on, in order: as many as `max_messages` and `max_bytes` allow, but at least one.
pub(super) fn read(
    storage: &QueueStorage,
    journal: &Journal,
    from: u64,
    max_messages: usize,
    max_bytes: usize,
) -> Result<Vec<Stored>, StoreError> {
    loop {
        // The journal first: messages that move to the segments meanwhile are then found twice instead of missed.
        let live = storage.log.messages_from(from, max_messages);
        let mut moved = BTreeMap::new();
        let mut limit = u64::MAX;
        if let Some(segments) = storage.segments() {
            let stored = match segments.read(from, max_messages, max_bytes) {
                Err(PagesError::Damaged(damage)) if drop_damaged(storage, segments, journal, &damage) => {
                    continue;
                }
                stored => stored?,
            };
            if let Some(last) = stored.last() {
                limit = segments.next_live(last.position + 1).unwrap_or(u64::MAX);
            }
            moved = stored.into_iter().map(|stored| (stored.position, stored)).collect();
        }
        match merge(live, moved, limit, journal, (max_messages, max_bytes)) {
            // Settled, or moved and retired, after it was listed.
            Err(ReadError::Gone) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Drops the messages at a damaged location, as the journal does, so that later messages are not lost as well. Returns
/// whether it dropped any; it does not while another read may help.
fn drop_damaged(
    storage: &QueueStorage,
    segments: &QueueSegments,
    journal: &Journal,
    damage: &Damage,
) -> bool {
    if storage.found_damaged(*damage.lost.start()) < DAMAGED_READS {
        return false;
    }
    let lost = segments.settle([damage.lost.clone()]);
    if lost > 0 {
        tracing::error!(%damage, queue = storage.log.id().0, messages = lost, "unreadable messages dropped");
        journal.figures().unreadable.fetch_add(lost, Ordering::Relaxed);
    }
    lost > 0
}

/// How often a damaged location is read before its messages are dropped: a disk may return wrong data once and correct data
/// a moment later.
const DAMAGED_READS: u32 = 3;

/// Merges both parts in order, up to `limit`, at which the segments have messages that were not read.
fn merge(
    live: Vec<LiveMessage>,
    mut moved: BTreeMap<u64, Stored>,
    limit: u64,
    journal: &Journal,
    (max_messages, max_bytes): (usize, usize),
) -> Result<Vec<Stored>, ReadError> {
    let mut reader = journal.reader(max_bytes.clamp(MIN_READ_AHEAD, MAX_READ_AHEAD));
    let mut taken = MergedMessages { messages: Vec::new(), bytes: 0, max_messages, max_bytes };
    for message in live {
        while let Some(first) = moved.first_entry().filter(|first| *first.key() <= message.position) {
            if !taken.take(first.remove()) {
                return Ok(taken.messages);
            }
        }
        let repeated = taken.messages.last().is_some_and(|last| last.position == message.position);
        if repeated {
            continue;
        }
        if message.position >= limit || !taken.take(stored(&message, reader.read(message.message)?)) {
            return Ok(taken.messages);
        }
    }
    let _ = moved.into_values().try_for_each(|message| taken.take(message).then_some(()));
    Ok(taken.messages)
}

struct MergedMessages {
    messages: Vec<Stored>,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
}

impl MergedMessages {
    /// Adds a message if the limits allow it.
    fn take(&mut self, message: Stored) -> bool {
        let bytes = self.bytes + message.payload.len();
        let fits = self.messages.is_empty() || bytes <= self.max_bytes;
        if self.messages.len() == self.max_messages || !fits {
            return false;
        }
        self.bytes = bytes;
        self.messages.push(message);
        true
    }
}

fn stored(message: &LiveMessage, payload: &[u8]) -> Stored {
    Stored {
        position: message.position,
        expires: (message.expires != 0).then_some(message.expires),
        deliveries: message.deliveries,
        transient: false,
        payload: payload.to_vec(),
    }
}

/// Smaller reads are not worth a system call.
const MIN_READ_AHEAD: usize = 4 << 10;
/// Larger reads are no faster.
const MAX_READ_AHEAD: usize = 1 << 20;
