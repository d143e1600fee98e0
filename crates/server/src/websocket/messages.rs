//! Splits output at AMQP frame boundaries: browser clients rely on whole frames per message.

use amqp::frame::{HEADER_LEN, OVERHEAD};
use transport::OutBuf;

/// The size that a message should not exceed, unless a single frame does, in bytes. A browser passes a message to the
/// page only when it is complete, and libraries limit its size (Python's `websockets`: 1 MiB). The 4-byte header is
/// negligible.
pub(super) const MESSAGE: usize = 64 * 1024;

/// Splits a batch of whole frames into messages, given as start and length.
pub(super) fn messages(batch: &OutBuf) -> Vec<(usize, usize)> {
    let len = batch.len();
    if len <= MESSAGE {
        return if len == 0 { vec![] } else { vec![(0, len)] };
    }
    let mut messages = Vec::with_capacity(len / MESSAGE + 1);
    let (mut start, mut position) = (0, 0);
    let mut bytes = Bytes { pieces: batch.pieces(), piece: &[] };
    // A trailing partial frame goes with the last message.
    while let Some(frame_len) = bytes.frame_len() {
        if position > start && position + frame_len - start > MESSAGE {
            messages.push((start, position - start));
            start = position;
        }
        position += frame_len;
        bytes.skip(frame_len - HEADER_LEN);
    }
    messages.push((start, len - start));
    messages
}

/// The `len` bytes of a batch from `start` on, as slices of its pieces.
pub(super) fn slices(batch: &OutBuf, mut start: usize, mut len: usize) -> Vec<&[u8]> {
    let mut slices = Vec::new();
    for piece in batch.pieces() {
        let begin = start.min(piece.len());
        let end = (begin + len).min(piece.len());
        if end > begin {
            slices.push(&piece[begin..end]);
        }
        start -= begin;
        len -= end - begin;
    }
    slices
}

/// A reader over the pieces of a batch.
struct Bytes<'b, P> {
    pieces: P,
    /// Unread part of the current piece.
    piece: &'b [u8],
}

impl<'b, P: Iterator<Item = &'b [u8]>> Bytes<'b, P> {
    /// Reads the header of a frame; returns the length of the whole frame.
    fn frame_len(&mut self) -> Option<usize> {
        let mut header = [0; HEADER_LEN];
        let mut filled = 0;
        while filled < HEADER_LEN {
            self.refill()?;
            let step = self.piece.len().min(HEADER_LEN - filled);
            header[filled..filled + step].copy_from_slice(&self.piece[..step]);
            self.piece = &self.piece[step..];
            filled += step;
        }
        let payload = u32::from_be_bytes([header[3], header[4], header[5], header[6]]);
        Some(payload as usize + OVERHEAD)
    }

    fn skip(&mut self, mut bytes: usize) {
        while bytes > 0 && self.refill().is_some() {
            let step = self.piece.len().min(bytes);
            self.piece = &self.piece[step..];
            bytes -= step;
        }
    }

    /// Ensures that `piece` is not empty; `None` at the end of the batch.
    fn refill(&mut self) -> Option<()> {
        while self.piece.is_empty() {
            self.piece = self.pieces.next()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use amqp::FrameKind;
    use amqp::frame::write_frame;

    use super::*;

    /// Frames with payloads of these lengths; large ones are chained in pieces.
    fn batch(payloads: &[usize]) -> OutBuf {
        let mut buf = OutBuf::default();
        for len in payloads {
            let mut frame = Vec::new();
            write_frame(&mut frame, FrameKind::Body, 1, |out| out.resize(out.len() + len, 0));
            let end = frame.split_off(frame.len() - 1);
            let payload = frame.split_off(HEADER_LEN);
            buf.push(frame.into());
            buf.push(payload.into());
            buf.push(end.into());
        }
        buf
    }

    #[test]
    fn a_small_batch_is_one_message() {
        assert_eq!(messages(&OutBuf::default()), []);
        assert_eq!(messages(&batch(&[0, 10, 3000])), [(0, 3034)]);
    }

    #[test]
    fn a_large_batch_is_cut_between_frames() {
        let payloads: Vec<usize> = (0..300).map(|i| i * 37 % 5000).collect();
        let cut = messages(&batch(&payloads));
        let ends: Vec<usize> = payloads
            .iter()
            .scan(0, |end, len| {
                *end += len + OVERHEAD;
                Some(*end)
            })
            .collect();
        let mut expected_start = 0;
        for (start, len) in &cut {
            assert_eq!(*start, expected_start);
            assert!(*len <= MESSAGE && *len > MESSAGE / 2 || Some(&(start + len)) == ends.last());
            assert!(ends.contains(&(start + len)));
            expected_start += len;
        }
        assert_eq!(Some(&expected_start), ends.last());
    }

    #[test]
    fn a_frame_larger_than_a_message_stands_alone() {
        let large = 131_072 - OVERHEAD;
        let cut = messages(&batch(&[5, large, large, 5]));
        assert_eq!(cut, [(0, 13), (13, 131_072), (13 + 131_072, 131_072), (13 + 2 * 131_072, 13)]);
    }

    #[test]
    fn bytes_that_are_not_a_frame_are_still_sent() {
        let mut buf = batch(&[10, MESSAGE]);
        buf.push(b"AMQP".as_slice().into());
        let total = buf.len();
        assert_eq!(messages(&buf), [(0, 18), (18, total - 18)]);
    }
}
