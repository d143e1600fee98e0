//! Bytes that a socket has not accepted yet.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::AsyncWrite;

/// Bytes to be written to a stream. Takes no memory while empty.
#[derive(Debug, Default)]
pub(super) struct Pending {
    bytes: Vec<u8>,
    /// Number of these bytes that have been written.
    taken: usize,
    /// Whether the stream may hold bytes that it has not passed to its socket, as TLS does.
    unflushed: bool,
    /// When the stream last stopped accepting bytes, if bytes are left.
    stuck_since: Option<Instant>,
}

impl Pending {
    /// Writes the waiting bytes. Ready when the socket has all of them.
    pub(super) fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = self.poll_unwatched(stream, cx);
        match polled {
            Poll::Pending => drop(self.stuck_since.get_or_insert_with(transport::now)),
            Poll::Ready(_) => self.stuck_since = None,
        }
        polled
    }

    fn poll_unwatched<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.taken < self.bytes.len() {
            let rest = &self.bytes[self.taken..];
            self.taken += ready!(write_some(stream, cx, rest))?;
            self.unflushed = true;
            self.stuck_since = None;
        }
        if !self.bytes.is_empty() {
            self.bytes = Vec::new();
            self.taken = 0;
        }
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much of `bytes` as the socket accepts and keeps the rest. Only called when nothing waits.
    pub(super) fn send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> io::Result<()> {
        debug_assert!(self.bytes.is_empty());
        let mut taken = 0;
        while taken < bytes.len() {
            match write_some(stream, cx, &bytes[taken..]) {
                Poll::Ready(some) => taken += some?,
                Poll::Pending => break,
            }
            self.unflushed = true;
        }
        self.bytes = bytes[taken..].to_vec();
        Ok(())
    }

    /// Appends `bytes` to the waiting ones.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Discards the waiting bytes.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Since when the socket has accepted none of the waiting bytes.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.stuck_since
    }
}

fn write_some<S: AsyncWrite + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(stream).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        some => Poll::Ready(Ok(some)),
    }
}
