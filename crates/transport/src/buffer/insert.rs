//! Reframes a batch just before it is written: inserts headers in front of the pending bytes.

use bytes::Bytes;

use super::OutBuf;

/// Tails up to this length are moved to make space; for longer ones another entry in the vectored write costs less.
const MOVE_BELOW: usize = 16 * 1024;

impl OutBuf {
    /// The pending bytes, in order, in pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let tail = &self.tail[self.tail_written..];
        self.sealed.iter().map(|piece| &piece[..]).chain(std::iter::once(tail))
    }

    /// Inserts each piece in front of the byte at its offset, or at the end. Offsets ascend and are counted before
    /// anything is inserted.
    ///
    /// # Panics
    /// If an offset is beyond the end.
    pub fn insert(&mut self, inserts: &[(usize, impl AsRef<[u8]>)]) {
        if let [(0, piece)] = inserts
            && self.sealed.is_empty()
            && self.len() <= MOVE_BELOW
        {
            let front = self.tail_written..self.tail_written;
            self.tail.splice(front, piece.as_ref().iter().copied());
            return;
        }
        self.seal();
        let mut rest = std::mem::take(&mut self.sealed);
        let mut position = 0;
        for (offset, piece) in inserts {
            while position < *offset {
                let mut front = rest.pop_front().expect("the offset is not beyond the end");
                if front.len() > offset - position {
                    rest.push_front(front.split_off(offset - position));
                }
                position += front.len();
                self.sealed.push_back(front);
            }
            let piece = Bytes::copy_from_slice(piece.as_ref());
            if !piece.is_empty() {
                self.sealed_len += piece.len();
                self.sealed.push_back(piece);
            }
        }
        self.sealed.append(&mut rest);
    }

    /// Discards all pending bytes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of both kinds: `0..n` in bytes, of which the first `written` are written.
    fn filled(parts: &[usize], written: usize) -> (OutBuf, Vec<u8>) {
        let mut buf = OutBuf::default();
        let bytes: Vec<u8> = (0..parts.iter().sum()).map(|i| i as u8).collect();
        let mut rest = &bytes[..];
        for len in parts {
            let (part, after) = rest.split_at(*len);
            buf.push(Bytes::copy_from_slice(part));
            rest = after;
        }
        buf.advance(written);
        (buf, bytes[written..].to_vec())
    }

    #[test]
    fn pieces_are_inserted_at_their_offsets_for_any_buffer_layout() {
        for parts in [&[20][..], &[10, 3000, 10], &[3000, 3000], &[20_000, 5], &[10, 10, 40_000]] {
            for written in [0, 5] {
                let (_, plain) = filled(parts, written);
                let end = plain.len();
                for offsets in [&[0][..], &[0, 3], &[0, 3, 4, end / 2, end], &[end], &[]] {
                    let (mut buf, _) = filled(parts, written);
                    let inserts: Vec<(usize, Vec<u8>)> =
                        offsets.iter().map(|offset| (*offset, format!("<{offset}>").into_bytes())).collect();
                    buf.insert(&inserts);
                    let mut expected = plain.clone();
                    for (offset, piece) in inserts.iter().rev() {
                        expected.splice(offset..offset, piece.iter().copied());
                    }
                    assert_eq!(buf.pieces().flatten().copied().collect::<Vec<_>>(), expected);
                    assert_eq!(buf.len(), expected.len());
                }
            }
        }
    }
}
