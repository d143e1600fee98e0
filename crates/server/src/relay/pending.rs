//! What a socket has not taken yet.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::AsyncWrite;

/// Octets on their way into a stream. Holds no memory while there are none.
#[derive(Debug, Default)]
pub(super) struct Pending {
    octets: Vec<u8>,
    /// How many of them have been taken.
    taken: usize,
    /// The stream may hold something that it has taken and not given to its socket, as TLS does.
    unflushed: bool,
    /// Since when nothing has been taken although there is something.
    stuck_since: Option<Instant>,
}

impl Pending {
    /// Writes what waits. Ready when the socket has everything.
    pub(super) fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = self.poll_unwatched(stream, cx);
        match polled {
            Poll::Pending => drop(self.stuck_since.get_or_insert_with(Instant::now)),
            Poll::Ready(_) => self.stuck_since = None,
        }
        polled
    }

    fn poll_unwatched<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.taken < self.octets.len() {
            let rest = &self.octets[self.taken..];
            self.taken += ready!(write_some(stream, cx, rest))?;
            self.unflushed = true;
            self.stuck_since = None;
        }
        if !self.octets.is_empty() {
            self.octets = Vec::new();
            self.taken = 0;
        }
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes `octets` as far as the socket takes them and keeps the rest. Only when nothing waits.
    pub(super) fn send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        octets: &[u8],
    ) -> io::Result<()> {
        debug_assert!(self.octets.is_empty());
        let mut taken = 0;
        while taken < octets.len() {
            match write_some(stream, cx, &octets[taken..]) {
                Poll::Ready(some) => taken += some?,
                Poll::Pending => break,
            }
            self.unflushed = true;
        }
        self.octets = octets[taken..].to_vec();
        Ok(())
    }

    /// Puts `octets` behind what waits.
    pub(super) fn push(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }

    /// Throws away what waits.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Since when the socket has taken nothing of what waits.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.stuck_since
    }
}

fn write_some<S: AsyncWrite + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    octets: &[u8],
) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(stream).poll_write(cx, octets))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        some => Poll::Ready(Ok(some)),
    }
}
