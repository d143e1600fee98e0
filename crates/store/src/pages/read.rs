//! Reads messages in order.

use std::sync::Arc;

use super::error::{Damage, PagesError, at};
use super::files::SegmentFileName;
use super::queue::{QueueSegments, QueueState};
use super::segment::{PageSegment, SegmentPhase};
use super::walk::{Walk, WalkedItem};

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Position in the queue.
    pub position: u64,
    /// When it expires, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// How often it was delivered before, as last marked.
    pub deliveries: u32,
    /// Whether a restart of the broker drops it.
    pub transient: bool,
    /// The payload as it was appended.
    pub payload: Vec<u8>,
}

/// The state of a read: records of this segment before `offset` have positions below `position`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    position: u64,
    sequence: u64,
    offset: u64,
}

/// The next stretch to read.
struct Plan {
    file: Arc<SegmentFileName>,
    offset: u64,
    /// Live positions to read, as ranges.
    wanted: Vec<(u64, u64)>,
    /// Highest position of the segment.
    last: u64,
    source: Source,
    /// Whether the source extends to the end of the segment.
    complete: bool,
}

enum Source {
    /// From the file, up to this offset.
    File(u64),
    /// From the write buffer.
    Memory(Vec<u8>),
}

/// Limits on the messages still to be read.
struct ReadBudget {
    messages: usize,
    bytes: usize,
    /// Whether no message was taken yet: one message is taken regardless of its size.
    empty: bool,
}

impl QueueSegments {
    /// Live messages from a position on, in order: at most `max_messages`, with payloads of at most `max_bytes` together
    /// (but at least one message). Returns fewer only if there are no more. A read that continues where the last one ended
    /// needs no search.
    ///
    /// # Errors
    /// A file cannot be read, or [`PagesError::Damaged`] if the next message is at a damaged location: settle the positions
    /// in the error to continue after it. Messages before it are returned first.
    pub fn read(&self, from: u64, max_messages: usize, max_bytes: usize) -> Result<Vec<Stored>, PagesError> {
        let mut taken: Vec<Stored> = Vec::new();
        let mut bytes = 0;
        let mut cursor = Cursor { position: from, sequence: u64::MAX, offset: 0 };
        if let Some(last) = self.state.lock().cursor.filter(|last| last.position <= from) {
            cursor = Cursor { position: from, ..last };
        }
        while taken.len() < max_messages && (taken.is_empty() || bytes < max_bytes) {
            let limit = ReadBudget {
                messages: max_messages - taken.len(),
                bytes: max_bytes.saturating_sub(bytes),
                empty: taken.is_empty(),
            };
            let Some(mut plan) = self.state.lock().plan(&cursor, limit.messages) else { break };
            let (mut found, full) = match self.follow(&mut plan, &limit, &mut cursor) {
                Err(PagesError::Damaged(damage))
                    if !self.state.lock().is_at(*damage.lost.start(), &plan.file) =>
                {
                    // Settled or moved to another segment meanwhile: no message is lost.
                    cursor.sequence = u64::MAX;
                    continue;
                }
                Err(PagesError::Damaged(_)) if !taken.is_empty() => break,
                outcome => outcome?,
            };
            self.state.lock().retain_live(&mut found);
            bytes += found.iter().map(|message| message.payload.len()).sum::<usize>();
            taken.append(&mut found);
            if full {
                break;
            }
        }
        self.state.lock().cursor = Some(cursor);
        Ok(taken)
    }

    /// Reads the part described by a plan, moves the cursor after it, and returns whether the budget is too small for the
    /// next message.
    fn follow(
        &self,
        plan: &mut Plan,
        limit: &ReadBudget,
        cursor: &mut Cursor,
    ) -> Result<(Vec<Stored>, bool), PagesError> {
        let salt = plan.file.salt;
        let handle;
        let mut walk = match &mut plan.source {
            Source::Memory(bytes) => Walk::memory(std::mem::take(bytes), salt, plan.offset),
            Source::File(end) => {
                let Some(open) = plan.file.open(&self.files)? else {
                    // Dropped or moved meanwhile: the next plan takes that into account.
                    cursor.sequence = u64::MAX;
                    return Ok((Vec::new(), false));
                };
                handle = open;
                Walk::file(&*handle, salt, plan.offset, *end, limit.bytes as u64)
            }
        };
        let path = plan.file.path();
        let mut taken = CollectedRecords { wanted: &plan.wanted, found: Vec::new(), bytes: 0 };
        let full = loop {
            // The cursor is before the record: if the budget excludes a message, the next call reads it from there.
            let Some(&(next, _)) = taken.wanted.first() else { break false };
            *cursor = Cursor {
                position: next.max(cursor.position),
                sequence: plan.file.sequence,
                offset: walk.offset(),
            };
            match walk.next().map_err(at(&path))? {
                // The segment ends, although the message at `next` is live.
                WalkedItem::End if plan.complete && taken.found.is_empty() => {
                    let (offset, lost) = (walk.offset(), next..=plan.last);
                    return Err(PagesError::Damaged(Damage {
                        file: path,
                        offset,
                        what: "a record is missing",
                        lost,
                    }));
                }
                WalkedItem::End => break false,
                WalkedItem::Mark => {}
                WalkedItem::Record(record) => {
                    let len = record.payload.len();
                    let fits = taken.bytes + len <= limit.bytes || (limit.empty && taken.found.is_empty());
                    if taken.wants(record.position) {
                        if !fits {
                            break true;
                        }
                        taken.take(&record);
                        cursor.position = record.position + 1;
                        cursor.offset = walk.offset();
                    }
                }
                // Return the intact messages first; the next call finds the damage again and reports it.
                WalkedItem::Bad(_) if !taken.found.is_empty() => break false,
                WalkedItem::Bad(what) => {
                    let offset = walk.offset();
                    let after = walk.skip_damage().map_err(at(&path))?;
                    // Damage to settled records alone is harmless.
                    if after.is_none_or(|after| after > next) {
                        let lost = next..=after.map_or(plan.last, |after| after - 1);
                        return Err(PagesError::Damaged(Damage { file: path, offset, what, lost }));
                    }
                }
            }
        };
        Ok((taken.found, full))
    }
}

/// The messages that a walk has collected.
struct CollectedRecords<'p> {
    wanted: &'p [(u64, u64)],
    found: Vec<Stored>,
    bytes: usize,
}

impl CollectedRecords<'_> {
    fn wants(&self, position: u64) -> bool {
        self.wanted.first().is_some_and(|&(from, to)| (from..=to).contains(&position))
    }

    fn take(&mut self, record: &super::Record<'_>) {
        self.bytes += record.payload.len();
        self.found.push(Stored {
            position: record.position,
            expires: record.expires,
            deliveries: record.deliveries,
            transient: record.transient,
            payload: record.payload.to_vec(),
        });
        if self.wanted.first().is_some_and(|&(_, to)| to == record.position) {
            self.wanted = &self.wanted[1..];
        }
    }
}

impl PageSegment {
    /// The bytes at an offset, and the offset to which they reach: an open segment is partly in memory.
    fn source(&self, offset: u64) -> (Source, u64) {
        let length = self.shape.length;
        let SegmentPhase::Open(open) = &self.phase else { return (Source::File(length), length) };
        let flushed = open.written + open.flushing.as_ref().map_or(0, |bytes| bytes.len() as u64);
        if offset < open.written {
            (Source::File(open.written), open.written)
        } else if let Some(bytes) = open.flushing.as_ref().filter(|_| offset < flushed) {
            (Source::Memory(bytes[(offset - open.written) as usize..].to_vec()), flushed)
        } else {
            let bytes = open.buffer.get((offset - flushed) as usize..).unwrap_or_default();
            (Source::Memory(bytes.to_vec()), length)
        }
    }
}

impl QueueState {
    fn plan(&self, cursor: &Cursor, messages: usize) -> Option<Plan> {
        let start = self.segments.partition_point(|segment| segment.shape.last < cursor.position);
        let (segment, first) = self
            .segments
            .range(start..)
            .find_map(|segment| segment.live.next(cursor.position).map(|first| (segment, first)))?;
        let mut offset = segment.locate(first);
        if cursor.sequence == segment.file.sequence {
            offset = offset.max(cursor.offset);
        }
        let mut left = messages as u64;
        let mut wanted = Vec::new();
        for (from, to) in segment.live.ranges_from(first).take(MAX_RANGES) {
            let to = to.min(from.saturating_add(left - 1));
            wanted.push((from, to));
            left -= to - from + 1;
            if left == 0 {
                break;
            }
        }
        let (source, end) = segment.source(offset);
        let (file, last, complete) = (segment.file.clone(), segment.shape.last, end >= segment.shape.length);
        Some(Plan { file, offset, wanted, last, source, complete })
    }

    /// Whether a live message is in this particular segment.
    fn is_at(&self, position: u64, file: &SegmentFileName) -> bool {
        self.holding(position)
            .is_some_and(|segment| segment.file.salt == file.salt && segment.live.contains(position))
    }

    /// Removes messages that were settled while they were read, and sets the marked delivery counts of the rest.
    fn retain_live(&self, messages: &mut Vec<Stored>) {
        messages.retain_mut(|message| {
            let Some(segment) = self.holding(message.position) else { return false };
            message.deliveries = segment.marks.get(message.position).unwrap_or(message.deliveries);
            segment.live.contains(message.position)
        });
    }
}

/// The most ranges looked up for one plan, so that scattered settled messages do not make it long.
const MAX_RANGES: usize = 1024;
