//! The outbox and the loop that writes it out, in every interleaving of their threads (`make loom`).
//!
//! A lost wake-up leaves the connection's thread waiting forever, which the model reports.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sync::loom::future::block_on;
use sync::loom::thread;
use sync::{Rank, explore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{Ended, Intent, Outbox, PeerWatch, Protocol, drive};

/// Locked while an outbox is used, as a wait queue of consumers is.
type Mutex<T> = sync::Mutex<T, { Rank::ConsumerQueue as u8 }>;

/// A peer that accepts all bytes, and disconnects when it has received `goal` bytes.
struct Peer {
    got: Arc<Mutex<Vec<u8>>>,
    goal: usize,
    /// The most bytes that it accepts at a time; offered more, it returns `Pending` every other time.
    max_accepted: usize,
    waited: bool,
}

impl Peer {
    fn new(goal: usize, max_accepted: usize) -> Self {
        Self { got: Arc::default(), goal, max_accepted, waited: false }
    }
}

impl PeerWatch for Peer {}

impl AsyncRead for Peer {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.got.lock().len() >= self.goal { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl AsyncWrite for Peer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.waited = !self.waited;
        if self.max_accepted < bytes.len() && self.waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let taken = bytes.len().min(self.max_accepted);
        self.got.lock().extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Calls `on_nudge` and `on_capacity`, and ends with its peer.
struct Simple<N, R> {
    on_nudge: N,
    on_capacity: R,
    intent: Intent,
}

impl<N: FnMut(), R: FnMut()> Protocol for Simple<N, R> {
    fn handle_input(&mut self, input: &[u8], _: Instant) -> usize {
        input.len()
    }
    fn handle_eof(&mut self) {
        self.intent = Intent::Finish;
    }
    fn handle_nudge(&mut self, _: Instant) {
        (self.on_nudge)();
    }
    fn handle_capacity(&mut self) {
        (self.on_capacity)();
    }
    fn handle_written(&mut self, _: Instant) {}
    fn handle_deadline(&mut self, _: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        self.intent
    }
    fn write_timeout_applies(&self) -> bool {
        false
    }
}

fn write(outbox: &Outbox, bytes: &[u8]) {
    outbox.append(|buf| buf.tail().extend_from_slice(bytes));
}

/// Runs a connection until its peer has disconnected.
fn run(peer: &mut Peer, outbox: &Arc<Outbox>, on_nudge: impl FnMut(), on_capacity: impl FnMut()) {
    let mut protocol = Simple { on_nudge, on_capacity, intent: Intent::Run };
    let ended = block_on(drive(peer, &mut protocol, outbox, 1 << 20, Duration::from_secs(1)));
    assert!(matches!(ended, Ended::Eof), "{ended:?}");
}

fn no_nudge() {
    panic!("the connection was not nudged")
}

#[test]
fn all_appended_pieces_are_written_whole() {
    explore(2, || {
        let outbox = Arc::new(Outbox::new(1 << 20));
        let mut peer = Peer::new(6, 100);
        let got = Arc::clone(&peer.got);
        let threads = [b"ab", b"cd"].map(|bytes| {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || write(&outbox, bytes))
        });
        let last = Arc::clone(&outbox);
        write(&last, b"ef");
        run(&mut peer, &outbox, no_nudge, || ());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let got = got.lock();
        let pieces: Vec<&[u8]> = got.chunks(2).collect();
        assert!(got.len() == 6 && [b"ab", b"cd", b"ef"].iter().all(|piece| pieces.contains(&&piece[..])));
        assert_eq!(outbox.backlog(), 0);
    });
}

#[test]
fn a_peer_that_accepts_little_at_a_time_gets_everything() {
    explore(3, || {
        let outbox = Arc::new(Outbox::new(1 << 20));
        let mut peer = Peer::new(4, 1);
        let other = Arc::clone(&outbox);
        let thread = thread::spawn(move || {
            write(&other, b"ab");
            write(&other, b"cd");
        });
        run(&mut peer, &outbox, no_nudge, || ());
        thread.join().unwrap();
        assert_eq!(*peer.got.lock(), b"abcd");
    });
}

#[test]
fn a_nudge_is_followed_by_a_check_that_sees_its_cause() {
    explore(3, || {
        let outbox = Arc::new(Outbox::new(1 << 20));
        let wishes = Arc::new(Mutex::new(0));
        let threads = [1, 2].map(|wish| {
            let (outbox, wishes) = (Arc::clone(&outbox), Arc::clone(&wishes));
            thread::spawn(move || {
                *wishes.lock() += wish;
                outbox.nudge();
            })
        });
        // The last nudge must find both flags, and then lets the peer disconnect.
        let look = || {
            if *wishes.lock() == 3 {
                write(&outbox, b"x");
            }
        };
        run(&mut Peer::new(1, 100), &outbox, look, || ());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_writer_that_found_no_capacity_is_called_when_there_is_some() {
    explore(3, || {
        let outbox = Arc::new(Outbox::new(2));
        // Pieces left to write, by a side that writes only while there is capacity.
        let rest = Arc::new(Mutex::new(vec![b"ab", b"cd", b"ef"]));
        let write_some = {
            let (outbox, rest) = (Arc::clone(&outbox), Arc::clone(&rest));
            move || {
                let mut rest = rest.lock();
                while !rest.is_empty() && outbox.has_capacity() {
                    write(&outbox, rest.remove(0));
                }
            }
        };
        let thread = thread::spawn(write_some.clone());
        let mut peer = Peer::new(6, 100);
        run(&mut peer, &outbox, no_nudge, write_some);
        thread.join().unwrap();
        assert_eq!(*peer.got.lock(), b"abcdef");
    });
}

#[test]
fn bytes_appended_after_the_end_are_discarded() {
    explore(3, || {
        let outbox = Arc::new(Outbox::new(1 << 20));
        let other = Arc::clone(&outbox);
        let thread = thread::spawn(move || {
            let written = other.append(|buf| buf.tail().push(1)).is_some();
            (written, other.append(|_| ()).is_some())
        });
        run(&mut Peer::new(0, 1), &outbox, no_nudge, || ());
        let (first, second) = thread.join().unwrap();
        assert!(first || !second, "closed once and for all");
        assert!(outbox.is_closed() && outbox.append(|_| ()).is_none());
        assert!(outbox.read_all().is_empty());
    });
}
