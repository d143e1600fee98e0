//! A connection whose peer never stops sending gives others their turn.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{Intent, Outbox, PeerWatch, Protocol, drive};

/// Always has something to read, and accepts all writes.
struct Endless;

impl PeerWatch for Endless {}

impl AsyncRead for Endless {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buf.initialize_unfilled();
        buf.set_filled(buf.capacity());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Counts the bytes that it takes, and answers some of them.
struct Counter {
    taken: Arc<AtomicUsize>,
    outbox: Arc<Outbox>,
}

impl Protocol for Counter {
    fn handle_input(&mut self, input: &[u8], _: Instant) -> usize {
        self.taken.fetch_add(input.len(), Ordering::Relaxed);
        self.outbox.append(|buf| buf.tail().extend_from_slice(&input[..input.len() / 2]));
        input.len()
    }
    fn handle_eof(&mut self) {}
    fn handle_nudge(&mut self, _: Instant) {}
    fn handle_capacity(&mut self) {}
    fn handle_written(&mut self, _: Instant) {}
    fn handle_deadline(&mut self, _: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        Intent::Run
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// More bytes than a turn processes, at 0.15 ns for each byte read and 0.25 ns for each written (half of them), plus
/// the last read.
const AT_MOST: usize = 2_200_000;

#[test]
fn publishers_that_never_stop_get_equal_turns() {
    let taken: [Arc<AtomicUsize>; 3] = Default::default();
    let mut tasks: Vec<_> = taken
        .iter()
        .map(|taken| {
            let taken = Arc::clone(taken);
            Box::pin(async move {
                let outbox = Arc::new(Outbox::new(1 << 20));
                let mut protocol = Counter { taken, outbox: Arc::clone(&outbox) };
                drive(&mut Endless, &mut protocol, &outbox, 1 << 20, Duration::from_secs(5)).await;
            })
        })
        .collect();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    for turn in 1..=10 {
        for (task, taken) in tasks.iter_mut().zip(&taken) {
            let (before, woken) = (taken.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed));
            assert!(pin!(task).poll(&mut Context::from_waker(&waker)).is_pending());
            let step = taken.load(Ordering::Relaxed) - before;
            assert!((1..=AT_MOST).contains(&step), "{step} bytes in one turn");
            assert!(wakes.0.load(Ordering::Relaxed) > woken, "asks for its next turn");
        }
        let all = taken.each_ref().map(|taken| taken.load(Ordering::Relaxed));
        assert!(all.iter().all(|bytes| *bytes == all[0]), "turn {turn}: {all:?}");
    }
}
