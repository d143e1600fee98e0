//! Records that are appended and not yet on disk, and the number of needed messages in each extent of the log.
//!
//! An extent is a part of the log that is retired as a unit. It has a segment file, and one more for each failure to write.
//! One mutex protects all of this, and is never held during I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use super::address::{Entry, QueueId};
use super::in_turn::LatestWaiters;
use super::record::{HEADER, JournalRecordKind, RecordHeader, RecordLocation, put_enqueue};
use super::space::Space;
use crate::WaitList;

/// State under the journal's mutex.
pub(super) struct PendingRecords {
    incarnation: u64,
    space: Arc<Space>,
    /// Records that no round has taken yet.
    buffer: Vec<u8>,
    /// An empty buffer for the next group.
    spare: Vec<u8>,
    /// LSN of the buffer's first byte.
    base: u64,
    /// Where extents begin within the buffer.
    cuts: Vec<u64>,
    /// All extents that are not retired, oldest first.
    extents: VecDeque<Extent>,
    /// The group that the current round writes.
    pub(super) flight: Option<Arc<Group>>,
    /// A waiter has requested a round.
    pub(super) demanded: bool,
    /// The committer sleeps until it is woken.
    pub(super) asleep: bool,
    pub(super) stopping: bool,
    /// A session runs a round at the end of its turn.
    pub(super) round_deferred: bool,
    /// Used to determine whether several sessions wait for rounds.
    pub(super) latest_waiters: LatestWaiters,
    /// Publishers that found no capacity.
    pub(super) for_capacity: WaitList,
}

/// The records that one round writes.
pub(super) struct Group {
    /// LSN of the first byte.
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    cuts: Vec<u64>,
}

/// A part of the log that is retired as a unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) first: u64,
    pub(super) end: u64,
    /// Messages that a queue needs, counted once per queue, and messages that have not reached their queues yet.
    pub(super) live: u64,
    /// LSN beyond which no record of the extent may extend.
    limit: u64,
}

impl PendingRecords {
    /// The state after a start. `tail` are the records from `base` on, which are written again because they may not have
    /// been synced; `extents` are those before.
    pub(super) fn new(
        incarnation: u64,
        space: Arc<Space>,
        base: u64,
        tail: Vec<u8>,
        extents: VecDeque<Extent>,
    ) -> Self {
        let mut pending = Self {
            incarnation,
            space,
            buffer: tail,
            spare: Vec::new(),
            base,
            cuts: Vec::new(),
            extents,
            flight: None,
            demanded: false,
            asleep: false,
            stopping: false,
            round_deferred: false,
            latest_waiters: LatestWaiters::default(),
            for_capacity: WaitList::default(),
        };
        if !pending.buffer.is_empty() {
            pending.begin_extent(base, pending.buffer.len() as u64);
            pending.extend(0);
        }
        pending
    }

    /// LSN of the next record.
    pub(super) fn end(&self) -> u64 {
        self.base + self.buffer.len() as u64
    }

    /// Bytes that are not yet on disk.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.len() + self.flight.as_ref().map_or(0, |group| group.bytes.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Bytes that wait for a round.
    pub(super) fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the pending records start an extent, and so a file.
    pub(super) fn begins_extent(&self) -> bool {
        !self.cuts.is_empty()
    }

    /// Appends a message of `len` bytes with this checksum, and counts it as not having reached its queues yet.
    pub(super) fn put_message(&mut self, parts: &[&[u8]], len: usize, crc: u32) -> u64 {
        let (lsn, start) = (self.end(), self.buffer.len());
        let header = RecordHeader::new(JournalRecordKind::Message, start == 0, len, crc);
        self.buffer.reserve(HEADER + len);
        self.buffer.extend_from_slice(&header.encode(self.place(lsn)));
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        self.extend(start);
        self.add_live(lsn);
        lsn
    }

    /// Appends an enqueue record, which may be part of a transfer, and counts its messages. Returns its LSN.
    pub(super) fn put_enqueue(&mut self, kind: JournalRecordKind, queue: QueueId, entries: &[Entry]) -> u64 {
        let lsn = self.end();
        self.put(kind, |buffer| put_enqueue(buffer, lsn, queue, entries));
        for entry in entries.iter().filter(|entry| !entry.last) {
            self.add_live(entry.message.to_u64());
        }
        lsn
    }

    /// Appends a record whose payload `write` appends.
    pub(super) fn put(&mut self, kind: JournalRecordKind, write: impl FnOnce(&mut Vec<u8>)) {
        let (lsn, start) = (self.end(), self.buffer.len());
        self.buffer.extend_from_slice(&[0; HEADER]);
        write(&mut self.buffer);
        let payload = &self.buffer[start + HEADER..];
        let header = RecordHeader::new(kind, start == 0, payload.len(), crc32fast::hash(payload));
        let header = header.encode(self.place(lsn));
        self.buffer[start..start + HEADER].copy_from_slice(&header);
        self.extend(start);
    }

    /// Makes the next record start an extent. Returns `false` if the last extent is still empty.
    pub(super) fn cut(&mut self) -> bool {
        let end = self.end();
        self.extents.back_mut().is_some_and(|last| {
            last.limit = end;
            last.first < end
        })
    }

    /// Records that one queue fewer needs the message at `lsn`.
    pub(super) fn drop_live(&mut self, lsn: u64) {
        if let Some(extent) = self.extent_mut(lsn) {
            extent.live = extent.live.saturating_sub(1);
        }
    }

    /// Takes all pending records, for a round.
    pub(super) fn take(&mut self) -> Arc<Group> {
        let base = self.base;
        self.base = self.end();
        let bytes = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.spare));
        let group = Arc::new(Group { base, bytes, cuts: std::mem::take(&mut self.cuts) });
        self.flight = Some(group.clone());
        self.latest_waiters.begin_round();
        group
    }

    /// Reuses the buffer of a group that is no longer needed: memory that was used before causes no page faults.
    pub(super) fn reuse_buffer(&mut self, group: Group) {
        if group.bytes.capacity() <= RETAINED_BUFFER {
            self.spare = group.bytes;
            self.spare.clear();
        }
    }

    /// Frees buffer memory left over from busy times, since nothing is pending now.
    pub(super) fn free_idle_memory(&mut self) {
        for buffer in [&mut self.buffer, &mut self.spare] {
            if buffer.is_empty() && buffer.capacity() > IDLE_BUFFER {
                *buffer = Vec::new();
            }
        }
    }

    /// The bytes from `lsn` on, if they are pending and no round has taken them yet.
    pub(super) fn gathered(&self, lsn: u64) -> Option<&[u8]> {
        self.buffer.get(usize::try_from(lsn.checked_sub(self.base)?).ok()?..)
    }

    /// The extents, oldest first.
    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter()
    }

    /// Drops the oldest extent.
    pub(super) fn retire(&mut self) {
        self.extents.pop_front();
    }

    /// Whether a record that ends at `lsn` waits for a round.
    pub(super) fn waits(&self, lsn: u64) -> bool {
        lsn > self.base
    }

    fn place(&self, lsn: u64) -> RecordLocation {
        RecordLocation { lsn, incarnation: self.incarnation }
    }

    /// Assigns the record that starts at `start` of the buffer to an extent: the last one, or a new one if that is full.
    fn extend(&mut self, start: usize) {
        let (lsn, end) = (self.base + start as u64, self.end());
        match self.extents.back_mut() {
            Some(last) if end <= last.limit => last.end = end,
            _ => {
                self.begin_extent(lsn, end - lsn);
                self.extents.iter_mut().next_back().into_iter().for_each(|last| last.end = end);
            }
        }
    }

    fn begin_extent(&mut self, first: u64, len: u64) {
        self.cuts.push(first);
        self.extents.push_back(Extent {
            first,
            end: first,
            live: 0,
            limit: first + self.space.capacity().max(len),
        });
    }

    /// Counts a message that a queue needs.
    pub(super) fn add_live(&mut self, lsn: u64) {
        if let Some(extent) = self.extent_mut(lsn) {
            extent.live += 1;
        }
    }

    fn extent_mut(&mut self, lsn: u64) -> Option<&mut Extent> {
        let last = self.extents.len().checked_sub(1)?;
        let at = if self.extents[last].first <= lsn {
            last
        } else {
            self.extents.partition_point(|extent| extent.first <= lsn).checked_sub(1)?
        };
        self.extents.get_mut(at)
    }
}

impl Extent {
    /// An extent of an earlier run, which gets no more records.
    pub(super) fn of_old(first: u64, end: u64) -> Self {
        Self { first, end, live: 0, limit: end }
    }
}

impl Group {
    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Whether an extent begins at `lsn`.
    pub(super) fn cuts_at(&self, lsn: u64) -> bool {
        self.cuts.contains(&lsn)
    }

    /// The end of a single write that starts at `lsn`: the start of the next extent, or the end.
    pub(super) fn chunk_end(&self, lsn: u64) -> u64 {
        self.cuts.iter().copied().find(|cut| *cut > lsn).unwrap_or(self.end())
    }

    pub(super) fn slice(&self, from: u64, to: u64) -> &[u8] {
        &self.bytes[(from - self.base) as usize..(to - self.base) as usize]
    }
}

/// Enough for the records that a fast disk gathers during a sync at full load; only a stall needs a larger buffer.
const RETAINED_BUFFER: usize = 32 << 20;
/// Enough for a typical group, and small enough to retain while idle.
const IDLE_BUFFER: usize = 256 << 10;
