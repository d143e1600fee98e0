//! The states of a segment.
//!
//! | state | in memory | files |
//! |---|---|---|
//! | absent | nothing | none |
//! | open | the last of `QueueState::segments`, [`SegmentPhase::Open`] | `.segment` up to [`OpenEnd::written`], none before the first write; perhaps `.settled*` |
//! | sealed | in `QueueState::segments`, [`SegmentPhase::Sealed`] | `.segment` whole; perhaps `.index` and `.settled*` |
//! | retired | its name in `QueueState::dead` | the same |
//! | removed | its name in `SegmentWriter::orphans` | `.index` and `.settled*`, if it had them; after a crash perhaps `.segment` again |
//!
//! Only messages of open and sealed segments can be read. An event that a row does not name leaves the state as it is.
//!
//! | state | event | next state |
//! |---|---|---|
//! | absent | append, when no segment is open | open |
//! | open | append, which does not fit | sealed, or retired if all of its messages are settled; another one is opened |
//! | open | failed sync | sealed, with the length that was synced, or retired if nothing live was synced; the rest is appended to another one |
//! | open | persist or reap, when all of its messages are settled | removed, by way of retired; absent if the queue has no directory yet |
//! | sealed | settle, of its last live message | retired |
//! | retired | persist or reap | removed |
//! | removed | the same call of persist or a later one, once the removal is durable | absent |
//! | absent | restart | absent; or any but open, if a removal that was not durable comes undone (a kill, then a power failure) |
//! | open | restart | absent (never written), sealed up to a torn end, retired (settled, and that was persisted), or removed (nothing that survives) |
//! | sealed | restart | sealed, retired or removed, likewise; absent, if its name never got to the disk |
//! | retired | restart | sealed (its settlements were not persisted), retired or removed; absent (its name never got to the disk) |
//! | removed | restart | any but open: the removal may not have been durable |
//!
//! A restart is a crash, a kill or a shutdown, then [`recover`](super::recover). It opens no segment: the next append
//! begins a new one. Damage is no state: a restart refuses it, or skips it on request and writes an index without the lost
//! messages; a read reports it. A segment of a queue that is not durable goes from retired to absent at once, and a restart
//! removes all of them.

use std::sync::Arc;

use super::files::SegmentFileName;
use super::marks::Marks;
use super::positions::PositionSet;
use super::record::{self, RECORD_HEADER, Record, SEGMENT_HEADER};

/// A segment: its file, its live messages, and the offsets at which to look for them.
pub(super) struct PageSegment {
    pub(super) file: Arc<SegmentFileName>,
    /// Position of the first record.
    pub(super) first: u64,
    pub(super) shape: Shape,
    pub(super) phase: SegmentPhase,
    pub(super) live: PositionSet,
    pub(super) marks: Marks,
    /// The sparse index, ascending.
    pub(super) blocks: Vec<Block>,
    pub(super) sidecar: SidecarState,
}

/// Whether records can still be appended.
pub(super) enum SegmentPhase {
    Open(OpenEnd),
    /// No longer. All of it is in its file and, if any message survives a restart, on disk.
    Sealed,
}

/// Progress of an open segment's records towards the disk. The bytes written, being written and in the buffer add up to the
/// length of the shape.
pub(super) struct OpenEnd {
    /// The shape of the part that is known to be on disk; `None` before the first sync.
    pub(super) synced: Option<Shape>,
    /// Bytes that were written to the file.
    pub(super) written: u64,
    /// Bytes that are being written after these.
    pub(super) flushing: Option<Arc<Vec<u8>>>,
    /// Bytes after those, whose write has not started.
    pub(super) buffer: Vec<u8>,
    /// The positions of transient messages.
    pub(super) transients: PositionSet,
}

/// Totals of a segment's records, settled or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) last: u64,
    pub(super) records: u64,
    /// Number of records that survive a restart.
    pub(super) persistent: u64,
    /// Weight of all records.
    pub(super) weight: u64,
    /// Bytes of the file.
    pub(super) length: u64,
    /// When the first of them expires; `u64::MAX` if none does.
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

/// How far settled positions and delivery counts are on disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SidecarState {
    /// Counts changes in memory.
    pub(super) version: u64,
    /// The version that is on disk.
    pub(super) persisted: u64,
    pub(super) newest: NewestSidecar,
}

/// The newest sidecar on disk, by its generation, whose lowest bit is the file's slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum NewestSidecar {
    /// There is none.
    #[default]
    None,
    /// A restart found it, and it may not have been synced. It has to be synced before the other slot, with the previous
    /// sidecar, is overwritten.
    Found(u64),
    /// It was written and synced.
    Synced(u64),
}

impl NewestSidecar {
    /// Generation of the next sidecar.
    pub(super) fn next_generation(self) -> u64 {
        match self {
            Self::None => 1,
            Self::Found(generation) | Self::Synced(generation) => generation + 1,
        }
    }
}

impl OpenEnd {
    /// Starts to write the buffer; `None` if it is empty.
    pub(super) fn begin_flush(&mut self) -> Option<Arc<Vec<u8>>> {
        if self.buffer.is_empty() {
            return None;
        }
        let bytes = Arc::new(std::mem::take(&mut self.buffer));
        self.flushing = Some(bytes.clone());
        Some(bytes)
    }

    /// Completes [`OpenEnd::begin_flush`]. Bytes that were not written return to the buffer.
    pub(super) fn end_flush(&mut self, bytes: Arc<Vec<u8>>, written: bool) {
        self.flushing = None;
        if written {
            self.written += bytes.len() as u64;
        } else {
            self.buffer = Arc::unwrap_or_clone(bytes);
        }
    }
}

impl PageSegment {
    /// An open segment whose first record will have this position.
    pub(super) fn open(file: Arc<SegmentFileName>, queue: u64, first: u64) -> Self {
        let buffer = record::segment_header(queue, file.salt).to_vec();
        let transients = PositionSet::new(first);
        let end = OpenEnd { synced: None, written: 0, flushing: None, buffer, transients };
        Self { phase: SegmentPhase::Open(end), ..Self::sealed(file, first) }
    }

    /// A sealed segment of which only the first position is known yet.
    pub(super) fn sealed(file: Arc<SegmentFileName>, first: u64) -> Self {
        let length = SEGMENT_HEADER as u64;
        Self {
            file,
            first,
            shape: Shape { last: first, records: 0, persistent: 0, weight: 0, length, expires: u64::MAX },
            phase: SegmentPhase::Sealed,
            live: PositionSet::new(first),
            marks: Marks::default(),
            blocks: Vec::new(),
            sidecar: SidecarState::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, SegmentPhase::Open(_))
    }

    /// The open end; `None` if it is sealed.
    pub(super) fn end(&mut self) -> Option<&mut OpenEnd> {
        match &mut self.phase {
            SegmentPhase::Open(end) => Some(end),
            SegmentPhase::Sealed => None,
        }
    }

    /// The shape of the part that is known to be on disk, in a durable queue.
    pub(super) fn synced(&self) -> Option<Shape> {
        match &self.phase {
            SegmentPhase::Open(end) => end.synced,
            SegmentPhase::Sealed => Some(self.shape),
        }
    }

    /// Appends a live record to the open segment, in its buffer.
    pub(super) fn append(&mut self, record: &Record<'_>, block: u32) {
        let (salt, offset) = (self.file.salt, self.shape.length);
        let Some(end) = self.end() else { return };
        record::encode(record, salt, offset, &mut end.buffer);
        if record.transient {
            end.transients.push(record.position);
        }
        self.live.push(record.position);
        self.count(record, block);
    }

    /// Appends a sync mark to the open segment, in its buffer.
    pub(super) fn append_mark(&mut self) {
        let (salt, Shape { last, length, .. }) = (self.file.salt, self.shape);
        let Some(end) = self.end() else { return };
        record::encode_mark(last, salt, length, &mut end.buffer);
        self.shape.length += RECORD_HEADER as u64;
    }

    /// Counts a record at the end, with an entry in the sparse index every `block` bytes. The caller decides whether it is
    /// live.
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

    /// Drops everything that is not known to be on disk, and seals the segment. Returns the shape of the rest; `None`,
    /// without any change, if nothing was synced.
    pub(super) fn seal_at_synced(&mut self) -> Option<Shape> {
        let shape = self.end()?.synced?;
        self.live.remove(shape.last + 1, u64::MAX);
        self.marks.clear(shape.last + 1, u64::MAX);
        self.blocks.retain(|block| u64::from(block.offset) < shape.length);
        if let Some((last, before)) = self.blocks.split_last_mut() {
            last.records = shape.records as u32 - before.iter().map(|block| block.records).sum::<u32>();
            last.weight =
                (shape.weight - before.iter().map(|block| u64::from(block.weight)).sum::<u64>()) as u32;
        }
        self.shape = shape;
        self.sidecar.version += 1;
        self.seal();
        Some(shape)
    }

    /// Seals the segment, which must be completely written. Memory used only for appending is freed.
    pub(super) fn seal(&mut self) {
        self.phase = SegmentPhase::Sealed;
        self.blocks.shrink_to_fit();
    }

    /// Memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let end = match &self.phase {
            SegmentPhase::Open(OpenEnd { flushing, buffer, transients, .. }) => {
                let flushing = flushing.as_ref().map_or(0, |bytes| bytes.capacity());
                buffer.capacity() + flushing + transients.memory()
            }
            SegmentPhase::Sealed => 0,
        };
        let heap = self.live.memory() + self.marks.memory() + end;
        size_of::<Self>() + heap + self.blocks.capacity() * size_of::<Block>()
    }
}
