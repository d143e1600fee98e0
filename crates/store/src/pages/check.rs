//! Inspects a queue's directory without changing it.

use super::envelope;
use super::error::{PagesError, at};
use super::files::OpenFiles;
use super::record::{self, PageHeader, SEGMENT_HEADER};
use super::recover::{Names, names};
use super::segment_files::{SegmentIndex, decode_index, newest_sidecar};
use super::walk::{Walk, WalkedItem};

/// Findings about a queue's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryReport {
    /// Each segment, in order.
    pub segments: Vec<SegmentReport>,
    /// Number of files of segments that no longer exist. They are harmless, and removed at the next start.
    pub leftovers: usize,
}

/// Findings about a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its file, relative to the data directory.
    pub file: String,
    /// Bytes in the file, a torn or damaged end included.
    pub length: u64,
    /// Intact records, settled ones included.
    pub records: u64,
    /// Number of transient records, which a restart drops.
    pub transient: u64,
    /// Persistent messages that are not settled.
    pub live: u64,
    /// Positions of the first and the last record.
    pub positions: Option<(u64, u64)>,
    /// Whether it has an intact index.
    pub indexed: bool,
    /// Damage to data that was durable, with which a start is refused.
    pub damage: Vec<String>,
    /// Offset of a torn end that had not been synced. A start cuts it off.
    pub torn: Option<u64>,
}

impl DirectoryReport {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.segments.iter().all(|segment| segment.damage.is_empty())
    }
}

pub(super) fn check(files: &OpenFiles, directory: &str, queue: u64) -> Result<DirectoryReport, PagesError> {
    let mut report = DirectoryReport::default();
    for (sequence, names) in names(files, directory)? {
        if names.segment {
            report.segments.push(check_segment(files, directory, queue, sequence, names)?);
        } else {
            report.leftovers +=
                usize::from(names.index) + names.sidecars.iter().filter(|there| **there).count();
        }
    }
    Ok(report)
}

fn check_segment(
    files: &OpenFiles,
    directory: &str,
    queue: u64,
    sequence: u64,
    names: Names,
) -> Result<SegmentReport, PagesError> {
    let unknown = files.segment(directory, sequence, 0);
    let path = unknown.path();
    let file = files.disk().open(&path).map_err(at(&path))?;
    let length = file.len().map_err(at(&path))?;
    let mut report = SegmentReport { file: path.clone(), length, ..SegmentReport::default() };
    let index = if names.index { envelope::read(files.disk(), &unknown.index_path())? } else { Vec::new() };
    let index = decode_index(&index, queue);
    let bytes = envelope::read_range(&*file, 0, length).map_err(at(&path))?;
    let salt = match record::decode_segment_header(&bytes, queue) {
        PageHeader::Good(salt) => salt,
        PageHeader::UnknownVersion(version) => {
            return Err(PagesError::UnknownVersion { file: path, version });
        }
        PageHeader::Bad => {
            let salt = index.as_ref().map(|index| index.salt).or_else(|| record::find_mark(&bytes, 0, None));
            let Some(salt) = salt else {
                report.torn = (length > 0).then_some(0);
                return Ok(report);
            };
            report.damage.push("offset 0: not a segment's header".to_owned());
            salt
        }
    };
    let index = index.filter(|index| index.salt == salt);
    report.indexed = index.is_some();
    let body = bytes.get(SEGMENT_HEADER..).unwrap_or_default().to_vec();
    let mut passed_over = Vec::new();
    let mut survivors = walk(body, salt, index.as_ref(), &mut report, &mut passed_over).map_err(at(&path))?;
    if let Some(index) = &index {
        let missing = index.survivors.ranges().flat_map(|(from, to)| from..=to);
        let missing = missing.filter(|position| survivors.binary_search(position).is_err()).count();
        // If none is missing, the damaged messages were settled, or a repair has skipped them: a start ignores the damage,
        // too.
        if missing > 0 {
            report.damage.append(&mut passed_over);
            report.damage.push(format!("{missing} messages that the index knows are missing"));
        }
        survivors.retain(|position| index.survivors.contains(*position));
    }
    let first = report.positions.map_or(0, |(first, _)| first);
    let identity = files.segment(directory, sequence, salt);
    if let Some(sidecar) = newest_sidecar(files, &identity, names.sidecars, queue, first)? {
        let live = |position: &u64| {
            *position > sidecar.through
                || sidecar.live.iter().any(|(from, to)| (from..=to).contains(&position))
        };
        survivors.retain(live);
    }
    report.live = survivors.len() as u64;
    Ok(report)
}

/// Walks through the records, and returns the positions of the persistent ones. Damage to records that the index may not
/// have goes to `passed_over`.
fn walk(
    body: Vec<u8>,
    salt: u64,
    index: Option<&SegmentIndex>,
    report: &mut SegmentReport,
    passed_over: &mut Vec<String>,
) -> std::io::Result<Vec<u64>> {
    let promised = index.map_or(0, |index| index.shape.length);
    let mut walk = Walk::memory(body, salt, SEGMENT_HEADER as u64);
    let mut persistent = Vec::new();
    loop {
        let offset = walk.offset();
        let bad = match walk.next()? {
            WalkedItem::End if offset < promised => {
                report.damage.push(format!("offset {offset}: it is cut off"));
                return Ok(persistent);
            }
            WalkedItem::End => return Ok(persistent),
            WalkedItem::Mark => continue,
            WalkedItem::Record(record) if report.positions.is_none_or(|(_, last)| last < record.position) => {
                let first = report.positions.map_or(record.position, |(first, _)| first);
                report.positions = Some((first, record.position));
                report.records += 1;
                report.transient += u64::from(record.transient);
                if !record.transient {
                    persistent.push(record.position);
                }
                continue;
            }
            WalkedItem::Record(_) => "its position is not above the one before",
            WalkedItem::Bad(what) => what,
        };
        if offset >= promised && record::find_mark(&walk.rest()?, walk.offset(), Some(salt)).is_none() {
            report.torn = Some(offset);
            return Ok(persistent);
        }
        let damage = if offset < promised { &mut *passed_over } else { &mut report.damage };
        damage.push(format!("offset {offset}: {bad}"));
        if walk.skip_damage()?.is_none() {
            return Ok(persistent);
        }
    }
}
