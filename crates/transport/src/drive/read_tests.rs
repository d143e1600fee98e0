//! How often a busy connection reads: bounding its turns must not cost more than the work itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sync::work::{self, TURN};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Ended, Intent, PeerWatch, Protocol, drive};
use crate::outbox::Outbox;

/// A peer that has more to send until our side is closed; it counts the reads.
#[derive(Default)]
struct Endless {
    reads: u64,
    closed: bool,
}

impl PeerWatch for Endless {}

impl AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        self.reads += 1;
        let capacity = buf.remaining();
        buf.initialize_unfilled_to(capacity);
        buf.advance(capacity);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.closed = true;
        Poll::Ready(Ok(()))
    }
}

/// Takes messages, each at a cost, until `left` is 0.
struct Messages {
    size: usize,
    /// Nanoseconds.
    cost: u32,
    left: u64,
}

impl Protocol for Messages {
    fn handle_input(&mut self, input: &[u8], _now: Instant) -> usize {
        let mut taken = 0;
        while input.len() - taken >= self.size && self.left > 0 && !work::is_turn_over() {
            work::charge(self.cost, 1);
            taken += self.size;
            self.left -= 1;
        }
        taken
    }
    fn handle_eof(&mut self) {}
    fn handle_nudge(&mut self, _now: Instant) {}
    fn handle_capacity(&mut self) {}
    fn handle_written(&mut self, _now: Instant) {}
    fn handle_deadline(&mut self, _now: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        if self.left == 0 { Intent::Finish } else { Intent::Run }
    }
}

#[tokio::test]
async fn a_busy_connection_reads_once_in_a_turn() {
    for (size, cost) in [(60, 170), (100, 400), (1000, 2_000)] {
        let turns = 1000;
        let left = turns * u64::from(TURN) / u64::from(cost);
        let (mut peer, mut messages) = (Endless::default(), Messages { size, cost, left });
        let outbox = Arc::new(Outbox::new(1024));
        let ended = drive(&mut peer, &mut messages, &outbox, 1024, Duration::from_secs(60)).await;
        assert!(matches!(ended, Ended::Finished));
        assert!(peer.reads < turns * 3 / 2, "{} reads for {turns} turns, {size} bytes each", peer.reads);
    }
}
