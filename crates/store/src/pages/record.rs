//! The bytes of a segment: a header, then records. Everything is little-endian.
//!
//! ```text
//! segment header (32)  magic "LVSEG" 0 0, version u8 | queue u64 | salt u64 | 0 u32 | crc u32 of the 28 before
//! record header (32)   payload length u32 | crc u32 | position u64 | expires u64 | deliveries u32 | flags u8 | rest u24
//!                      then the payload
//! ```
//!
//! `rest` is the number of payload bytes that do not count towards the message's weight.
//!
//! A record's checksum covers the segment's salt, the record's offset, its header and its payload, so that a stale or
//! copied record never passes for one at this offset. A sync mark is a record without payload that is written *after* a
//! sync succeeded (and holds the salt instead of an expiry): everything before a mark was durable, and a bad record
//! there is damage, not a torn tail.

use std::fmt;

/// A message as it is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Position in the queue, ascending.
    pub position: u64,
    /// When it expires, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// How often it was delivered before.
    pub deliveries: u32,
    /// Whether a restart of the broker drops it.
    pub transient: bool,
    /// The message's weight in bytes, up to the length of its payload.
    pub weight: u32,
    /// The message, not interpreted here.
    pub payload: &'a [u8],
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({}, {} bytes, {} deliveries)", self.position, self.payload.len(), self.deliveries)
    }
}

/// The item found at an offset of a segment.
pub(super) enum ScannedRecord<'a> {
    /// A record, and its length with the header.
    Record(Record<'a>, usize),
    /// A sync mark.
    Mark,
    /// A record that is not completely in the given bytes.
    Short,
    /// Bytes that were never written as a whole record.
    Bad(&'static str),
}

/// The header of a segment of `queue`.
pub(super) fn segment_header(queue: u64, salt: u64) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[..7].copy_from_slice(MAGIC);
    header[7] = VERSION;
    header[8..16].copy_from_slice(&queue.to_le_bytes());
    header[16..24].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The contents of a segment's header.
pub(super) enum PageHeader {
    /// The salt.
    Good(u64),
    /// Written in a version of the format that is not known here.
    UnknownVersion(u8),
    /// Torn or damaged, or of another queue.
    Bad,
}

pub(super) fn decode_segment_header(bytes: &[u8], queue: u64) -> PageHeader {
    let Some(header) = bytes.get(..SEGMENT_HEADER) else { return PageHeader::Bad };
    if crc32fast::hash(&header[..28]) != u32_at(header, 28) || &header[..7] != MAGIC {
        return PageHeader::Bad;
    }
    match header[7] {
        VERSION if u64_at(header, 8) == queue => PageHeader::Good(u64_at(header, 16)),
        VERSION => PageHeader::Bad,
        version => PageHeader::UnknownVersion(version),
    }
}

/// Appends a record that will be at `offset` of the segment with this salt.
pub(super) fn encode(record: &Record<'_>, salt: u64, offset: u64, into: &mut Vec<u8>) {
    let mut flags = 0;
    if record.transient {
        flags |= TRANSIENT;
    }
    if record.expires.is_some() {
        flags |= EXPIRES;
    }
    let numbers = (record.position, record.expires.unwrap_or(0), record.deliveries);
    let rest = (record.payload.len() as u32).saturating_sub(record.weight).min(MAX_REST);
    put(numbers, (flags, rest), record.payload, salt, offset, into);
}

/// Appends a sync mark; `position` is the last one that was synced.
pub(super) fn encode_mark(position: u64, salt: u64, offset: u64, into: &mut Vec<u8>) {
    put((position, salt, 0), (MARK, 0), &[], salt, offset, into);
}

fn put(
    numbers: (u64, u64, u32),
    (flags, rest): (u8, u32),
    payload: &[u8],
    salt: u64,
    offset: u64,
    into: &mut Vec<u8>,
) {
    let mut header = [0; RECORD_HEADER];
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&numbers.0.to_le_bytes());
    header[16..24].copy_from_slice(&numbers.1.to_le_bytes());
    header[24..28].copy_from_slice(&numbers.2.to_le_bytes());
    header[28..].copy_from_slice(&(u32::from(flags) | rest << 8).to_le_bytes());
    let crc = checksum(&header, payload, salt, offset);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    into.extend_from_slice(&header);
    into.extend_from_slice(payload);
}

/// Decodes the start of `bytes`, which is `offset` of the segment with this salt.
pub(super) fn decode(bytes: &[u8], salt: u64, offset: u64) -> ScannedRecord<'_> {
    let Some(header) = bytes.first_chunk::<RECORD_HEADER>() else { return ScannedRecord::Short };
    let (len, flags) = (u32_at(header, 0) as usize, header[28]);
    let rest = u32_at(header, 28) >> 8;
    if len > MAX_PAYLOAD || flags > (TRANSIENT | EXPIRES | MARK) || rest as usize > len {
        return ScannedRecord::Bad("not a record's header");
    }
    let Some(payload) = bytes.get(RECORD_HEADER..RECORD_HEADER + len) else {
        return ScannedRecord::Short;
    };
    if checksum(header, payload, salt, offset) != u32_at(header, 4) {
        return ScannedRecord::Bad("its checksum is wrong");
    }
    if flags & MARK != 0 {
        return ScannedRecord::Mark;
    }
    let record = Record {
        position: u64_at(header, 8),
        expires: (flags & EXPIRES != 0).then(|| u64_at(header, 16)),
        deliveries: u32_at(header, 24),
        transient: flags & TRANSIENT != 0,
        weight: len as u32 - rest,
        payload,
    };
    ScannedRecord::Record(record, RECORD_HEADER + len)
}

/// Number of bytes needed to validate the record with this header.
pub(super) fn needed(header: &[u8]) -> u64 {
    let len = u32_at(header, 0) as usize;
    if len > MAX_PAYLOAD { RECORD_HEADER as u64 } else { (RECORD_HEADER + len) as u64 }
}

/// Looks for a sync mark in `bytes`, which start at `offset` of a segment, and returns the salt it holds. If a salt is
/// given, only a mark with that one counts.
pub(super) fn find_mark(bytes: &[u8], offset: u64, salt: Option<u64>) -> Option<u64> {
    bytes.windows(RECORD_HEADER).enumerate().find_map(|(at, window)| {
        if window[28] != MARK || window[..4] != [0; 4] || window[29..] != [0; 3] {
            return None;
        }
        let found = u64_at(window, 16);
        let ours = salt.is_none_or(|salt| salt == found);
        (ours && matches!(decode(window, found, offset + at as u64), ScannedRecord::Mark)).then_some(found)
    })
}

/// Looks for the first intact record in `bytes`, which start at `offset` of the segment with this salt: its index in
/// `bytes` and its position.
pub(super) fn find_record(bytes: &[u8], salt: u64, offset: u64) -> Option<(usize, u64)> {
    (0..bytes.len()).find_map(|at| match decode(&bytes[at..], salt, offset + at as u64) {
        ScannedRecord::Record(record, _) => Some((at, record.position)),
        _ => None,
    })
}

fn checksum(header: &[u8; RECORD_HEADER], payload: &[u8], salt: u64, offset: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    let mut prefix = [0; 16 + RECORD_HEADER - 4];
    prefix[..8].copy_from_slice(&salt.to_le_bytes());
    prefix[8..16].copy_from_slice(&offset.to_le_bytes());
    prefix[16..20].copy_from_slice(&header[..4]);
    prefix[20..].copy_from_slice(&header[8..]);
    crc.update(&prefix);
    crc.update(payload);
    crc.finalize()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight))
}

pub(super) const SEGMENT_HEADER: usize = 32;
pub(super) const RECORD_HEADER: usize = 32;
/// The most bytes of a stored message: twice the largest body that can be configured, with space for its properties.
pub(super) const MAX_PAYLOAD: usize = 1 << 30;
/// Version of the segment, index and sidecar files.
pub(super) const VERSION: u8 = 2;
/// Largest number in three bytes: more than the properties of any message have.
const MAX_REST: u32 = (1 << 24) - 1;
const MAGIC: &[u8; 7] = b"LVSEG\0\0";
const TRANSIENT: u8 = 1;
const EXPIRES: u8 = 2;
const MARK: u8 = 4;
