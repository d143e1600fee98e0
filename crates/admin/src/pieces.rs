//! Long responses, in pieces.
//!
//! A response about 100,000 queues has tens of megabytes. In a single buffer it would be copied repeatedly as it grows, and
//! freed all at once by the sending thread, which also serves clients. Pieces are never copied, and each is freed once it has
//! been sent. The writing thread pauses whenever some are full.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, io, mem};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use serde::Serialize;
use sync::pace::pace;

/// Bytes of a piece, except the last: a few writes to a socket.
const PIECE: usize = 64 << 10;

/// Nanoseconds for writing a piece: three for a byte, of JSON or of samples.
const FULL: u32 = 3 * PIECE as u32;

/// The bytes of a response that is being written.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    full: Vec<Vec<u8>>,
    /// The last piece, not yet full.
    last: Vec<u8>,
}

impl Pieces {
    /// Adds bytes at the end.
    #[inline]
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if bytes.len() > PIECE - self.last.len() {
            return self.add_across(bytes);
        }
        self.last.extend_from_slice(bytes);
    }

    #[cold]
    fn add_across(&mut self, mut bytes: &[u8]) {
        while bytes.len() > PIECE - self.last.len() {
            let (fitting, rest) = bytes.split_at(PIECE - self.last.len());
            self.last.extend_from_slice(fitting);
            self.full.push(mem::replace(&mut self.last, Vec::with_capacity(PIECE)));
            pace(FULL);
            bytes = rest;
        }
        self.last.extend_from_slice(bytes);
    }

    /// Adds a value as JSON.
    pub(crate) fn add_json(&mut self, value: &impl Serialize) {
        // Cannot fail: values of the API can be serialised, and writes to memory succeed.
        let _ = serde_json::to_writer(self, value);
    }

    /// Adds another's pieces at the end, as they are.
    pub(crate) fn append(&mut self, other: Self) {
        if !self.last.is_empty() {
            self.full.push(mem::take(&mut self.last));
        }
        self.full.extend(other.full);
        self.last = other.last;
    }

    /// The pieces in order, none of which is empty.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Vec<u8>> {
        self.full.into_iter().chain([self.last]).filter(|piece| !piece.is_empty())
    }

    /// All bytes in one buffer.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.into_pieces().flatten().collect()
    }
}

/// Bytes that are complete already stay in one piece.
impl From<Vec<u8>> for Pieces {
    fn from(bytes: Vec<u8>) -> Self {
        Self { full: vec![bytes], last: Vec::new() }
    }
}

impl fmt::Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A response body of known length, which passes its pieces on one by one.
#[derive(Debug, Default)]
pub(crate) struct PiecewiseBody {
    pieces: VecDeque<Bytes>,
    /// Bytes of `pieces` together.
    left: u64,
}

impl FromIterator<Bytes> for PiecewiseBody {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let pieces: VecDeque<Bytes> = pieces.into_iter().collect();
        Self { left: pieces.iter().map(|piece| piece.len() as u64).sum(), pieces }
    }
}

impl From<Pieces> for PiecewiseBody {
    fn from(pieces: Pieces) -> Self {
        pieces.into_pieces().map(Bytes::from).collect()
    }
}

impl Body for PiecewiseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.pieces.pop_front();
        self.left -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Exact, so that the response says its length.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn lengths(pieces: Pieces) -> Vec<usize> {
        pieces.into_pieces().map(|piece| piece.len()).collect()
    }

    #[test]
    fn no_piece_is_longer_than_others_however_it_is_written() {
        let mut pieces = Pieces::default();
        pieces.add(&[1; 10]);
        pieces.add(&[2; 2 * PIECE]);
        assert_eq!(lengths(pieces), [PIECE, PIECE, 10]);
        let mut pieces = Pieces::default();
        (0..PIECE).for_each(|_| pieces.add(&[1]));
        assert_eq!(lengths(pieces), [PIECE]);
        assert_eq!(lengths(Pieces::default()), [0; 0]);
    }

    #[test]
    fn pieces_keep_the_written_bytes_in_order() {
        let bytes: Vec<u8> = (0..3 * PIECE).map(|at| (at % 251) as u8).collect();
        let (mut pieces, mut others) = (Pieces::default(), Pieces::default());
        let (first, rest) = bytes.split_at(PIECE / 2);
        pieces.add(first);
        rest.chunks(1000).for_each(|chunk| others.add(chunk));
        pieces.append(others);
        assert!(pieces.into_bytes() == bytes);
    }

    #[test]
    fn a_thread_pauses_now_and_then_while_it_writes() {
        let before = sync::pace::pauses();
        let mut pieces = Pieces::default();
        let line = [7; 64];
        (0..100 * PIECE / line.len()).for_each(|_| pieces.add(&line));
        assert!(sync::pace::pauses() - before >= 30);
    }

    #[tokio::test]
    async fn a_body_tells_its_length_and_lets_go_of_each_piece() {
        let mut body = PiecewiseBody::from_iter([Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        for (left, expected) in [(3, "ab"), (1, "c")] {
            assert_eq!(body.size_hint().exact(), Some(left));
            assert!(!body.is_end_stream());
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), expected);
        }
        assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
    }
}
