//! Opens a queue's directory after a restart.
//!
//! # Example
//! The messages of a queue have payloads of 68 bytes, so that a record takes 100. The directory has `3.segment` with its
//! index, and `4.segment`, to which records were appended when the broker was killed:
//!
//! | offset in `4.segment` | |
//! |---|---|
//! | 0 | header |
//! | 32, 132, 232 | the messages at positions 10, 11 and 12 |
//! | 332 | sync mark |
//! | 364 | the message at position 13 |
//! | 464 | the first 36 bytes of the record of position 14; the file ends at 500 |
//!
//! - The bodies of `3.segment` are not read: the index has its extent, and a sidecar says which messages are settled. If
//!   the file were shorter than the index says, that would be damage.
//! - `4.segment` has no index, and is read. The record at 464 is incomplete, and no sync mark behind it proves that it was
//!   ever durable: the file is cut off at 464, which is reported as a [`Cut`] of 36 bytes.
//! - The message at 13 is retained. No mark follows it, so it may be only in the kernel's memory: the bytes from 364 to 464
//!   are written again and synced. The next message has position 14.
//! - If the record at 132 were bad instead, the mark at 332 would prove that it had been durable. That is damage, and the
//!   start is refused with the file and 132; with [`Repair::Skip`] position 11 is dropped and 12 follows.
//! - Such a short segment gets no index: only segments of 256 KiB or more, and repaired ones, do.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::envelope;
use super::error::{Damage, PagesError, at};
use super::files::{INDEX, OpenFiles, SEGMENT, SIDECARS, SegmentFileName};
use super::queue::{QueueSegments, QueueState};
use super::record::{self, PageHeader, SEGMENT_HEADER};
use super::segment::PageSegment;
use super::segment_files::{apply_sidecar, decode_index, encode_index, newest_sidecar, write_whole};
use super::walk::{Walk, WalkedItem};
use crate::disk::DiskFile;

/// How to handle damage in the middle of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Refuse to open, and report its location.
    Refuse,
    /// Read everything, skip damaged records, and report them.
    Skip,
}

/// The recovered contents of a queue's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredPages {
    /// Number of live messages.
    pub live: u64,
    /// Their weight, as exact as [`Usage::weight`](super::Usage::weight).
    pub weight: u64,
    /// Position of the first live message.
    pub first: Option<u64>,
    /// The highest position in any file, live or not: new ones must be above.
    pub last: Option<u64>,
    /// Segments whose bodies were read, because they had no index.
    pub scanned: usize,
    /// Torn ends of segments that had not been synced: the expected result of a crash.
    pub cut: Vec<Cut>,
    /// Damage that was skipped, with [`Repair::Skip`].
    pub damaged: Vec<Damage>,
}

/// A torn end that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Path of the file, in the data directory.
    pub file: String,
    /// Its length now, in bytes.
    pub offset: u64,
    /// Bytes that were cut off.
    pub bytes: u64,
}

/// The files of one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Names {
    pub(super) segment: bool,
    pub(super) index: bool,
    pub(super) sidecars: [bool; 2],
}

/// The files in a directory by segment. Ignores other files.
pub(super) fn names(files: &OpenFiles, directory: &str) -> Result<BTreeMap<u64, Names>, PagesError> {
    let mut found: BTreeMap<u64, Names> = BTreeMap::new();
    for name in files.disk().list(directory).map_err(at(directory))? {
        let Some((stem, _)) = name.split_once('.') else { continue };
        let Ok(sequence) = u64::from_str_radix(stem, 16) else { continue };
        match &name[stem.len()..] {
            SEGMENT => found.entry(sequence).or_default().segment = true,
            INDEX => found.entry(sequence).or_default().index = true,
            other => {
                if let Some(slot) = SIDECARS.iter().position(|suffix| *suffix == other) {
                    found.entry(sequence).or_default().sidecars[slot] = true;
                }
            }
        }
    }
    Ok(found)
}

/// Promised segments, each with its minimum length in bytes, that are missing or shorter.
pub(super) fn missing(
    files: &OpenFiles,
    directory: &str,
    promised: impl Iterator<Item = (u64, u64)>,
) -> Result<Vec<Damage>, PagesError> {
    let found = names(files, directory)?;
    let mut missing = Vec::new();
    for (sequence, bytes) in promised {
        let file = files.segment(directory, sequence, 0).path();
        let (mut offset, mut what) = (0, "the file is missing");
        if found.get(&sequence).is_some_and(|names| names.segment) {
            offset = files.disk().open(&file).and_then(|file| file.len()).map_err(at(&file))?;
            what = "the file is cut off";
            if offset >= bytes {
                continue;
            }
        }
        missing.push(Damage { file, offset, what, lost: 0..=u64::MAX });
    }
    Ok(missing)
}

impl QueueSegments {
    /// The segments' numbers, with the bytes of each that are durable.
    pub(crate) fn files_on_disk(&self) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let synced = state.segments.iter().filter_map(|segment| Some((segment, segment.synced()?)));
        let persistent = synced.filter(|(_, synced)| synced.persistent > 0);
        // A sync mark at the end may not be durable.
        persistent
            .map(|(segment, synced)| {
                (segment.file.sequence, synced.length.saturating_sub(record::RECORD_HEADER as u64))
            })
            .collect()
    }

    /// Numbers of segments whose files the next `persist_settled_if` removes.
    pub(crate) fn dead_files(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        let open = state.open_segment().filter(|open| open.live.count() == 0).map(|open| open.file.sequence);
        state.dead.iter().map(|file| file.sequence).chain(open).collect()
    }

    pub(super) fn recover(mut self, repair: Repair) -> Result<(Self, RecoveredPages), PagesError> {
        let names = names(&self.files, &self.directory)?;
        let mut recovered = RecoveredPages::default();
        let mut opening = Opening { queue: &self, repair, recovered: &mut recovered, unsynced: false };
        let mut state = QueueState::default();
        let mut orphans = Vec::new();
        for (&sequence, &names) in &names {
            state.next_sequence = sequence + 1;
            let loaded = if names.segment { opening.load(sequence, names)? } else { None };
            let Some(segment) = loaded else {
                orphans.push(self.files.segment(&self.directory, sequence, 0));
                continue;
            };
            // A segment that repeats positions was started because the sync of the one before failed.
            let first = segment.first;
            state.segments.iter_mut().filter(|older| older.shape.last >= first).for_each(|older| {
                older.settle(first, u64::MAX);
            });
            // Records of the older segment after the newer one's end were never synced: their positions may be reused.
            state.last = Some(segment.shape.last);
            state.segments.push_back(segment);
        }
        let unsynced = opening.unsynced;
        let mut ceiling = u64::MAX;
        for segment in state.segments.iter_mut().rev() {
            // Segments do not overlap in memory, so each position belongs to one of them.
            segment.shape.last = segment.shape.last.min(ceiling.saturating_sub(1));
            ceiling = segment.first;
        }
        state.live = state.segments.iter().map(|segment| segment.live.count()).sum();
        recovered.weight = state.segments.iter().map(PageSegment::live_weight).sum();
        recovered.live = state.live;
        recovered.last = state.last;
        state.drop_settled(0, u64::MAX);
        let writer = self.writer.get_mut();
        writer.directory = !names.is_empty();
        for orphan in orphans {
            // Empty or without segment: the other files are removed with the next `persist_settled_if`.
            orphan.remove(&self.files)?;
            writer.names = true;
            writer.orphans.push(orphan);
        }
        *self.state.get_mut() = state;
        recovered.first = self.next_live(0);
        if unsynced {
            let mut writer = self.writer.lock();
            (writer.names, writer.parents) = (true, true);
            self.sync_names(&mut writer)?;
        }
        Ok((self, recovered))
    }
}

struct Opening<'q> {
    queue: &'q QueueSegments,
    repair: Repair,
    recovered: &'q mut RecoveredPages,
    /// Whether there were records that may not be durable yet.
    unsynced: bool,
}

impl Opening<'_> {
    /// Reads the part of a segment that survives a restart; `None` if nothing does.
    fn load(&mut self, sequence: u64, names: Names) -> Result<Option<PageSegment>, PagesError> {
        let files = &self.queue.files;
        let unknown = files.segment(&self.queue.directory, sequence, 0);
        let path = unknown.path();
        let file = files.disk().open(&path).map_err(at(&path))?;
        let length = file.len().map_err(at(&path))?;
        let index =
            if names.index { envelope::read(files.disk(), &unknown.index_path())? } else { Vec::new() };
        let index = decode_index(&index, self.queue.queue);
        let salt = match self.salt(&*file, &path, length, index.as_ref().map(|index| index.salt))? {
            Some(salt) => salt,
            None => return Ok(None),
        };
        let identity = files.segment(&self.queue.directory, sequence, salt);
        let index = index.filter(|index| index.salt == salt);
        let promised = index.as_ref().map(|index| index.shape.length);
        let indexed = match index {
            Some(index) if length >= index.shape.length && self.repair == Repair::Refuse => {
                let mut segment = PageSegment::sealed(identity.clone(), index.first);
                segment.shape = index.shape;
                segment.live = index.survivors;
                segment.blocks = index.blocks;
                // Messages missing from the index were settled, which only the index records, and that may not be durable.
                segment.sidecar.version += u64::from(segment.live.count() < segment.shape.persistent);
                Some(segment)
            }
            _ => None,
        };
        let segment = match indexed {
            Some(segment) => Some(segment),
            None => self.scan(&*file, identity, length, promised)?,
        };
        let Some(mut segment) = segment else { return Ok(None) };
        segment.blocks.shrink_to_fit();
        let sidecar = newest_sidecar(files, &segment.file, names.sidecars, self.queue.queue, segment.first)?;
        if let Some(sidecar) = sidecar {
            apply_sidecar(&sidecar, &mut segment);
        }
        Ok((segment.shape.persistent > 0).then_some(segment))
    }

    /// The salt of a segment; `None` if it was never synced and does not even have a header.
    fn salt(
        &mut self,
        file: &dyn DiskFile,
        path: &str,
        length: u64,
        indexed: Option<u64>,
    ) -> Result<Option<u64>, PagesError> {
        let header = envelope::read_range(file, 0, length.min(SEGMENT_HEADER as u64)).map_err(at(path))?;
        match record::decode_segment_header(&header, self.queue.queue) {
            PageHeader::Good(salt) => return Ok(Some(salt)),
            PageHeader::UnknownVersion(version) => {
                return Err(PagesError::UnknownVersion { file: path.to_owned(), version });
            }
            PageHeader::Bad => {}
        }
        let durable = match indexed {
            Some(salt) => Some(salt),
            None => {
                let bytes = envelope::read_range(file, 0, length).map_err(at(path))?;
                record::find_mark(&bytes, 0, None)
            }
        };
        if let Some(salt) = durable {
            let what = "not a segment's header";
            self.damage(Damage { file: path.to_owned(), offset: 0, what, lost: 0..=u64::MAX })?;
            let header = record::segment_header(self.queue.queue, salt);
            file.write_at(&header, 0).and_then(|()| file.sync()).map_err(at(path))?;
        } else if length > 0 {
            self.recovered.cut.push(Cut { file: path.to_owned(), offset: 0, bytes: length });
        }
        Ok(durable)
    }

    /// Walks through a segment's records. `promised` is its length at the time when it was known to be on disk.
    fn scan(
        &mut self,
        file: &dyn DiskFile,
        identity: Arc<SegmentFileName>,
        length: u64,
        promised: Option<u64>,
    ) -> Result<Option<PageSegment>, PagesError> {
        self.recovered.scanned += 1;
        let path = identity.path();
        let salt = identity.salt;
        let mut walk = Walk::file(file, salt, SEGMENT_HEADER as u64, length, u64::MAX);
        let mut segment: Option<PageSegment> = None;
        let mut unsynced = false;
        let mut proven = 0;
        let damages = self.recovered.damaged.len();
        let end = loop {
            let offset = walk.offset();
            let after = segment.as_ref().map_or(0, |segment| segment.shape.last + 1);
            let bad = match walk.next().map_err(at(&path))? {
                WalkedItem::End if promised.is_some_and(|promised| offset < promised) => "it is cut off",
                WalkedItem::End => break offset,
                WalkedItem::Mark => {
                    unsynced = false;
                    proven = walk.offset();
                    continue;
                }
                WalkedItem::Record(record) if record.position >= after => {
                    unsynced |= !record.transient;
                    let segment =
                        segment.get_or_insert_with(|| PageSegment::sealed(identity.clone(), record.position));
                    segment.shape.length = offset;
                    segment.count(&record, self.queue.files.sizes.block);
                    if !record.transient {
                        segment.live.push(record.position);
                    }
                    continue;
                }
                WalkedItem::Record(_) => "its position is not above the one before",
                WalkedItem::Bad(what) => what,
            };
            // A later mark proves that it was once synced: then it is damage, and otherwise the torn end of a crash.
            let rest = envelope::read_range(file, offset, length).map_err(at(&path))?;
            let durable = promised.is_some_and(|promised| offset < promised)
                || record::find_mark(&rest, offset, Some(salt)).is_some();
            if !durable {
                self.cut(file, &path, offset, length)?;
                break offset;
            }
            // Continues after the damage if it may be skipped.
            let found = walk.skip_damage().map_err(at(&path))?;
            let lost = after..=found.map_or(u64::MAX, |found| found.saturating_sub(1).max(after));
            self.damage(Damage { file: path.clone(), offset, what: bad, lost })?;
            if found.is_none() {
                break walk.offset();
            }
        };
        let Some(mut segment) = segment else { return Ok(None) };
        if unsynced {
            // The segment may be in the page cache only: the journal may drop the messages once they count as stored here.
            envelope::write_again(file, proven, end).map_err(at(&path))?;
            self.unsynced = true;
        }
        segment.shape.length = end;
        self.save_index(&segment, self.recovered.damaged.len() > damages)?;
        Ok(Some(segment))
    }

    /// Writes an index, so that the next start need not read the segment, or find `repaired` damage again.
    fn save_index(&mut self, segment: &PageSegment, repaired: bool) -> Result<(), PagesError> {
        if repaired || segment.shape.length >= INDEX_FROM {
            let bytes = encode_index(self.queue.queue, segment);
            let written = write_whole(&self.queue.files, &segment.file.index_path(), &bytes, repaired);
            if repaired {
                written?;
                self.unsynced = true;
            }
        }
        Ok(())
    }

    fn cut(&mut self, file: &dyn DiskFile, path: &str, offset: u64, length: u64) -> Result<(), PagesError> {
        file.set_len(offset).and_then(|()| file.sync()).map_err(at(path))?;
        self.recovered.cut.push(Cut { file: path.to_owned(), offset, bytes: length - offset });
        Ok(())
    }

    fn damage(&mut self, damage: Damage) -> Result<(), PagesError> {
        if self.repair == Repair::Refuse {
            return Err(PagesError::Damaged(damage));
        }
        self.recovered.damaged.push(damage);
        Ok(())
    }
}

/// A shorter segment can be read in less than a millisecond, so an index would save nothing.
const INDEX_FROM: u64 = 256 << 10;
