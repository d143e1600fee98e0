//! The in-memory state of a segment.

use std::sync::Arc;

use super::files::SegmentFileName;
use super::marks::Marks;
use super::positions::PositionSet;
use super::record::{RECORD_HEADER, Record, SEGMENT_HEADER};

/// A segment: its file, its live messages, and the offsets at which to look for them.
pub(super) struct PageSegment {
    pub(super) file: Arc<SegmentFileName>,
    /// Position of the first record.
    pub(super) first: u64,
    pub(super) shape: Shape,
    /// The shape of the part that is known to be on disk; `None` before the first sync.
    pub(super) synced: Option<Shape>,
    /// Bytes that were written to the file; the rest of the shape's length is in the write buffer.
    pub(super) written: u64,
    /// Whether no more records are appended.
    pub(super) sealed: bool,
    pub(super) live: PositionSet,
    /// The positions of transient messages, until it is sealed.
    pub(super) transients: PositionSet,
    pub(super) marks: Marks,
    /// The sparse index, ascending.
    pub(super) blocks: Vec<Block>,
    pub(super) sidecar: SidecarState,
}

/// Totals of a segment's records, settled or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) last: u64,
    pub(super) records: u64,
    /// How many of these a restart keeps.
    pub(super) persistent: u64,
    /// Weight of all records.
    pub(super) weight: u64,
    /// Bytes of the file.
    pub(super) length: u64,
    /// When the first of them expires; `u64::MAX` if none ever does.
    pub(super) expires: u64,
}

/// An entry of the sparse index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Position of its first record, relative to the segment's first.
    pub(super) position: u32,
    pub(super) offset: u32,
    pub(super) records: u32,
    /// Weight of its records.
    pub(super) weight: u32,
}

/// How far settled positions and marks are on disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SidecarState {
    /// Counts changes in memory.
    pub(super) version: u64,
    /// The version that is on disk.
    pub(super) persisted: u64,
    /// Generation of the newest sidecar on disk; its slot is the generation's lowest bit. 0: there is none.
    pub(super) generation: u64,
    /// Whether a restart found that sidecar: it may not have been synced.
    pub(super) found: bool,
}

impl PageSegment {
    /// A segment whose first record will have this position.
    pub(super) fn new(file: Arc<SegmentFileName>, first: u64) -> Self {
        let length = SEGMENT_HEADER as u64;
        Self {
            file,
            first,
            shape: Shape { last: first, records: 0, persistent: 0, weight: 0, length, expires: u64::MAX },
            synced: None,
            written: 0,
            sealed: false,
            live: PositionSet::new(first),
            transients: PositionSet::new(first),
            marks: Marks::default(),
            blocks: Vec::new(),
            sidecar: SidecarState::default(),
        }
    }

    /// Counts a record at the end, with an entry in the sparse index every `block` bytes. The caller decides whether it
    /// is live.
    pub(super) fn count(&mut self, record: &Record<'_>, block: u32) {
        let offset = self.shape.length as u32;
        if self.blocks.last().is_none_or(|last| offset - last.offset >= block) {
            let position = (record.position - self.first) as u32;
            self.blocks.push(Block { position, offset, records: 0, weight: 0 });
        }
        if let Some(block) = self.blocks.last_mut() {
            block.records += 1;
            block.weight = block.weight.saturating_add(record.weight);
        }
        self.shape.last = record.position;
        self.shape.records += 1;
        self.shape.persistent += u64::from(!record.transient);
        self.shape.weight += u64::from(record.weight);
        self.shape.expires = self.shape.expires.min(record.expires.unwrap_or(u64::MAX));
        self.shape.length += (RECORD_HEADER + record.payload.len()) as u64;
    }

    /// Offset at which to start reading to find `position`.
    pub(super) fn locate(&self, position: u64) -> u64 {
        let relative = position.saturating_sub(self.first);
        let after = self.blocks.partition_point(|block| u64::from(block.position) <= relative);
        self.blocks
            .get(after.saturating_sub(1))
            .map_or(SEGMENT_HEADER as u64, |block| u64::from(block.offset))
    }

    /// Removes positions, and returns how many were live.
    pub(super) fn settle(&mut self, from: u64, to: u64) -> u64 {
        let settled = self.live.remove(from, to);
        if settled > 0 {
            self.marks.clear(from, to);
            self.sidecar.version += 1;
        }
        settled
    }

    /// Sets the delivery count of the live messages among these positions.
    pub(super) fn mark(&mut self, from: u64, to: u64, deliveries: u32) {
        let (from, to) = (from.max(self.first), to.min(self.shape.last));
        if self.live.count_in(from, to) > 0 {
            self.marks.set(from, to, deliveries);
            self.sidecar.version += 1;
        }
    }

    /// Weight of the live messages: exact for blocks of which all or none are live, or whose messages have the same
    /// weight, and in proportion for others.
    pub(super) fn live_weight(&self) -> u64 {
        if self.live.count() == self.shape.records {
            return self.shape.weight;
        }
        let ends = self.blocks.iter().skip(1).map(|block| self.first + u64::from(block.position) - 1);
        let ends = ends.chain([self.shape.last]);
        self.blocks
            .iter()
            .zip(ends)
            .map(|(block, end)| {
                let live = self.live.count_in(self.first + u64::from(block.position), end);
                u64::from(block.weight) * live / u64::from(block.records.max(1))
            })
            .sum()
    }

    /// Drops everything that is not known to be on disk. Returns the shape of the rest; `None` if nothing was synced.
    pub(super) fn cut_to_synced(&mut self) -> Option<Shape> {
        let shape = self.synced?;
        self.live.remove(shape.last + 1, u64::MAX);
        self.marks.clear(shape.last + 1, u64::MAX);
        self.blocks.retain(|block| u64::from(block.offset) < shape.length);
        if let Some((last, before)) = self.blocks.split_last_mut() {
            last.records = shape.records as u32 - before.iter().map(|block| block.records).sum::<u32>();
            last.weight =
                (shape.weight - before.iter().map(|block| u64::from(block.weight)).sum::<u64>()) as u32;
        }
        self.shape = shape;
        self.written = shape.length;
        self.sidecar.version += 1;
        Some(shape)
    }

    /// Marks the segment as complete: memory used only for appending is freed.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
        self.transients = PositionSet::new(self.first);
        self.blocks.shrink_to_fit();
    }

    /// Memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let heap = self.live.memory() + self.transients.memory() + self.marks.memory();
        size_of::<Self>() + heap + self.blocks.capacity() * size_of::<Block>()
    }
}
