//! Records, of which the log consists.
//!
//! ```text
//! 0   u32  length of the payload, in bytes
//! 4   u8   kind, and in the upper bit whether a group begins here
//! 5   u24  check of length and kind, mixed with the place
//! 8   u32  CRC-32 of the payload, mixed with the place
//! 12       payload
//! ```
//! Numbers are little-endian. The place is the record's LSN and the incarnation of the log that wrote it, so that old
//! bytes in a recycled file never pass for a record.
//!
//! A group starts only when everything before it is on disk. So a damaged record is the torn end of the log if no group
//! starts after it, and damage otherwise.

use smallvec::SmallVec;

use super::address::{Entry, Lsn, MAX_POSITION, MessageRef, QueueId, Range};
use super::varint;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalRecordKind {
    /// A message; its payload is opaque.
    Message = 1,
    /// Messages enter a queue.
    Enqueue = 2,
    /// Messages leave a queue.
    Settle = 3,
    /// Messages were delivered.
    Delivered = 4,
    /// Empty: everything before it is on disk.
    Mark = 5,
    /// Its payload was damaged beyond repair and is ignored.
    Skip = 6,
    /// Messages enter a queue as part of a transfer: it takes effect only if a later [`JournalRecordKind::Transfer`] names
    /// this record.
    EnqueueInTransfer = 7,
    /// Messages leave a queue, and the named records take effect.
    Transfer = 8,
}

/// A record's LSN, and the incarnation that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordLocation {
    pub(super) lsn: u64,
    pub(super) incarnation: u64,
}

/// A record's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) kind: JournalRecordKind,
    pub(super) begins_group: bool,
    /// Length of the payload.
    pub(super) len: usize,
    crc: u32,
}

impl RecordHeader {
    pub(super) fn new(kind: JournalRecordKind, begins_group: bool, len: usize, crc: u32) -> Self {
        Self { kind, begins_group, len, crc }
    }

    pub(super) fn encode(self, place: RecordLocation) -> [u8; HEADER] {
        let len = self.len as u32;
        let kind = self.kind as u8 | if self.begins_group { BEGINS_GROUP } else { 0 };
        let mixed = mix(place);
        let check = check(mixed, len, kind);
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..8].copy_from_slice(&(u32::from(kind) | check << 8).to_le_bytes());
        bytes[8..].copy_from_slice(&(self.crc ^ mixed as u32).to_le_bytes());
        bytes
    }

    /// The header at the start of `bytes`, if it is valid for this location.
    pub(super) fn parse(bytes: &[u8], place: RecordLocation) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let kind = JournalRecordKind::from_byte(bytes[4] & !BEGINS_GROUP)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (len, mixed) = (word(0), mix(place));
        if check(mixed, len, bytes[4]) != word(4) >> 8 {
            return None;
        }
        let begins_group = bytes[4] & BEGINS_GROUP != 0;
        Some(Self { kind, begins_group, len: len as usize, crc: word(8) ^ mixed as u32 })
    }

    /// Whether `payload` is as it was written.
    pub(super) fn fits(self, payload: &[u8]) -> bool {
        if self.kind == JournalRecordKind::Skip {
            self.crc == 0
        } else {
            crc32fast::hash(payload) == self.crc
        }
    }

    /// Length of the whole record in bytes.
    pub(super) fn record_len(self) -> usize {
        HEADER + self.len
    }
}

impl JournalRecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Message,
            2 => Self::Enqueue,
            3 => Self::Settle,
            4 => Self::Delivered,
            5 => Self::Mark,
            6 => Self::Skip,
            7 => Self::EnqueueInTransfer,
            8 => Self::Transfer,
            _ => return None,
        })
    }
}

/// Whether a byte can be the fifth of a record: a fast check before computing a checksum.
pub(super) fn may_be_kind(byte: u8) -> bool {
    JournalRecordKind::from_byte(byte & !BEGINS_GROUP).is_some()
}

/// The whole record at the front of `bytes`: its header and payload, if both are intact.
pub(super) fn parse(bytes: &[u8], place: RecordLocation) -> Option<(RecordHeader, &[u8])> {
    let header = RecordHeader::parse(bytes, place)?;
    let payload = bytes.get(HEADER..header.record_len())?;
    header.fits(payload).then_some((header, payload))
}

/// Appends the payload of an enqueue record that will be at `lsn`.
pub(super) fn put_enqueue(into: &mut Vec<u8>, lsn: u64, queue: QueueId, entries: &[Entry]) {
    let expires = entries.iter().any(|entry| entry.expires != 0);
    varint::put(into, queue.0);
    varint::put(into, (entries.len() as u64) << 1 | u64::from(expires));
    let mut next = 0;
    for entry in entries {
        varint::put(into, entry.position.wrapping_sub(next));
        varint::put(into, lsn.wrapping_sub(entry.message.to_u64()));
        if expires {
            varint::put(into, entry.expires);
        }
        next = entry.position + 1;
    }
}

/// Reads the payload of an enqueue record.
pub(super) fn take_enqueue(mut from: &[u8], lsn: u64, entries: &mut Vec<Entry>) -> Option<QueueId> {
    entries.clear();
    let queue = QueueId(varint::take(&mut from)?);
    let count = varint::take(&mut from)?;
    let mut next = 0u64;
    for _ in 0..count >> 1 {
        let position =
            next.checked_add(varint::take(&mut from)?).filter(|&position| position < MAX_POSITION)?;
        let message = MessageRef::from_u64(lsn.checked_sub(varint::take(&mut from)?)?);
        let expires = if count & 1 == 1 { varint::take(&mut from)? } else { 0 };
        entries.push(Entry { position, message, expires, last: false });
        next = position + 1;
    }
    Some(queue)
}

/// Appends the payload of a settle record, or with a count that of a delivered record.
pub(super) fn put_ranges(into: &mut Vec<u8>, queue: QueueId, count: Option<u32>, ranges: &[Range]) {
    varint::put(into, queue.0);
    if let Some(count) = count {
        varint::put(into, count.into());
    }
    let mut from = 0;
    for range in ranges {
        // Positions that were settled out of order give a negative distance, which wraps.
        varint::put(into, zigzag(range.first.wrapping_sub(from) as i64));
        varint::put(into, range.last - range.first);
        from = range.last + 1;
    }
}

/// Ranges of one record.
pub(super) type Ranges = SmallVec<[Range; 16]>;

/// Reads the payload of a settle record, or of a delivered record.
pub(super) fn take_ranges(mut from: &[u8], counted: bool) -> Option<(QueueId, u32, Ranges)> {
    let queue = QueueId(varint::take(&mut from)?);
    let count = if counted { u32::try_from(varint::take(&mut from)?).ok()? } else { 0 };
    let mut ranges = Ranges::new();
    let mut next = 0u64;
    while !from.is_empty() {
        let first = next.wrapping_add(unzigzag(varint::take(&mut from)?) as u64);
        let last = first.checked_add(varint::take(&mut from)?).filter(|&last| last < MAX_POSITION)?;
        ranges.push(Range { first, last });
        next = last + 1;
    }
    Some((queue, count, ranges))
}

/// Appends the payload of a transfer record that will be at `lsn`: the records that take effect, then the ranges that
/// leave.
pub(super) fn put_transfer(into: &mut Vec<u8>, lsn: u64, enqueued: &[Lsn], queue: QueueId, ranges: &[Range]) {
    varint::put(into, enqueued.len() as u64);
    enqueued.iter().for_each(|record| varint::put(into, lsn.wrapping_sub(record.0)));
    put_ranges(into, queue, None, ranges);
}

/// Reads the first part of a transfer record's payload: the records that take effect. The rest of `from` is then a
/// settle record's payload.
pub(super) fn take_transfer(from: &mut &[u8], lsn: u64) -> Option<SmallVec<[Lsn; 4]>> {
    let count = varint::take(from)?;
    (0..count).map(|_| lsn.checked_sub(varint::take(from)?).map(Lsn)).collect()
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn mix(place: RecordLocation) -> u64 {
    let mut mixed = place.lsn ^ place.incarnation.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 29)
}

fn check(mixed: u64, len: u32, kind: u8) -> u32 {
    let word = (mixed ^ u64::from(len) << 8 ^ u64::from(kind)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (word >> 40) as u32
}

/// Bytes before the payload.
pub(super) const HEADER: usize = 12;
const BEGINS_GROUP: u8 = 0x80;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = RecordLocation> {
        (1u64.., 1u64..).prop_map(|(lsn, incarnation)| RecordLocation { lsn, incarnation })
    }

    fn record(place: RecordLocation, kind: JournalRecordKind, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader::new(kind, false, payload.len(), crc32fast::hash(payload));
        [&header.encode(place), payload].concat()
    }

    proptest! {
        #[test]
        fn a_record_is_read_at_its_place_only(
            place in place(), other in place(), payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = record(place, JournalRecordKind::Message, &payload);
            let (header, read) = parse(&bytes, place).unwrap();
            prop_assert_eq!((header.kind, read), (JournalRecordKind::Message, &payload[..]));
            prop_assert_eq!(parse(&bytes, other).is_some(), place == other);
        }

        #[test]
        fn a_changed_byte_is_noticed(
            place in place(), payload in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut bytes = record(place, JournalRecordKind::Settle, &payload);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(parse(&bytes, place).is_none());
        }

        #[test]
        fn entries_come_back(
            queue: u64, steps in prop::collection::vec((0u64..1000, 1u64..1 << 40, any::<u64>()), 1..50), expiring: bool,
        ) {
            let (lsn, mut position) = (1 << 41, 0);
            let entries: Vec<_> = steps.into_iter().map(|(step, back, expires)| {
                position += step + 1;
                let expires = if expiring { expires } else { 0 };
                Entry { position, message: MessageRef::from_u64(lsn - back), expires, last: false }
            }).collect();
            let (mut bytes, mut read) = (Vec::new(), Vec::new());
            put_enqueue(&mut bytes, lsn, QueueId(queue), &entries);
            prop_assert_eq!(take_enqueue(&bytes, lsn, &mut read), Some(QueueId(queue)));
            prop_assert_eq!(read, entries);
        }

        #[test]
        fn ranges_come_back_in_any_order(
            queue: u64, ranges in prop::collection::vec((0..MAX_POSITION - 1000, 0u64..1000), 0..50), count: Option<u32>,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(first, more)| Range { first, last: first + more }).collect();
            let mut bytes = Vec::new();
            put_ranges(&mut bytes, QueueId(queue), count, &ranges);
            let (read, counted, found) = take_ranges(&bytes, count.is_some()).unwrap();
            prop_assert_eq!((read, counted, &found[..]), (QueueId(queue), count.unwrap_or(0), &ranges[..]));
        }

        #[test]
        fn transfers_come_back(
            queue: u64, back in prop::collection::vec(1u64..1 << 40, 0..9), first in 0..MAX_POSITION - 1000, more in 0u64..1000,
        ) {
            let lsn = 1 << 41;
            let enqueued: Vec<_> = back.into_iter().map(|back| Lsn(lsn - back)).collect();
            let mut bytes = Vec::new();
            put_transfer(&mut bytes, lsn, &enqueued, QueueId(queue), &[Range { first, last: first + more }]);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_transfer(&mut rest, lsn).unwrap().to_vec(), enqueued);
            let (read, _, ranges) = take_ranges(rest, false).unwrap();
            prop_assert_eq!((read, &ranges[..]), (QueueId(queue), &[Range { first, last: first + more }][..]));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), place in place()) {
            let _ = parse(&bytes, place);
            let _ = take_enqueue(&bytes, place.lsn, &mut Vec::new());
            let _ = take_ranges(&bytes, true);
            let _ = take_ranges(&bytes, false);
            let _ = take_transfer(&mut &bytes[..], place.lsn);
        }
    }
}
