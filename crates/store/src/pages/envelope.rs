//! Small files that are written in one piece: a header, and a checksum over everything.
//!
//! ```text
//! magic (7), version u8 | crc u32 of all that follows | body length u32 | queue u64 | salt u64 | body
//! ```
//!
//! Numbers of a body are LEB128: seven bits a byte, the lowest first.

use super::error::{PagesError, at};
use super::record::{VERSION, u32_at, u64_at};
use crate::disk::{Disk, DiskFile};

/// The magic bytes in front of each kind of file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FileKind(&'static [u8; 7]);

impl FileKind {
    pub(super) const INDEX: Self = Self(b"LVIDX\0\0");
    pub(super) const SIDECAR: Self = Self(b"LVSET\0\0");
}

/// The bytes of a file that contains `body`.
pub(super) fn seal(kind: FileKind, queue: u64, salt: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(kind.0);
    bytes.extend_from_slice(&[VERSION, 0, 0, 0, 0]);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&queue.to_le_bytes());
    bytes.extend_from_slice(&salt.to_le_bytes());
    bytes.extend_from_slice(body);
    let crc = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The salt and the body of a file; `None` if it is torn, damaged or another queue's.
pub(super) fn open(bytes: &[u8], kind: FileKind, queue: u64) -> Option<(u64, &[u8])> {
    let header = bytes.get(..HEADER)?;
    let whole = bytes.get(..HEADER.checked_add(u32_at(header, 12) as usize)?)?;
    let ours = &header[..7] == kind.0 && header[7] == VERSION && u64_at(header, 16) == queue;
    (ours && crc32fast::hash(&whole[12..]) == u32_at(header, 8))
        .then(|| (u64_at(header, 24), &whole[HEADER..]))
}

/// All bytes of a small file.
pub(super) fn read(disk: &dyn Disk, path: &str) -> Result<Vec<u8>, PagesError> {
    let read = || {
        let file = disk.open(path)?;
        read_range(&*file, 0, file.len()?)
    };
    read().map_err(at(path))
}

/// The bytes of a file from one offset to another, or to its end.
pub(super) fn read_range(file: &dyn DiskFile, from: u64, to: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; to.saturating_sub(from) as usize];
    let read = file.read_at(&mut bytes, from)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Rewrites the contents of a file from one offset to another, and syncs it. A sync alone would not suffice: bytes that a
/// failed sync has left in the kernel's memory can be read, but are never written.
pub(super) fn write_again(file: &dyn DiskFile, from: u64, to: u64) -> std::io::Result<()> {
    file.write_at(&read_range(file, from, to)?, from)?;
    file.sync()
}

pub(super) fn put(number: u64, into: &mut Vec<u8>) {
    let mut rest = number;
    while rest >= 0x80 {
        into.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

/// Reads numbers that were written by [`put`].
pub(super) struct Numbers<'a>(pub(super) &'a [u8]);

impl Numbers<'_> {
    pub(super) fn take(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

const HEADER: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let numbers = [0, 1, 127, 128, 300, 1 << 35, u64::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| put(*number, &mut bytes));
        let mut back = Numbers(&bytes);
        assert_eq!(numbers.map(|_| back.take().unwrap()), numbers);
        assert_eq!(back.take(), None);
    }

    #[test]
    fn a_change_of_any_byte_is_seen() {
        let sealed = seal(FileKind::INDEX, 5, 6, b"body");
        assert_eq!(open(&sealed, FileKind::INDEX, 5), Some((6, &b"body"[..])));
        assert_eq!(open(&[&sealed[..], b"older"].concat(), FileKind::INDEX, 5), Some((6, &b"body"[..])));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 0x10;
            assert_eq!(open(&changed, FileKind::INDEX, 5), None, "byte {at}");
            assert_eq!(open(&sealed[..at], FileKind::INDEX, 5), None, "cut at {at}");
        }
    }
}
