//! The two small files next to a segment: its index, and its settled positions.
//!
//! ```text
//! index    first, last, records, persistent, weight, length, expires | survivors | number of blocks, blocks
//! sidecar  generation | highest position that it covers | live ones | number of marks, marks
//! ```
//!
//! Positions are a number of ranges, then for each the gap before it and its length minus one. An index is written after
//! its segment was synced. It is not synced itself: without it the segment is read instead. The exception is an index
//! written by a repair, which prevents the next start from refusing the damage that the repair has skipped.

use super::envelope::{self, FileKind, Numbers, put};
use super::error::{PagesError, at};
use super::files::{OpenFiles, SegmentFileName};
use super::marks::Marks;
use super::positions::PositionSet;
use super::segment::{Block, NewestSidecar, PageSegment, SegmentPhase, Shape};

/// The contents of an index file.
pub(super) struct SegmentIndex {
    pub(super) salt: u64,
    pub(super) first: u64,
    pub(super) shape: Shape,
    /// Persistent messages that were live when the segment was sealed.
    pub(super) survivors: PositionSet,
    pub(super) blocks: Vec<Block>,
}

/// The contents of a sidecar.
pub(super) struct Sidecar {
    pub(super) salt: u64,
    pub(super) generation: u64,
    /// Positions up to this one that are not live are settled.
    pub(super) through: u64,
    pub(super) live: Vec<(u64, u64)>,
    pub(super) marks: Vec<(u64, u64, u32)>,
}

/// The bytes of a segment's index file.
pub(super) fn encode_index(queue: u64, segment: &PageSegment) -> Vec<u8> {
    let mut survivors = segment.live.clone();
    if let SegmentPhase::Open(end) = &segment.phase {
        end.transients.ranges().for_each(|(from, to)| _ = survivors.remove(from, to));
    }
    let mut body = Vec::new();
    let Shape { last, records, persistent, weight, length, expires } = segment.shape;
    for number in [segment.first, last, records, persistent, weight, length, expires.wrapping_add(1)] {
        put(number, &mut body);
    }
    put_ranges(survivors.ranges(), segment.first, &mut body);
    put(segment.blocks.len() as u64, &mut body);
    for block in &segment.blocks {
        for number in [block.position, block.offset, block.records, block.weight] {
            put(number.into(), &mut body);
        }
    }
    envelope::seal(FileKind::INDEX, queue, segment.file.salt, &body)
}

/// The contents of an index file of this queue, if it is intact.
pub(super) fn decode_index(bytes: &[u8], queue: u64) -> Option<SegmentIndex> {
    let (salt, body) = envelope::open(bytes, FileKind::INDEX, queue)?;
    let mut numbers = Numbers(body);
    let first = numbers.take()?;
    let shape = Shape {
        last: numbers.take()?,
        records: numbers.take()?,
        persistent: numbers.take()?,
        weight: numbers.take()?,
        length: numbers.take()?,
        expires: numbers.take()?.wrapping_sub(1),
    };
    let mut survivors = PositionSet::new(first);
    for (from, to) in take_ranges(&mut numbers, first)? {
        (from..=to).for_each(|position| survivors.push(position));
    }
    let count = numbers.take()?;
    let mut number = || numbers.take().and_then(|number| u32::try_from(number).ok());
    let blocks = (0..count).map(|_| {
        Some(Block { position: number()?, offset: number()?, records: number()?, weight: number()? })
    });
    Some(SegmentIndex { salt, first, shape, survivors, blocks: blocks.collect::<Option<_>>()? })
}

/// The bytes of a sidecar of this generation.
pub(super) fn encode_sidecar(queue: u64, segment: &PageSegment, generation: u64) -> Vec<u8> {
    let mut body = Vec::new();
    put(generation, &mut body);
    // Truncated records of a sealed segment may still be in its file: they count as settled as well.
    put(if segment.is_open() { segment.shape.last } else { u64::MAX }, &mut body);
    put_ranges(segment.live.ranges(), segment.first, &mut body);
    put(segment.marks.runs().len() as u64, &mut body);
    for (from, to, deliveries) in segment.marks.runs() {
        put(from - segment.first, &mut body);
        put(to - from, &mut body);
        put((*deliveries).into(), &mut body);
    }
    envelope::seal(FileKind::SIDECAR, queue, segment.file.salt, &body)
}

/// The contents of an intact sidecar, for a segment that starts at `first`.
pub(super) fn decode_sidecar(bytes: &[u8], queue: u64, first: u64) -> Option<Sidecar> {
    let (salt, body) = envelope::open(bytes, FileKind::SIDECAR, queue)?;
    let mut numbers = Numbers(body);
    let (generation, through) = (numbers.take()?, numbers.take()?);
    let live = take_ranges(&mut numbers, first)?;
    let marks = (0..numbers.take()?).map(|_| {
        let from = first.checked_add(numbers.take()?)?;
        let to = from.checked_add(numbers.take()?)?;
        Some((from, to, u32::try_from(numbers.take()?).ok()?))
    });
    let marks = marks.collect::<Option<_>>()?;
    Some(Sidecar { salt, generation, through, live, marks })
}

/// The newest intact sidecar of a segment.
pub(super) fn newest_sidecar(
    files: &OpenFiles,
    file: &SegmentFileName,
    present: [bool; 2],
    queue: u64,
    first: u64,
) -> Result<Option<Sidecar>, PagesError> {
    let mut newest: Option<Sidecar> = None;
    for slot in [0, 1] {
        if !present[slot] {
            continue;
        }
        let bytes = envelope::read(files.disk(), &file.sidecar_path(slot))?;
        let found = decode_sidecar(&bytes, queue, first).filter(|found| found.salt == file.salt);
        if let Some(found) =
            found.filter(|found| newest.as_ref().is_none_or(|known| found.generation > known.generation))
        {
            newest = Some(found);
        }
    }
    Ok(newest)
}

/// Applies the settled positions of a sidecar to a segment that was just read.
pub(super) fn apply_sidecar(sidecar: &Sidecar, segment: &mut PageSegment) {
    let mut from = segment.first;
    for &(first, last) in &sidecar.live {
        if first > from {
            segment.live.remove(from, first - 1);
        }
        from = last.saturating_add(1);
    }
    if from <= sidecar.through {
        segment.live.remove(from, sidecar.through);
    }
    let mut marks = Marks::default();
    for &(from, to, deliveries) in &sidecar.marks {
        if from <= segment.shape.last {
            marks.set(from, to.min(segment.shape.last), deliveries);
        }
    }
    segment.marks = marks;
    // It may not have been synced: another one is written before anything relies on it.
    segment.sidecar.newest = NewestSidecar::Found(sidecar.generation);
    segment.sidecar.version += 1;
}

/// Writes a small file in one piece, and syncs it if `sync` is set.
pub(super) fn write_whole(files: &OpenFiles, path: &str, bytes: &[u8], sync: bool) -> Result<(), PagesError> {
    let write = || {
        let file = files.disk().open(path)?;
        file.write_at(bytes, 0)?;
        if sync { file.sync() } else { Ok(()) }
    };
    write().map_err(at(path))
}

fn put_ranges(ranges: impl Iterator<Item = (u64, u64)>, first: u64, into: &mut Vec<u8>) {
    let (mut body, mut count, mut from) = (Vec::new(), 0, first);
    for (low, high) in ranges {
        put(low - from, &mut body);
        put(high - low, &mut body);
        from = high;
        count += 1;
    }
    put(count, into);
    into.extend_from_slice(&body);
}

fn take_ranges(numbers: &mut Numbers<'_>, first: u64) -> Option<Vec<(u64, u64)>> {
    let mut from = first;
    (0..numbers.take()?)
        .map(|_| {
            let low = from.checked_add(numbers.take()?)?;
            from = low.checked_add(numbers.take()?)?;
            PositionSet::reaches(first, from).then_some((low, from))
        })
        .collect()
}
