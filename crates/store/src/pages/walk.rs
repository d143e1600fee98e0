//! Reads a segment record by record.

use std::io;

use super::envelope::read_range;
use super::record::{self, Record, ScannedRecord};
use crate::disk::DiskFile;

/// Iterates over a segment's records, reading ahead in large pieces.
pub(super) struct Walk<'f> {
    file: Option<&'f dyn DiskFile>,
    salt: u64,
    /// Offset of the next record.
    offset: u64,
    /// Offset at which the segment ends.
    end: u64,
    /// Bytes to read at once.
    piece: u64,
    buffer: Vec<u8>,
    /// Offset of the buffer's first byte.
    start: u64,
}

/// The item at the current offset of a walk.
pub(super) enum WalkedItem<'w> {
    Record(Record<'w>),
    Mark,
    End,
    Bad(&'static str),
}

impl<'f> Walk<'f> {
    /// Walks through a file, from the record at `offset` up to `end`.
    pub(super) fn file(file: &'f dyn DiskFile, salt: u64, offset: u64, end: u64, piece: u64) -> Self {
        let piece = piece.clamp(SMALLEST_PIECE, LARGEST_PIECE);
        Self { file: Some(file), salt, offset, end, piece, buffer: Vec::new(), start: offset }
    }

    /// Walks through bytes that start with the record at `offset`.
    pub(super) fn memory(bytes: Vec<u8>, salt: u64, offset: u64) -> Self {
        let end = offset + bytes.len() as u64;
        Self { file: None, salt, offset, end, piece: 0, buffer: bytes, start: offset }
    }

    /// Offset of the next record.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record. The walk does not advance past a bad one.
    pub(super) fn next(&mut self) -> io::Result<WalkedItem<'_>> {
        if self.offset >= self.end {
            return Ok(WalkedItem::End);
        }
        if !self.fill(record::RECORD_HEADER as u64)? {
            return Ok(WalkedItem::Bad("it is cut off"));
        }
        let header = &self.buffer[(self.offset - self.start) as usize..];
        if !self.fill(record::needed(header))? {
            return Ok(WalkedItem::Bad("it is cut off"));
        }
        let at = self.offset;
        match record::decode(&self.buffer[(at - self.start) as usize..], self.salt, at) {
            ScannedRecord::Record(record, len) => {
                self.offset += len as u64;
                Ok(WalkedItem::Record(record))
            }
            ScannedRecord::Mark => {
                self.offset += record::RECORD_HEADER as u64;
                Ok(WalkedItem::Mark)
            }
            ScannedRecord::Bad(what) => Ok(WalkedItem::Bad(what)),
            ScannedRecord::Short => Ok(WalkedItem::Bad("it is cut off")),
        }
    }

    /// Bytes from the next record to the end.
    pub(super) fn rest(&self) -> io::Result<Vec<u8>> {
        match self.file {
            Some(file) => read_range(file, self.offset, self.end),
            None => Ok(self.buffer[(self.offset - self.start) as usize..].to_vec()),
        }
    }

    /// After a bad record: skips to the next intact one, and returns its position.
    pub(super) fn skip_damage(&mut self) -> io::Result<Option<u64>> {
        let rest = self.rest()?;
        let from = self.offset + 1;
        let found = record::find_record(rest.get(1..).unwrap_or(&[]), self.salt, from);
        self.offset = found.map_or(self.end, |(at, _)| from + at as u64);
        self.buffer.clear();
        self.start = self.offset;
        if self.file.is_none() {
            self.buffer = rest[(self.offset + 1 - from) as usize..].to_vec();
        }
        Ok(found.map(|(_, position)| position))
    }

    /// Ensures that `needed` bytes from the next record on are in the buffer; returns false if the segment has fewer.
    fn fill(&mut self, needed: u64) -> io::Result<bool> {
        let have = self.start + self.buffer.len() as u64 - self.offset;
        if have >= needed {
            return Ok(true);
        }
        let Some(file) = self.file.filter(|_| self.offset + needed <= self.end) else { return Ok(false) };
        let to = (self.offset + needed.max(self.piece)).min(self.end);
        self.buffer = read_range(file, self.offset, to)?;
        self.start = self.offset;
        Ok(self.buffer.len() as u64 >= needed)
    }
}

/// Smaller reads are not worth a system call.
const SMALLEST_PIECE: u64 = 64 << 10;
/// Sequential reads are no faster in larger pieces, and each reader has one in memory.
const LARGEST_PIECE: u64 = 1 << 20;
