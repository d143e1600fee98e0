//! Segment files: their names and headers.
//!
//! A file's name is its number in the order of writing. A header contains the position in the log of its first record. A
//! file whose header has another number (or that starts with zeros) is spare: it is kept to be overwritten, since syncs are
//! faster into allocated bytes. The header exists twice, in two sectors, so that a damaged byte does not cost a segment.

use std::io;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, reserve_if_possible};

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The file's number.
    pub(super) sequence: u64,
    /// The run of the log that wrote it; each run has a higher number than all existing headers.
    pub(super) incarnation: u64,
    /// LSN of the first record.
    pub(super) first: u64,
    /// End of the log before this file: the same LSN, unless a repair discarded the records between.
    pub(super) previous_end: u64,
    /// The records up to this LSN may repeat those of an earlier file; this file counts only if it has all of them.
    pub(super) repeats_until: u64,
}

/// The use of a file, according to its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileUse {
    /// It holds records.
    Segment(SegmentHeader),
    /// It is ready for use, and may contain records of that incarnation and earlier ones.
    Spare {
        /// 0 for a file that was never used.
        incarnation: u64,
    },
    /// Its use cannot be determined.
    Damaged,
}

/// An open segment file.
pub(super) struct JournalFile {
    pub(super) header: SegmentHeader,
    pub(super) file: Box<dyn DiskFile>,
    /// Length of the file in bytes.
    pub(super) len: u64,
}

/// Shared by the writer and the readers.
pub(super) type SharedFile = Arc<JournalFile>;

impl SegmentHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DATA_START as usize];
        for at in COPIES {
            let copy = &mut bytes[at..at + LENGTH];
            copy[..8].copy_from_slice(MAGIC);
            copy[8..12].copy_from_slice(&VERSION.to_le_bytes());
            let numbers =
                [self.sequence, self.incarnation, self.first, self.previous_end, self.repeats_until];
            for (place, number) in copy[16..].chunks_exact_mut(8).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            let crc = crc(copy);
            copy[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    fn parse(copy: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            copy.get(at..at + 8).and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)))
        };
        if copy.get(..8)? != MAGIC || copy.get(12..16)? != crc(copy.get(..LENGTH)?).to_le_bytes() {
            return None;
        }
        let (sequence, incarnation) = (number(16)?, number(24)?);
        let (first, previous_end, repeats_until) = (number(32)?, number(40)?, number(48)?);
        let version = u32::from_le_bytes(*copy.get(8..12)?.first_chunk()?);
        KNOWN_VERSIONS.contains(&version).then_some(Self {
            sequence,
            incarnation,
            first,
            previous_end,
            repeats_until,
        })
    }
}

/// Determines the use of file number `sequence` from its first bytes.
pub(super) fn file_use(bytes: &[u8], sequence: u64) -> FileUse {
    let copies = COPIES.map(|at| SegmentHeader::parse(bytes.get(at..).unwrap_or_default()));
    if let Some(header) = copies.iter().flatten().find(|header| header.sequence == sequence) {
        return FileUse::Segment(*header);
    }
    let blank = |at: usize| bytes.iter().skip(at).take(LENGTH).all(|byte| *byte == 0);
    // A write that failed half-way tears at most one copy, and only while the file is not in use.
    let spare = COPIES.iter().zip(copies).any(|(&at, copy)| blank(at) || copy.is_some());
    let incarnation = copies.iter().flatten().map(|copy| copy.incarnation).max().unwrap_or(0);
    if spare { FileUse::Spare { incarnation } } else { FileUse::Damaged }
}

/// The format version that the header names, if it is not known here.
pub(super) fn unknown_version(bytes: &[u8]) -> Option<u32> {
    let copy = bytes.get(..LENGTH)?;
    let version = u32::from_le_bytes(*copy[8..].first_chunk()?);
    let whole = &copy[..8] == MAGIC && copy[12..16] == crc(copy).to_le_bytes();
    (whole && !KNOWN_VERSIONS.contains(&version)).then_some(version)
}

/// The path of a segment file.
pub(super) fn path(sequence: u64) -> String {
    format!("{DIR}/{sequence:016x}{SUFFIX}")
}

/// Whether there is any segment file.
pub(crate) fn has_segments(disk: &dyn Disk) -> io::Result<bool> {
    Ok(disk.list(DIR)?.iter().any(|name| sequence_of(name).is_some()))
}

/// The number in a file's name.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16)
}

/// Extends a file to `len` bytes and allocates them if the file system can, without writing.
pub(super) fn reserve(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    reserve_if_possible(file, len)?;
    file.set_len(len)?;
    file.sync()
}

/// Fills a file with zeros, so that its space is allocated and later syncs write only data.
pub(super) fn fill(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    reserve_if_possible(file, len)?;
    let zeros = vec![0; FILL_STEP.min(len) as usize];
    let mut at = 0;
    while at < len {
        let step = FILL_STEP.min(len - at);
        file.write_at(&zeros[..step as usize], at)?;
        at += step;
    }
    file.sync()
}

fn crc(copy: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&copy[..12]);
    hasher.update(&copy[16..]);
    hasher.finalize()
}

/// The directory of the segments.
pub(super) const DIR: &str = "journal";
/// Offset of the first record in a file: the header's page is never rewritten together with records.
pub(super) const DATA_START: u64 = 4096;
/// Incremented when the meaning of anything on disk changes. Version 1 had no transfers.
const VERSION: u32 = 2;
const KNOWN_VERSIONS: std::ops::RangeInclusive<u32> = 1..=VERSION;
const MAGIC: &[u8; 8] = b"lvrtjrnl";
const SUFFIX: &str = ".segment";
const LENGTH: usize = 56;
/// Offsets of the header's copies: in different sectors of 512 bytes, and in the same one of 4096. One copy is enough.
const COPIES: [usize; 2] = [0, 2048];
/// Large enough for fast writes, and small enough to allocate.
const FILL_STEP: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_outlives_the_damage_of_one_copy_and_tells_spare_from_damaged() {
        let header =
            SegmentHeader { sequence: 7, incarnation: 3, first: 4096, previous_end: 4096, repeats_until: 0 };
        let mut bytes = header.encode();
        assert_eq!(file_use(&bytes, 7), FileUse::Segment(header));
        assert_eq!(file_use(&bytes, 9), FileUse::Spare { incarnation: 3 });
        assert_eq!(file_use(&[], 9), FileUse::Spare { incarnation: 0 });
        bytes[20] ^= 1;
        assert_eq!(file_use(&bytes, 7), FileUse::Segment(header));
        bytes[COPIES[1] + 20] ^= 1;
        assert_eq!(file_use(&bytes, 7), FileUse::Damaged);
        assert_eq!(sequence_of("000000000000001f.segment"), Some(31));
        assert_eq!(sequence_of("1f.segment"), None);
    }
}
