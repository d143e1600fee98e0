//! The part of a level that is on disk.

use std::collections::VecDeque;
use std::sync::Arc;

use store::pages::QueueSegments;

use super::OnDisk;
use crate::queue::delivery::{Delivery, NEVER};

/// Messages on disk. None of them has been delivered since the broker started. The run includes all messages on disk at its
/// positions, except returned ones, which precede it.
pub(crate) struct Run {
    /// First and last positions of its spans, ascending. If all messages have one rank there is only one span.
    spans: VecDeque<(u64, u64)>,
    /// The number of messages that are in the store.
    pub(super) stored: u64,
    /// The number of messages that are in `page_segments`.
    written: u64,
    /// Bytes of the bodies of all these messages.
    pub(crate) bytes: u64,
    /// Lower bound of their expiry times.
    pub(super) expires: u64,
    /// The segments of messages that are not in the store.
    pub(super) page_segments: Option<Arc<QueueSegments>>,
}

/// A load to perform: its level and positions.
pub(crate) struct Plan {
    pub(super) rank: u8,
    pub(super) epoch: u64,
    /// It loads returned messages, not those of the run.
    pub(super) of_returned: bool,
    spans: Vec<(u64, u64)>,
    pub(crate) has_stored: bool,
    pub(crate) page_segments: Option<Arc<QueueSegments>>,
}

impl Default for Run {
    fn default() -> Self {
        Self { spans: VecDeque::new(), stored: 0, written: 0, bytes: 0, expires: NEVER, page_segments: None }
    }
}

impl Run {
    pub(crate) fn messages(&self) -> u64 {
        self.stored + self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages() == 0
    }

    pub(super) fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spans.iter().copied()
    }

    pub(super) fn on_disk(&self) -> OnDisk {
        OnDisk { messages: self.messages(), bytes: self.bytes }
    }

    /// Adds stored messages found at a start after all others: `messages` messages with `bytes` bytes of bodies, between
    /// the first and the last position of `span`.
    pub(crate) fn add_stored(&mut self, span: (u64, u64), messages: u64, bytes: u64, expires: u64) {
        self.extend(span, true);
        self.count_stored(messages, bytes, expires);
    }

    /// Adds one stored message found at a start after all others, in a queue that may have several levels.
    pub(crate) fn add_one_stored(&mut self, position: u64, bytes: u64, expires: u64) {
        self.extend((position, position), false);
        self.count_stored(1, bytes, expires);
    }

    /// Adds a message after all others.
    pub(super) fn add(&mut self, delivery: &Delivery, stored: bool, single: bool) {
        self.extend((delivery.position, delivery.position), single);
        *(if stored { &mut self.stored } else { &mut self.written }) += 1;
        self.bytes += delivery.message.body_len() as u64;
        self.expires = self.expires.min(delivery.expires);
    }

    /// Adds a stored message before all others.
    pub(super) fn add_front(&mut self, delivery: &Delivery, single: bool) {
        match self.spans.front_mut() {
            Some(front) if single || delivery.position + 1 == front.0 => front.0 = delivery.position,
            _ => self.spans.push_front((delivery.position, delivery.position)),
        }
        self.count_stored(1, delivery.message.body_len() as u64, delivery.expires);
    }

    fn count_stored(&mut self, messages: u64, bytes: u64, expires: u64) {
        self.stored += messages;
        self.bytes += bytes;
        self.expires = self.expires.min(expires);
    }

    fn extend(&mut self, (first, last): (u64, u64), single: bool) {
        match self.spans.back_mut() {
            Some(back) if single || back.1 + 1 == first => back.1 = last,
            _ => self.spans.push_back((first, last)),
        }
    }

    /// Removes a message that is in memory again.
    pub(super) fn remove(&mut self, delivery: &Delivery, stored: bool) {
        let count = if stored { &mut self.stored } else { &mut self.written };
        *count = count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(delivery.message.body_len() as u64);
    }

    /// Removes the positions up to `through`, which have been loaded. If none are left, returns the counts of messages that
    /// were expected but not found.
    pub(super) fn passed(&mut self, through: u64) -> OnDisk {
        while let Some(first) = self.spans.front_mut().filter(|first| first.0 <= through) {
            if first.1 > through {
                first.0 = through + 1;
                break;
            }
            self.spans.pop_front();
        }
        if !self.spans.is_empty() && !self.is_empty() {
            return OnDisk::default();
        }
        let lost = self.on_disk();
        if lost.messages > 0 {
            tracing::error!(messages = lost.messages, "unreadable messages dropped");
        }
        *self = Self { page_segments: self.page_segments.take(), ..Self::default() };
        lost
    }

    pub(super) fn plan(&self, rank: u8, epoch: u64) -> Option<Plan> {
        let spans = self.spans.iter().take(PLANNED_SPANS).copied().collect();
        (!self.is_empty()).then(|| Plan {
            rank,
            epoch,
            of_returned: false,
            spans,
            has_stored: self.stored > 0,
            page_segments: self.page_segments.clone().filter(|_| self.written > 0),
        })
    }
}

impl Plan {
    /// A load of returned messages, all of which are in the store; `spans` are ascending.
    pub(super) fn of_returned(rank: u8, epoch: u64, spans: impl Iterator<Item = (u64, u64)>) -> Self {
        let spans = spans.take(PLANNED_SPANS).collect();
        Self { rank, epoch, of_returned: true, spans, has_stored: true, page_segments: None }
    }

    pub(super) fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spans.iter().copied()
    }

    /// The first position of the run at or above this one.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        let span = self.spans.get(self.spans.partition_point(|span| span.1 < from))?;
        Some(span.0.max(from))
    }

    pub(crate) fn contains(&self, position: u64) -> bool {
        self.next(position) == Some(position)
    }

    /// The last position to be loaded.
    pub(crate) fn last(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.1)
    }

    /// The number of positions from `from` on that are worth reading in one go.
    pub(crate) fn stretch(&self, from: u64, most: u64) -> u64 {
        let end = self.spans.iter().rev().find(|span| span.0 < from.saturating_add(most));
        end.map_or(1, |span| span.1.saturating_sub(from) + 1).clamp(1, most)
    }
}

/// Spans in one plan, if messages of several priorities alternate.
const PLANNED_SPANS: usize = 1024;
