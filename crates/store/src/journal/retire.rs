//! Retirement: the oldest part of the log is dropped once its messages are settled or stored elsewhere.

use std::io;
use std::sync::Arc;

use super::address::{Lsn, QueueId, Range};
use super::index::LiveMessage;
use super::pending::PendingRecords;
use super::{Journal, QueueLog};

/// A part of the log that is retired as a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSegment {
    /// LSN of its first record.
    pub first: Lsn,
    /// LSN after its last record.
    pub end: Lsn,
    /// Number of its messages that are still needed, counted once per queue, and of those that have not reached their
    /// queues yet.
    pub live: u64,
    /// Whether all of it is on disk and nothing will be added to it.
    pub sealed: bool,
}

/// Why a segment was not retired.
#[derive(Debug, thiserror::Error)]
pub enum RetireError {
    /// It is not the oldest, is still being written, or has messages that have not reached their queues: try again later.
    #[error("the journal's segment at {} is in use", .0.first.0)]
    Busy(JournalSegment),
    /// The log has dropped it, but its file could not be recycled. The next call does so; until then no other segment
    /// is retired.
    #[error("journal segment not recycled: {0}")]
    Disk(#[source] io::Error),
}

impl Journal {
    /// The parts of the log, oldest first.
    pub fn segments(&self) -> Vec<JournalSegment> {
        self.describe(&self.pending.lock()).collect()
    }

    fn describe(&self, pending: &PendingRecords) -> impl Iterator<Item = JournalSegment> {
        let (durable, last) = (self.durable(), pending.extents().last().map(|extent| extent.first));
        pending.extents().map(move |extent| JournalSegment {
            first: Lsn(extent.first),
            end: Lsn(extent.end),
            live: extent.live,
            // A record after it must be on disk too: records that were found after an extent at the start still have to be
            // repeated.
            sealed: Some(extent.first) != last && extent.end < durable.0,
        })
    }

    /// The number of queues that have messages in the log.
    pub(crate) fn queues_with_messages(&self) -> u64 {
        let queues = self.all_queues();
        queues.iter().filter(|queue| !queue.is_empty()).count() as u64
    }

    fn all_queues(&self) -> Vec<Arc<QueueLog>> {
        self.queues.lock().values().cloned().collect()
    }

    /// The messages of a segment that queues still need, by queue: in order of position, including all earlier messages.
    /// [`Journal::reader`] reads the bodies.
    pub fn live_messages(
        &self,
        segment: JournalSegment,
    ) -> impl Iterator<Item = (Arc<QueueLog>, Vec<LiveMessage>)> {
        let mut queues = self.all_queues();
        queues.sort_unstable_by_key(|queue| queue.id());
        queues.into_iter().filter_map(move |queue| {
            let live = queue.live_before(segment.end);
            (!live.is_empty()).then_some((queue, live))
        })
    }

    /// Removes messages of a queue from the journal once their copies elsewhere are on disk. Returns the positions that
    /// were settled since [`Journal::live_messages`] listed them, which have to be settled in the copy too.
    pub fn moved(&self, queue: &QueueLog, positions: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut settled = Vec::new();
        let mut messages = Vec::new();
        let mut index = queue.index.lock();
        for position in positions {
            let before = messages.len();
            index.settle(Range::one(position), |message| messages.push(message));
            if messages.len() == before {
                settled.push(position);
            }
        }
        drop(index);
        let mut pending = self.pending.lock();
        messages.iter().for_each(|message| pending.drop_live(message.to_u64()));
        settled
    }

    /// Drops the oldest segment. All its messages must be settled or [moved](Journal::moved). Where its records settled
    /// messages that are stored elsewhere, that must be on disk there.
    ///
    /// # Errors
    /// See [`RetireError`].
    pub fn retire(&self, segment: JournalSegment) -> Result<(), RetireError> {
        self.spares.recycle([]).map_err(RetireError::Disk)?;
        let mut pending = self.pending.lock();
        let oldest = self.describe(&pending).next();
        match oldest {
            Some(oldest) if oldest.first == segment.first && oldest.sealed && oldest.live == 0 => {
                pending.retire()
            }
            oldest => return Err(RetireError::Busy(oldest.unwrap_or(segment))),
        }
        drop(pending);
        let mut files = self.files.write();
        let gone = files.iter().take_while(|file| file.header.first < segment.end.0).count();
        let gone: Vec<_> = files.drain(..gone).collect();
        drop(files);
        self.spares.recycle(gone).map_err(RetireError::Disk)
    }
}

impl QueueLog {
    /// All messages up to the last one before `end`: a queue's order may differ a little from the log's, and messages are
    /// moved in the queue's order.
    fn live_before(&self, end: Lsn) -> Vec<LiveMessage> {
        let mut last = None;
        self.each(|live| {
            if live.message.to_u64() < end.0 {
                last = Some(live.position);
            }
            true
        });
        let mut found = Vec::new();
        let Some(last) = last else { return found };
        self.each(|live| {
            let wanted = live.position <= last;
            if wanted {
                found.push(live);
            }
            wanted
        });
        found
    }

    /// Calls `each` with the live messages in order until it returns `false`. Works in steps, since the lock blocks the
    /// queue's publishers.
    fn each(&self, mut each: impl FnMut(LiveMessage) -> bool) {
        let mut from = 0;
        loop {
            let index = self.index.lock();
            let mut seen = 0;
            for live in index.from(from).take(STEP) {
                from = live.position + 1;
                seen += 1;
                if !each(live) {
                    return;
                }
            }
            if seen < STEP {
                return;
            }
        }
    }
}

impl QueueLog {
    /// The number of the queue in the catalogue.
    pub fn id(&self) -> QueueId {
        self.id
    }
}

/// Entries visited under one lock of a queue, in well under a millisecond.
const STEP: usize = 16 << 10;
