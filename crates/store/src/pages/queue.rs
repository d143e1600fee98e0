//! The in-memory state of one queue's segments.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::files::{OpenFiles, SegmentFileName};
use super::read::Cursor;
use super::record::Record;
use super::segment::PageSegment;
use crate::disk::DiskFile;

/// The messages of one queue that are in segments.
///
/// Methods that change or query the in-memory state ([`settle`](Self::settle), [`purge`](Self::purge), [`live`](Self::live)
/// and so on) never access the disk and may be called under a queue's lock. All others read or write files and must not be.
/// Reads continue during writes; writers wait for each other.
pub struct QueueSegments {
    pub(super) files: Arc<OpenFiles>,
    pub(super) directory: String,
    pub(super) queue: u64,
    /// Whether the segments survive a restart.
    pub(super) durable: bool,
    /// Locked across I/O, and before `state`.
    pub(super) writer: Mutex<SegmentWriter>,
    /// A leaf: while it is locked, no other lock is taken and no file is accessed.
    pub(super) state: Mutex<QueueState>,
}

/// State used only by writers.
#[derive(Default)]
pub(super) struct SegmentWriter {
    /// Whether the directory was created.
    pub(super) directory: bool,
    /// Whether the directory contains names that are not durable.
    pub(super) names: bool,
    /// The same for the directories above.
    pub(super) parents: bool,
    /// The open segment's file, while it has unsynced data: the kernel reports write-back errors only to descriptors that
    /// were open at the time.
    pub(super) pinned: Option<Arc<dyn DiskFile>>,
    /// Removed segments whose index and sidecars stay until their removal is durable.
    pub(super) orphans: Vec<Arc<SegmentFileName>>,
}

/// The state of the messages.
#[derive(Default)]
pub(super) struct QueueState {
    /// Ascending in position and in sequence. The last one may be open.
    pub(super) segments: VecDeque<PageSegment>,
    pub(super) next_sequence: u64,
    /// The highest position that was ever appended.
    pub(super) last: Option<u64>,
    pub(super) live: u64,
    /// Segments without live messages, whose files still exist.
    pub(super) dead: Vec<Arc<SegmentFileName>>,
    /// Position and offset at which the last read ended.
    pub(super) cursor: Option<Cursor>,
}

/// Size of a queue's segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Messages that are not settled.
    pub live: u64,
    /// Their weight: exact, except where some messages within 64 KiB of a segment are settled and weights differ.
    pub weight: u64,
    /// Bytes of the files, including settled messages and data still to be written.
    pub disk: u64,
    /// Bytes of memory used by the state of the segments, indexes included.
    pub memory: u64,
    /// Segments that are open or sealed.
    pub segments: usize,
}

impl QueueSegments {
    pub(super) fn new(files: Arc<OpenFiles>, directory: String, queue: u64, durable: bool) -> Self {
        Self { files, directory, queue, durable, writer: Mutex::default(), state: Mutex::default() }
    }

    /// Removes messages permanently: acknowledged, dropped, expired or dead-lettered. Ignores unknown positions. Returns
    /// how many were removed. Never accesses the disk: see [`reap`](Self::reap).
    pub fn settle(&self, positions: impl IntoIterator<Item = RangeInclusive<u64>>) -> u64 {
        let mut state = self.state.lock();
        positions.into_iter().map(|range| state.settle(*range.start(), *range.end())).sum()
    }

    /// Removes all messages, and returns how many there were. Never accesses the disk.
    pub fn purge(&self) -> u64 {
        self.state.lock().settle(0, u64::MAX)
    }

    /// Sets the delivery count of messages, for reads from now on, and for a restart once it is persisted. Ignores unknown
    /// positions. Never accesses the disk.
    pub(crate) fn mark_delivered(
        &self,
        positions: impl IntoIterator<Item = RangeInclusive<u64>>,
        deliveries: u32,
    ) {
        let mut state = self.state.lock();
        for range in positions {
            let (from, to) = (*range.start(), *range.end());
            for segment in state.overlapping(from, to) {
                segment.mark(from, to, deliveries);
            }
        }
    }

    /// Number of messages that are not settled.
    pub fn live(&self) -> u64 {
        self.state.lock().live
    }

    /// Whether a message is here and not settled.
    pub fn is_live(&self, position: u64) -> bool {
        self.state.lock().is_live(position)
    }

    /// The first live message at or above a position.
    pub(crate) fn next_live(&self, from: u64) -> Option<u64> {
        let state = self.state.lock();
        let start = state.segments.partition_point(|segment| segment.shape.last < from);
        state.segments.range(start..).find_map(|segment| segment.live.next(from))
    }

    /// Sums up the segments. Takes time in proportion to the partly settled ones: meant for metrics, not for every message.
    pub fn usage(&self) -> Usage {
        let state = self.state.lock();
        let mut usage = Usage { live: state.live, segments: state.segments.len(), ..Usage::default() };
        usage.memory = size_of::<Self>() as u64;
        for segment in &state.segments {
            usage.weight += segment.live_weight();
            usage.disk += segment.shape.length;
            usage.memory += segment.memory() as u64;
        }
        usage
    }
}

impl QueueState {
    pub(super) fn settle(&mut self, from: u64, to: u64) -> u64 {
        let settled = self.overlapping(from, to).map(|segment| segment.settle(from, to)).sum();
        self.live -= settled;
        if settled > 0 {
            self.drop_settled(from, to);
        }
        settled
    }

    /// Removes sealed segments in a range of positions that have no live messages left.
    pub(super) fn drop_settled(&mut self, from: u64, to: u64) {
        let start = self.segments.partition_point(|segment| segment.shape.last < from);
        let end = self.segments.partition_point(|segment| segment.first <= to);
        let is_dead = |segment: &PageSegment| !segment.is_open() && segment.live.count() == 0;
        if self.segments.range(start..end.max(start)).any(is_dead) {
            let dead =
                self.segments.iter().filter(|segment| is_dead(segment)).map(|segment| segment.file.clone());
            self.dead.extend(dead);
            self.segments.retain(|segment| !is_dead(segment));
        }
    }

    pub(super) fn is_live(&self, position: u64) -> bool {
        self.holding(position).is_some_and(|segment| segment.live.contains(position))
    }

    /// The segment that contains a position, if there is one.
    pub(super) fn holding(&self, position: u64) -> Option<&PageSegment> {
        self.segments.get(self.segments.partition_point(|segment| segment.shape.last < position))
    }

    fn overlapping(&mut self, from: u64, to: u64) -> impl Iterator<Item = &mut PageSegment> {
        let start = self.segments.partition_point(|segment| segment.shape.last < from);
        self.segments.range_mut(start..).take_while(move |segment| segment.first <= to)
    }

    /// The segment that is appended to.
    pub(super) fn open_segment(&mut self) -> Option<&mut PageSegment> {
        self.segments.back_mut().filter(|segment| segment.is_open())
    }

    /// Appends a live record to the open segment, in the buffer, and opens a segment if there is none.
    pub(super) fn push(&mut self, record: &Record<'_>, owner: &QueueSegments) {
        if self.open_segment().is_none() {
            let salt = RandomState::new().build_hasher().finish();
            let file = owner.files.segment(&owner.directory, self.next_sequence, salt);
            self.next_sequence += 1;
            self.segments.push_back(PageSegment::open(file, owner.queue, record.position));
        }
        let Some(segment) = self.segments.back_mut() else { return };
        segment.append(record, owner.files.sizes.block);
        self.last = self.last.max(Some(record.position));
        self.live += 1;
    }
}
