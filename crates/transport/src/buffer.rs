//! A queue of bytes to be written: small pieces are copied together, large ones are chained.

mod insert;

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Shorter pieces are copied, which costs less than another entry in a vectored write. The value is well below the smallest
/// negotiable frame (4096), so large bodies are never copied, however they are split.
const COPY_BELOW: usize = 2048;

/// Most slices of one vectored write; Linux accepts up to 1,024, and more than 64 bring no gain.
const MAX_SLICES: usize = 64;

/// A tail that has grown past this is sealed into the chain, so no single allocation keeps doubling.
const SEAL_ABOVE: usize = 256 * 1024;

/// Bytes waiting to be written, in order.
#[derive(Debug, Default)]
pub struct OutBuf {
    /// Finished pieces, in front of `tail`.
    sealed: VecDeque<Bytes>,
    /// Bytes in `sealed`.
    sealed_len: usize,
    /// Small pieces are appended here.
    tail: Vec<u8>,
    /// Bytes of `tail` that are already written.
    tail_written: usize,
}

impl OutBuf {
    /// The vector to append small pieces to. Never shorten it.
    #[inline]
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.tail.len() > SEAL_ABOVE {
            self.seal();
        }
        &mut self.tail
    }

    /// Appends `piece`, by reference when it is large.
    #[inline]
    pub fn push(&mut self, piece: Bytes) {
        if piece.len() < COPY_BELOW {
            self.tail().extend_from_slice(&piece);
        } else {
            self.seal();
            self.sealed_len += piece.len();
            self.sealed.push_back(piece);
        }
    }

    /// Number of bytes waiting to be written.
    #[inline]
    pub fn len(&self) -> usize {
        self.sealed_len + self.tail.len() - self.tail_written
    }

    /// Whether no byte waits to be written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `slices` with the front of the buffer for a vectored write; returns how many of them are filled.
    pub(crate) fn fill_slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut used = 0;
        for piece in self.sealed.iter().take(MAX_SLICES - 1) {
            slices[used] = IoSlice::new(piece);
            used += 1;
        }
        if self.sealed.len() < MAX_SLICES && self.tail_written < self.tail.len() {
            slices[used] = IoSlice::new(&self.tail[self.tail_written..]);
            used += 1;
        }
        used
    }

    /// Appends all waiting bytes to `bytes`.
    pub(crate) fn copy_to(&self, bytes: &mut Vec<u8>) {
        self.sealed.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes.extend_from_slice(&self.tail[self.tail_written..]);
    }

    /// Empty slices, to be filled.
    pub(crate) fn slices<'a>() -> [IoSlice<'a>; MAX_SLICES] {
        std::array::from_fn(|_| IoSlice::new(&[]))
    }

    /// Drops the first `written` bytes.
    pub(crate) fn advance(&mut self, mut written: usize) {
        while let Some(front) = self.sealed.front_mut() {
            let step = written.min(front.len());
            self.sealed_len -= step;
            written -= step;
            if step < front.len() {
                front.advance(step);
                return;
            }
            self.sealed.pop_front();
        }
        self.tail_written += written;
        if self.tail_written == self.tail.len() {
            self.tail.clear();
            self.tail_written = 0;
        }
    }

    /// Frees all memory. The buffer must be empty.
    pub(crate) fn release(&mut self) {
        debug_assert!(self.is_empty());
        *self = Self::default();
    }

    fn seal(&mut self) {
        if self.tail.len() > self.tail_written {
            let mut piece = Bytes::from(std::mem::take(&mut self.tail));
            piece.advance(self.tail_written);
            self.sealed_len += piece.len();
            self.sealed.push_back(piece);
        } else {
            self.tail.clear();
        }
        self.tail_written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes all bytes, `step` at a time.
    fn drain(buf: &mut OutBuf, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while !buf.is_empty() {
            let mut slices = OutBuf::slices();
            let used = buf.fill_slices(&mut slices);
            let piece: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).take(step).collect();
            assert!(!piece.is_empty());
            buf.advance(piece.len());
            out.extend(piece);
        }
        out
    }

    #[test]
    fn order_is_kept_through_copies_chains_and_partial_writes() {
        for step in [1, 7, 4096, usize::MAX] {
            let mut buf = OutBuf::default();
            let mut expected = Vec::new();
            for i in 0..40u8 {
                buf.tail().extend_from_slice(&[i; 3]);
                expected.extend_from_slice(&[i; 3]);
                let large = vec![i; if i % 3 == 0 { COPY_BELOW } else { 5 }];
                expected.extend_from_slice(&large);
                buf.push(large.into());
            }
            assert_eq!(buf.len(), expected.len());
            assert_eq!(drain(&mut buf, step), expected, "step {step}");
        }
    }

    #[test]
    fn more_pieces_than_slices_are_written_in_turns() {
        let mut buf = OutBuf::default();
        for i in 0..200u8 {
            buf.push(vec![i; COPY_BELOW].into());
        }
        buf.tail().push(255);
        let out = drain(&mut buf, usize::MAX);
        assert_eq!(out.len(), 200 * COPY_BELOW + 1);
        assert!(out.is_sorted());
    }

    #[test]
    fn appending_after_a_partial_write_keeps_order() {
        let mut buf = OutBuf::default();
        buf.tail().extend_from_slice(b"abcdef");
        buf.advance(2);
        buf.push(vec![b'x'; COPY_BELOW].into());
        buf.tail().push(b'y');
        let out = drain(&mut buf, usize::MAX);
        assert_eq!((&out[..5], out.last()), (&b"cdefx"[..], Some(&b'y')));
    }
}
