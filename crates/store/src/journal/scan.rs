//! Reads the segment files in log order, and detects damage.

use std::sync::Arc;
use std::{fmt, io};

use super::address::Lsn;
use super::pending::Extent;
use super::promise::MISSING;
use super::record::{self, HEADER, JournalRecordKind, RecordHeader, RecordLocation};
use super::recovery::OpenError;
use super::segment::{self, DATA_START, DIR, FileUse, JournalFile, SegmentHeader, SharedFile};
use crate::disk::{Disk, name_for_damaged};

/// Findings about a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalReport {
    /// Segment files with records.
    pub segments: u64,
    /// LSN of the first record.
    pub first: Lsn,
    /// LSN after the last record.
    pub end: Lsn,
    /// LSN of the first record, and number, of each of these files.
    pub(crate) files: Vec<(Lsn, u64)>,
    /// Number of bytes in all records.
    pub bytes: u64,
    /// Number of intact records, of all types.
    pub records: u64,
    /// Set if the log ends in the middle of a record, as after a crash.
    pub torn: Option<Torn>,
    /// Damage: bytes that were once on disk and are now missing or changed.
    pub problems: Vec<Problem>,
}

/// A torn end: data that was being written when the process or the machine stopped. None of it was confirmed to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// Path of the last file, in the data directory.
    pub file: String,
    /// Offset in the file at which it begins, in bytes.
    pub offset: u64,
    /// Number of bytes cut off, as far as is known.
    pub bytes: u64,
    /// Number of records that start in them, as far as is known.
    pub records: u64,
}

/// A location in the journal where synced records are missing or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the file, in the data directory.
    pub file: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// LSN of the damage.
    pub at: Lsn,
    /// Number of unreadable bytes.
    pub lost: u64,
    /// Description of the fault.
    pub what: &'static str,
}

/// The result of a scan.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) report: JournalReport,
    pub(super) files: Vec<SharedFile>,
    pub(super) extents: Vec<Extent>,
    /// Numbers of spare files, ascending.
    pub(super) spares: Vec<u64>,
    /// Numbers of files without useful contents: their records are in other files too, or they were abandoned.
    pub(super) superseded: Vec<u64>,
    pub(super) next_sequence: u64,
    /// The highest incarnation of any header.
    pub(super) incarnation: u64,
    /// LSN at which the log ends.
    pub(super) end: u64,
    /// LSN at which its last group begins, and that group's records.
    pub(super) tail_first: u64,
    pub(super) tail: Vec<u8>,
    pub(super) fixes: Vec<Fix>,
}

/// A step of a repair.
pub(super) enum Fix {
    /// Turns damaged bytes into one record that is ignored.
    Skip { file: SharedFile, lsn: u64, len: usize },
    /// Lets the log continue at a file's first record, although it ended earlier.
    Bridge { file: SharedFile, previous_end: u64 },
    /// Renames a file so that it no longer belongs to the log.
    PutAside { sequence: u64 },
}

/// An item found by a scan.
pub(super) enum ScannedItem<'a> {
    Record {
        lsn: u64,
        kind: JournalRecordKind,
        payload: &'a [u8],
    },
    /// Bytes from one LSN to another that hold no record.
    Lost {
        from: u64,
        to: u64,
    },
}

/// Reads everything, and calls `each` with the records in order.
pub(super) fn scan(disk: &dyn Disk, mut each: impl FnMut(ScannedItem<'_>)) -> Result<Scan, OpenError> {
    let mut scan = Scan::default();
    let mut files = scan.open_files(disk)?;
    // One buffer for all files: a new one would have to be zeroed first, which takes as long as the rest.
    let mut bytes = Vec::new();
    while let Some(last) = files.last()
        && is_unfinished(last, &mut bytes)?
    {
        scan.superseded.push(last.header.sequence);
        files.pop();
    }
    for (at, file) in files.iter().enumerate() {
        let limit = files[at + 1..].iter().map(|later| later.header.previous_end).min();
        let first = file.header.first;
        if limit.is_some_and(|limit| limit <= first) {
            scan.superseded.push(file.header.sequence);
            continue;
        }
        if scan.files.is_empty() {
            scan.end = file.header.previous_end;
        }
        if file.header.previous_end != scan.end {
            scan.gap(file);
        }
        if scan.end < first {
            each(ScannedItem::Lost { from: scan.end, to: first });
        }
        scan.end = first;
        scan.walk(file, limit, &mut bytes, &mut each)?;
        scan.files.push(file.clone());
        scan.report.files.push((Lsn(first), file.header.sequence));
        scan.extents.push(Extent::of_old(first, scan.end));
        scan.report.segments += 1;
        scan.report.bytes += scan.end - first;
    }
    scan.report.first = scan.report.files.first().map_or(Lsn(scan.end), |(first, _)| *first);
    scan.report.end = Lsn(scan.end);
    Ok(scan)
}

impl Scan {
    fn open_files(&mut self, disk: &dyn Disk) -> Result<Vec<SharedFile>, OpenError> {
        let mut sequences: Vec<_> =
            disk.list(DIR)?.iter().filter_map(|name| segment::sequence_of(name)).collect();
        sequences.sort_unstable();
        self.next_sequence = sequences.last().map_or(1, |last| last + 1);
        let mut files = Vec::new();
        for sequence in sequences {
            let path = segment::path(sequence);
            let file = disk.open(&path)?;
            let mut bytes = vec![0; DATA_START as usize];
            let read = file.read_at(&mut bytes, 0)?;
            bytes.truncate(read);
            if let Some(version) = segment::unknown_version(&bytes) {
                return Err(OpenError::UnknownVersion { file: path, version });
            }
            match segment::file_use(&bytes, sequence) {
                FileUse::Segment(header) => {
                    self.incarnation = self.incarnation.max(header.incarnation);
                    // Files are used in the order of their numbers, so an earlier spare one was abandoned.
                    self.superseded.append(&mut self.spares);
                    let len = file.len()?;
                    files.push(Arc::new(JournalFile { header, file, len }));
                }
                FileUse::Spare { incarnation } => {
                    self.incarnation = self.incarnation.max(incarnation);
                    self.spares.push(sequence);
                }
                FileUse::Damaged => {
                    let lost = file.len()?.saturating_sub(DATA_START);
                    let what = "the segment's header is damaged";
                    self.report.problems.push(Problem { file: path, offset: 0, at: Lsn(0), lost, what });
                    self.fixes.push(Fix::PutAside { sequence });
                }
            }
        }
        Ok(files)
    }

    fn gap(&mut self, file: &SharedFile) {
        self.report.problems.push(Problem {
            file: segment::path(file.header.sequence),
            offset: DATA_START,
            at: Lsn(self.end),
            lost: file.header.first.saturating_sub(self.end),
            what: GAP,
        });
        self.fixes.push(Fix::Bridge { file: file.clone(), previous_end: self.end });
    }

    /// Reads a file's records into `bytes`, up to `limit`, or in the last file to the end of the log.
    fn walk(
        &mut self,
        file: &SharedFile,
        limit: Option<u64>,
        bytes: &mut Vec<u8>,
        each: &mut impl FnMut(ScannedItem<'_>),
    ) -> Result<(), OpenError> {
        let SegmentHeader { first, incarnation, .. } = file.header;
        read_records(file, limit, bytes)?;
        let mut group = first;
        while limit != Some(self.end) {
            let (lsn, start) = (self.end, (self.end - first) as usize);
            match record::parse(&bytes[start..], RecordLocation { lsn, incarnation }) {
                Some((header, payload)) => {
                    if header.begins_group {
                        group = lsn;
                    }
                    self.end += header.record_len() as u64;
                    self.report.records += 1;
                    each(match header.kind {
                        JournalRecordKind::Skip => ScannedItem::Lost { from: lsn, to: self.end },
                        kind => ScannedItem::Record { lsn, kind, payload },
                    });
                }
                None => match behind(bytes, start, file.header, limit.is_none()) {
                    Behind::Records(next) => {
                        self.skip(file, lsn, next - start);
                        self.end += (next - start) as u64;
                        each(ScannedItem::Lost { from: lsn, to: self.end });
                    }
                    Behind::Torn { bytes, records } if limit.is_none() => {
                        let (file, offset) = (segment::path(file.header.sequence), DATA_START + start as u64);
                        self.report.torn = Some(Torn { file, offset, bytes, records });
                        break;
                    }
                    Behind::Torn { .. } | Behind::Nothing => break,
                },
            }
        }
        if limit.is_none() {
            self.tail_first = group;
            self.tail = bytes[(group - first) as usize..(self.end - first) as usize].to_vec();
        }
        Ok(())
    }

    fn skip(&mut self, file: &SharedFile, lsn: u64, len: usize) {
        let offset = DATA_START + lsn - file.header.first;
        let path = segment::path(file.header.sequence);
        let what = "a record is damaged, and whole ones follow";
        self.report.problems.push(Problem { file: path, offset, at: Lsn(lsn), lost: len as u64, what });
        self.fixes.push(Fix::Skip { file: file.clone(), lsn, len });
    }
}

/// Whether a file was meant to repeat the end of the log, and lacks a part of it: the power failed before, and the copy in
/// an earlier file is still valid. Its records are read into `bytes`.
fn is_unfinished(file: &SharedFile, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let SegmentHeader { first, incarnation, repeats_until, .. } = file.header;
    if repeats_until <= first {
        return Ok(false);
    }
    read_records(file, None, bytes)?;
    let mut lsn = first;
    while lsn < repeats_until {
        let start = (lsn - first) as usize;
        match record::parse(&bytes[start..], RecordLocation { lsn, incarnation }) {
            Some((header, _)) => lsn += header.record_len() as u64,
            None => {
                return Ok(!matches!(behind(bytes, start, file.header, true), Behind::Records(_)));
            }
        }
    }
    Ok(false)
}

/// Reported for a file if the one before it ends too early.
pub(super) const GAP: &str = "records before this file are damaged or missing";

/// The contents after the last intact record.
enum Behind {
    /// A damaged record, followed by intact ones from this offset on.
    Records(usize),
    /// Part of the write in progress when the log ended.
    Torn { bytes: u64, records: u64 },
    /// Zeros, or old bytes of a recycled file.
    Nothing,
}

/// Looks for intact records after a damaged one. In the last file they count only if a group starts among them: the damaged
/// record was then on disk once, and otherwise it is the torn end of the log.
fn behind(bytes: &[u8], bad: usize, header: SegmentHeader, last: bool) -> Behind {
    let place =
        |start: usize| RecordLocation { lsn: header.first + start as u64, incarnation: header.incarnation };
    let mut next = None;
    let (mut end, mut records) = (bad, 0);
    if let Some(record) = RecordHeader::parse(&bytes[bad..], place(bad)) {
        (end, records) = (bytes.len().min(bad + record.record_len()), 1);
    }
    for start in bad + HEADER..bytes.len().saturating_sub(HEADER - 1) {
        // Most of the bytes scanned are zeros or text.
        if !record::may_be_kind(bytes[start + 4]) {
            continue;
        }
        if let Some((record, _)) = record::parse(&bytes[start..], place(start)) {
            let first = *next.get_or_insert(start);
            (end, records) = (end.max(start + record.record_len()), records + 1);
            if !last || record.begins_group {
                return Behind::Records(first);
            }
        }
    }
    match records {
        0 => Behind::Nothing,
        _ => Behind::Torn { bytes: (end - bad) as u64, records },
    }
}

/// Replaces the contents of `bytes`.
fn read_records(file: &SharedFile, limit: Option<u64>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let available = file.len.saturating_sub(DATA_START);
    let len = limit.map_or(available, |limit| available.min(limit - file.header.first));
    bytes.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
    let read = file.file.read_at(bytes, DATA_START)?;
    bytes.truncate(read);
    Ok(())
}

/// The same records as a run of another incarnation would have written them.
pub(super) fn rewrite(tail: &[u8], first: u64, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = tail.to_vec();
    let mut start = 0;
    let place = |start: usize, incarnation| RecordLocation { lsn: first + start as u64, incarnation };
    while let Some(header) = tail.get(start..).and_then(|rest| RecordHeader::parse(rest, place(start, from)))
    {
        bytes[start..start + HEADER].copy_from_slice(&header.encode(place(start, to)));
        start += header.record_len();
    }
    bytes
}

impl Fix {
    /// Applies the fix, and makes it durable.
    pub(super) fn apply(&self, disk: &dyn Disk) -> io::Result<()> {
        match self {
            Self::Skip { file, lsn, len } => {
                let place = RecordLocation { lsn: *lsn, incarnation: file.header.incarnation };
                let bytes = RecordHeader::new(JournalRecordKind::Skip, false, len - HEADER, 0).encode(place);
                file.file.write_at(&bytes, DATA_START + lsn - file.header.first)?;
                file.file.sync()
            }
            Self::Bridge { file, previous_end } => {
                let header = SegmentHeader { previous_end: *previous_end, ..file.header };
                file.file.write_at(&header.encode(), 0)?;
                file.file.sync()
            }
            Self::PutAside { sequence } => {
                let path = segment::path(*sequence);
                disk.rename(&path, &name_for_damaged(disk, &path)?)?;
                disk.sync_dir(DIR)
            }
        }
    }
}

impl fmt::Display for Torn {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, bytes, records } = self;
        write!(into, "{file}: torn at byte {offset}: {bytes} bytes, {records} records")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, lost, what, .. } = self;
        match *what {
            MISSING => write!(into, "{file} is missing ({lost} bytes)"),
            what => write!(into, "{file}: at byte {offset}: {what} ({lost} bytes)"),
        }
    }
}
