//! The loop of a connection: reads, runs the protocol, writes the gathered output.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use sync::work;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::SemaphorePermit;
use tokio::time::Sleep;

use crate::activity::RegisteredWaker;
use crate::blocking::run_blocking;
use crate::buffer::OutBuf;
use crate::linger::linger;
use crate::outbox::Outbox;
use crate::peer_state::{PEER_CHECK, PeerState, PeerWatch};
use crate::turn::{next_busy_turn, turn_to_end};

/// Size in bytes of the per-thread read buffer: unconsumed input, then newly read bytes.
const SCRATCH: usize = 256 * 1024;

/// The most bytes that a protocol may leave unconsumed while it waits for more. A whole AMQP frame with a payload of 128
/// KiB fits, and about half of the scratch buffer is always free for reading.
pub const MAX_UNCONSUMED: usize = SCRATCH / 2 + 8;

/// The fewest bytes that a read asks for after an earlier one could not be processed in one turn. Smaller reads would cost
/// more in system calls than they save in buffered bytes.
const MIN_READ: usize = 16 * 1024;

/// Picoseconds charged for a byte that is read.
const READ_BYTE: u32 = 150;
/// Picoseconds charged for a byte that is written.
const WRITE_BYTE: u32 = 250;
/// Nanoseconds charged for a system call that reads or writes.
const SYSTEM_CALL: u32 = 1_500;

/// The next action of a connection, as its protocol sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Read and write.
    Run,
    /// Write, but do not read: the protocol cannot process more input now.
    Pause,
    /// Write what is in the outbox, then end.
    Finish,
    /// End at once, and hand the socket over to another process, which continues with it.
    HandOver,
}

/// The sans-IO side of a connection. Output goes to the connection's [`Outbox`].
pub trait Protocol {
    /// Consumes bytes from the front of `input`, and returns how many. It may leave at most [`MAX_UNCONSUMED`] bytes to
    /// wait for more, which are then passed again together with the new bytes. Input is also passed again, unchanged, if
    /// the protocol left it for another reason and can continue: it paused, the backlog reached the read limit, or the turn
    /// was over ([`work::is_turn_over`], which it checks after each frame).
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize;
    /// The peer has closed its sending side.
    fn handle_eof(&mut self);
    /// Some task called [`Outbox::nudge`]. Between two of these calls the peer is read once, unless the protocol pauses or the
    /// backlog has reached the read limit.
    fn handle_nudge(&mut self, now: Instant);
    /// Puts a batch (everything that the outbox has yielded at once) into the form in which the peer expects it, and
    /// adds output of the protocol that bypasses the outbox. Also called with an empty batch, before the connection
    /// goes idle.
    fn frame_output(&mut self, _batch: &mut OutBuf) {}
    /// The backlog has fallen, and senders that found no capacity may continue.
    fn handle_capacity(&mut self);
    /// Bytes were written to the peer.
    fn handle_written(&mut self, now: Instant);
    /// The deadline that [`Protocol::next_deadline`] returned has passed.
    fn handle_deadline(&mut self, now: Instant);
    /// Latest time at which to call [`Protocol::handle_deadline`].
    fn next_deadline(&self) -> Option<Instant>;
    /// The next action. Queried after each of the calls above.
    fn intent(&self) -> Intent;
    /// Whether the write timeout is running. It stops while the peer has announced that it will not read for an unknown
    /// time (AMQP's `connection.blocked`), and then starts from the beginning.
    fn write_timeout_applies(&self) -> bool {
        true
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The protocol finished, and everything was written.
    Finished,
    /// The peer closed its side, and the protocol has nothing more to do.
    Eof,
    /// The peer accepted no bytes for the write timeout.
    WriteTimeout,
    /// The socket failed.
    Io(io::Error),
    /// The protocol hands the socket over.
    HandedOver(Transit),
}

/// The bytes of a connection that are in neither direction's socket buffer when it is handed over.
#[derive(Debug, Default)]
pub struct Transit {
    /// Read, and not consumed by the protocol.
    pub input: Vec<u8>,
    /// Written by the protocol, and not accepted by the socket.
    pub output: Vec<u8>,
}

thread_local! {
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// The time of tokio's clock, which a test may pause: [`drive`] passes it to all calls.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Runs a connection until it ends. Reading stops while the backlog of `outbox` is at `read_limit` bytes or more. A peer
/// that accepts no bytes for `write_timeout` is disconnected, unless [`Protocol::write_timeout_applies`] says otherwise.
/// While the protocol pauses, a reset by the peer is noticed within [`PEER_CHECK`].
pub fn drive<'c, S, P>(
    stream: &'c mut S,
    protocol: &'c mut P,
    outbox: &'c Arc<Outbox>,
    read_limit: usize,
    write_timeout: Duration,
) -> impl Future<Output = Ended> + use<'c, S, P>
where
    S: AsyncRead + AsyncWrite + PeerWatch + Unpin,
    P: Protocol,
{
    // Not a future around another one: there are many idle connections, and each would store its state twice.
    drive_on(stream, protocol, outbox, (read_limit, write_timeout), BytesMut::new())
}

/// Runs a connection as [`drive`] does, with its `read_limit` and `write_timeout`, whose `input` was read earlier. The
/// protocol gets that input first, when it can continue.
pub async fn drive_on<S, P>(
    stream: &mut S,
    protocol: &mut P,
    outbox: &Arc<Outbox>,
    (read_limit, write_timeout): (usize, Duration),
    input: BytesMut,
) -> Ended
where
    S: AsyncRead + AsyncWrite + PeerWatch + Unpin,
    P: Protocol,
{
    let mut connection = Connection {
        stream,
        protocol,
        outbox,
        read_limit,
        write_timeout,
        has_unconsumed: !input.is_empty(),
        unconsumed: input,
        read_size: SCRATCH,
        writing: OutBuf::default(),
        unflushed: false,
        stuck_since: None,
        unread_since: None,
        write_timeout_suspended: false,
        eof: false,
        timer: None,
        busy_turn: None,
        waker: RegisteredWaker::default(),
    };
    let ended = loop {
        match poll_fn(|cx| connection.poll(cx)).await {
            Step::Ended(ended) => break ended,
            Step::HandOver => break Ended::HandedOver(connection.in_transit()),
            Step::TurnOver => {
                // Boxed: few connections are busy at a time.
                connection.busy_turn = Box::pin(next_busy_turn()).await;
            }
            Step::Eof => {
                // Boxed: few connections end at the same time.
                Box::pin(turn_to_end()).await;
                let turn = work::Turn::begin_for(&**outbox);
                connection.protocol.handle_eof();
                drop(turn);
            }
        }
    };
    // Other tasks may append to the outbox until now; later bytes would never be written.
    outbox.close();
    if matches!(ended, Ended::Io(_)) {
        Box::pin(turn_to_end()).await;
    }
    if matches!(ended, Ended::Finished) {
        linger(stream).await;
    }
    ended
}

/// Result of a turn that needs action outside of the poll function.
enum Step {
    /// The peer closed its side, and the protocol must be notified.
    Eof,
    /// There is more to do than fits into one turn.
    TurnOver,
    /// The protocol hands the socket over.
    HandOver,
    Ended(Ended),
}

struct Connection<'c, S, P> {
    stream: &'c mut S,
    protocol: &'c mut P,
    outbox: &'c Outbox,
    read_limit: usize,
    write_timeout: Duration,
    /// Input that the protocol has not consumed; empty, and without memory, between whole frames.
    unconsumed: BytesMut,
    /// Bytes that a whole turn has recently been able to process, if fewer than the scratch buffer holds. A read asks for
    /// no more than the rest of the turn can process; the remaining bytes wait in the socket.
    read_size: usize,
    /// The protocol may have left input because it could not continue; it gets that input again when it can.
    has_unconsumed: bool,
    /// Bytes taken from the outbox and not yet written.
    writing: OutBuf,
    /// The stream may have buffered bytes that it has not yet passed to the socket.
    unflushed: bool,
    /// Time since when the socket has accepted nothing of `writing`, or of the stream's own buffer.
    stuck_since: Option<Instant>,
    /// When the protocol paused, or the peer was last found to be connected since.
    unread_since: Option<Instant>,
    /// The write timeout did not apply at the last check.
    write_timeout_suspended: bool,
    /// The peer closed its side.
    eof: bool,
    /// Created when the first deadline is known, then reset.
    timer: Option<Pin<Box<Sleep>>>,
    /// Permit under which the connection runs while it has more to do than fits into one turn.
    busy_turn: Option<SemaphorePermit<'static>>,
    /// The waker registered with the outbox, the stream and the timer.
    waker: RegisteredWaker,
}

impl<S, P> Connection<'_, S, P>
where
    S: AsyncRead + AsyncWrite + PeerWatch + Unpin,
    P: Protocol,
{
    /// Runs one turn.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let turn = work::Turn::begin_for(self.outbox);
        let activity = self.outbox.activity();
        activity.begin();
        let mut waker = std::mem::take(&mut self.waker);
        let step = self.poll_turn(&mut Context::from_waker(waker.of(cx, activity)));
        self.waker = waker;
        if step.is_pending() {
            activity.rest();
        } else {
            activity.wait();
        }
        activity.set_paused(self.protocol.intent() == Intent::Pause);
        // A turn that returns early leaves its deferred work to other threads.
        drop(turn);
        self.busy_turn = None;
        step
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        // Before checking the outbox, so that no append in between is missed.
        self.outbox.begin_turn(cx);
        loop {
            let mut progress = false;
            // Nudges come first: they may produce bytes, which are then written together with the rest.
            if self.outbox.take_nudge() {
                self.protocol.handle_nudge(now());
                progress = true;
            }
            match self.poll_write(cx) {
                Ok(wrote) => progress |= wrote,
                Err(error) => return Poll::Ready(Step::Ended(Ended::Io(error))),
            }
            // Only after the write, which frees the capacity that senders wait for.
            if self.outbox.take_starved() {
                self.protocol.handle_capacity();
                progress = true;
            }
            // Reading comes last, and only while the peer accepts output: the answers to more input would only add to the
            // backlog. Input that the protocol left is passed again before more is read.
            match self.protocol.intent() {
                Intent::Finish if self.stuck_since.is_none() && !work::is_turn_over() => {
                    return Poll::Ready(Step::Ended(self.finished()));
                }
                Intent::HandOver => return Poll::Ready(Step::HandOver),
                Intent::Run if self.outbox.backlog() < self.read_limit && self.has_unconsumed => {
                    self.pass_unconsumed();
                    progress = true;
                }
                Intent::Run if !self.eof && self.outbox.backlog() < self.read_limit => {
                    match self.poll_read(cx) {
                        Poll::Ready(Ok(0)) => {
                            self.eof = true;
                            return Poll::Ready(Step::Eof);
                        }
                        Poll::Ready(Ok(_)) => progress = true,
                        Poll::Ready(Err(error)) => return Poll::Ready(Step::Ended(Ended::Io(error))),
                        Poll::Pending => {}
                    }
                }
                _ => {}
            }
            if let Poll::Ready(ended) = self.poll_deadline(cx, &mut progress) {
                return Poll::Ready(Step::Ended(ended));
            }
            progress |= !progress && work::run_deferred(Some(&run_blocking));
            // Everything above has registered its waker by now. While the socket accepts no more bytes, the outbox is not
            // re-armed: it is checked again when the socket is writable.
            if !progress && !self.outbox.is_nudged() && (!self.writing.is_empty() || self.outbox.end_turn()) {
                return Poll::Pending;
            }
            if work::is_turn_nearly_over() {
                return Poll::Ready(Step::TurnOver);
            }
        }
    }

    /// Takes the bytes that the socket does not have. The protocol has ended, so nothing appends to the outbox any more.
    fn in_transit(&mut self) -> Transit {
        let mut output = Vec::with_capacity(self.outbox.backlog());
        self.writing.copy_to(&mut output);
        self.outbox.read_into(&mut output);
        Transit { input: self.unconsumed.split().to_vec(), output }
    }

    fn finished(&self) -> Ended {
        if self.eof { Ended::Eof } else { Ended::Finished }
    }

    /// Reads once and runs the protocol; returns the bytes read, 0 at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let carried = self.unconsumed.len();
            if carried > MAX_UNCONSUMED {
                let text = "frame larger than the read buffer";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
            }
            let end = SCRATCH.min(carried + work::share_left(self.read_size).max(MIN_READ));
            let mut buf = ReadBuf::new(&mut scratch[carried..end]);
            ready!(Pin::new(&mut *self.stream).poll_read(cx, &mut buf))?;
            let bytes = buf.filled().len();
            work::charge(SYSTEM_CALL, 1);
            work::charge_bytes(READ_BYTE, bytes);
            if bytes == 0 {
                return Poll::Ready(Ok(0));
            }
            scratch[..carried].copy_from_slice(&self.unconsumed);
            let input = &scratch[..carried + bytes];
            let consumed = self.protocol.handle_input(input, now());
            let left = &input[consumed..];
            if left.is_empty() {
                self.unconsumed = BytesMut::new();
            } else {
                self.unconsumed.clear();
                self.unconsumed.extend_from_slice(left);
            }
            self.note_unconsumed();
            self.adapt_read_size(bytes, consumed);
            Poll::Ready(Ok(bytes))
        })
    }

    /// Adapts the read size to the amount that a turn processes: smaller after a read that was too large, and a little
    /// larger each time that the turn had time for another. A busy connection thus settles at one read per turn; several
    /// small ones would cost more in system calls than all other limits of a turn.
    fn adapt_read_size(&mut self, read: usize, consumed: usize) {
        if !work::is_turn_nearly_over() {
            self.read_size = SCRATCH.min(self.read_size + self.read_size / 8);
        } else if self.has_unconsumed {
            self.read_size = (self.read_size * consumed / read.max(1)).clamp(MIN_READ, SCRATCH);
        }
    }

    /// Passes the protocol the input that it left when it could not continue.
    fn pass_unconsumed(&mut self) {
        let mut input = std::mem::take(&mut self.unconsumed);
        if !input.is_empty() {
            let consumed = self.protocol.handle_input(&input, now());
            input.advance(consumed);
            if !input.is_empty() {
                self.unconsumed = input;
            }
        }
        self.note_unconsumed();
    }

    fn note_unconsumed(&mut self) {
        self.has_unconsumed = !self.unconsumed.is_empty()
            && (self.protocol.intent() == Intent::Pause
                || self.outbox.backlog() >= self.read_limit
                || work::is_turn_over());
    }

    /// Writes until nothing is left, the socket accepts no more, or the turn is over; returns whether it wrote anything.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        while !(wrote && work::is_turn_over()) && (!self.writing.is_empty() || self.next_batch()) {
            let mut slices = OutBuf::slices();
            let used = self.writing.fill_slices(&mut slices);
            match Pin::new(&mut *self.stream).poll_write_vectored(cx, &slices[..used]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    work::charge(SYSTEM_CALL, 1);
                    work::charge_bytes(WRITE_BYTE, bytes);
                    self.writing.advance(bytes);
                    self.outbox.written(bytes);
                    self.stuck_since = None;
                    wrote = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.stuck_since.get_or_insert_with(now);
                    break;
                }
            }
        }
        if wrote {
            self.unflushed = true;
            self.protocol.handle_written(now());
        }
        if self.unflushed {
            // TLS accepts more bytes than the socket; the rest is flushed here.
            match Pin::new(&mut *self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => {
                    self.unflushed = false;
                    if self.writing.is_empty() {
                        self.stuck_since = None;
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.stuck_since.get_or_insert_with(now);
                }
            }
        }
        Ok(wrote)
    }

    /// Takes the gathered output, reframed for the peer; returns whether there is any.
    fn next_batch(&mut self) -> bool {
        self.outbox.take(&mut self.writing);
        let gathered = self.writing.len();
        self.protocol.frame_output(&mut self.writing);
        if self.writing.len() != gathered {
            self.outbox.reframed(gathered, self.writing.len());
        }
        !self.writing.is_empty()
    }

    /// Time at which the peer is disconnected unless it accepts some bytes before.
    fn write_deadline(&mut self) -> Option<Instant> {
        let since = self.stuck_since?;
        let was_suspended = self.write_timeout_suspended;
        self.write_timeout_suspended = !self.protocol.write_timeout_applies();
        if self.write_timeout_suspended {
            return None;
        }
        let since = if was_suspended { now() } else { since };
        self.stuck_since = Some(since);
        Some(since + self.write_timeout)
    }

    /// Time at which to check whether the peer has disconnected, while the protocol pauses.
    fn check_deadline(&mut self) -> Option<Instant> {
        let is_paused = self.protocol.intent() == Intent::Pause;
        self.unread_since = is_paused.then(|| self.unread_since.unwrap_or_else(now));
        self.unread_since.map(|since| since + PEER_CHECK)
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>, progress: &mut bool) -> Poll<Ended> {
        let write_deadline = self.write_deadline();
        let mut check = self.check_deadline();
        let next_deadline = |protocol: &P, check| {
            [protocol.next_deadline(), write_deadline, check].into_iter().flatten().min()
        };
        let Some(deadline) = next_deadline(self.protocol, check) else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
        // A later deadline waits for the timer's next firing: resetting the timer at every read would cost more.
        if deadline < timer.deadline().into_std() {
            timer.as_mut().reset(deadline.into());
        }
        while timer.as_mut().poll(cx).is_ready() {
            let now = now();
            if write_deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(Ended::WriteTimeout);
            }
            if check.is_some_and(|deadline| deadline <= now) {
                if self.stream.peer_state() == PeerState::Reset {
                    return Poll::Ready(Ended::Io(io::ErrorKind::ConnectionReset.into()));
                }
                self.unread_since = Some(now);
                check = Some(now + PEER_CHECK);
            }
            if self.protocol.next_deadline().is_some_and(|deadline| deadline <= now) {
                self.protocol.handle_deadline(now);
                *progress = true;
            }
            let Some(next) = next_deadline(self.protocol, check) else {
                self.timer = None;
                break;
            };
            timer.as_mut().reset(next.max(now + MIN_TIMER).into());
        }
        Poll::Pending
    }
}

/// The shortest time to the timer's next firing, so that a protocol with a deadline in the past cannot spin.
const MIN_TIMER: Duration = Duration::from_millis(1);

#[cfg(test)]
mod busy_tests;
#[cfg(test)]
mod hand_over_tests;
#[cfg(test)]
mod read_tests;
#[cfg(test)]
mod unread_tests;
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::turn::AT_ONCE;

    /// Echoes whole lines; `quit` ends, and `go` hands the socket over.
    pub(super) struct Lines {
        outbox: Arc<Outbox>,
        intent: Intent,
        deadline: Option<Instant>,
        /// Backlog, in bytes, at which no further line is consumed.
        stop_at: usize,
    }

    impl Protocol for Lines {
        fn handle_input(&mut self, input: &[u8], _now: Instant) -> usize {
            let mut consumed = 0;
            while self.outbox.backlog() < self.stop_at
                && let Some(end) = input[consumed..].iter().position(|byte| *byte == b'\n')
            {
                let line = &input[consumed..=consumed + end];
                self.outbox.append(|buf| buf.tail().extend_from_slice(line));
                consumed += end + 1;
                match line {
                    b"quit\n" => self.intent = Intent::Finish,
                    b"go\n" => {
                        self.intent = Intent::HandOver;
                        break;
                    }
                    _ => {}
                }
            }
            consumed
        }
        fn handle_eof(&mut self) {
            assert!(work::is_turn_of(&*self.outbox));
            self.intent = Intent::Finish;
        }
        fn handle_nudge(&mut self, _now: Instant) {
            self.outbox.append(|buf| buf.tail().extend_from_slice(b"nudged\n"));
        }
        fn handle_capacity(&mut self) {}
        fn handle_written(&mut self, _now: Instant) {}
        fn handle_deadline(&mut self, _now: Instant) {
            self.deadline = None;
            self.intent = Intent::Finish;
        }
        fn next_deadline(&self) -> Option<Instant> {
            self.deadline
        }
        fn intent(&self) -> Intent {
            self.intent
        }
    }

    /// Has no write timeout before its deadline.
    struct Suspended(Lines);

    impl Protocol for Suspended {
        fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
            self.0.handle_input(input, now)
        }
        fn handle_eof(&mut self) {}
        fn handle_nudge(&mut self, _now: Instant) {}
        fn handle_capacity(&mut self) {}
        fn handle_written(&mut self, _now: Instant) {}
        fn handle_deadline(&mut self, now: Instant) {
            self.0.handle_deadline(now);
        }
        fn next_deadline(&self) -> Option<Instant> {
            self.0.next_deadline()
        }
        fn intent(&self) -> Intent {
            self.0.intent()
        }
        fn write_timeout_applies(&self) -> bool {
            self.0.deadline.is_none()
        }
    }

    /// Puts `<` in front of each batch, and one `!` before the connection first goes idle.
    struct Framed(Lines, bool);

    impl Protocol for Framed {
        fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
            self.0.handle_input(input, now)
        }
        fn handle_eof(&mut self) {
            self.0.handle_eof();
        }
        fn handle_nudge(&mut self, _now: Instant) {}
        fn frame_output(&mut self, batch: &mut OutBuf) {
            if !batch.is_empty() {
                batch.insert(&[(0, b"<")]);
            } else if !std::mem::replace(&mut self.1, true) {
                batch.tail().push(b'!');
            }
        }
        fn handle_capacity(&mut self) {}
        fn handle_written(&mut self, _now: Instant) {}
        fn handle_deadline(&mut self, _now: Instant) {}
        fn next_deadline(&self) -> Option<Instant> {
            None
        }
        fn intent(&self) -> Intent {
            self.0.intent()
        }
    }

    pub(super) fn lines(limit: usize) -> (Lines, Arc<Outbox>) {
        let outbox = Arc::new(Outbox::new(limit));
        (Lines { outbox: outbox.clone(), intent: Intent::Run, deadline: None, stop_at: usize::MAX }, outbox)
    }

    #[tokio::test]
    async fn input_in_any_pieces_is_answered_in_order() {
        let (mut near, mut far) = tokio::io::duplex(3);
        let (mut protocol, outbox) = lines(1024);
        let peer = tokio::spawn(async move {
            near.write_all(b"one\ntwo\nquit\n").await.unwrap();
            let mut answer = String::new();
            near.read_to_string(&mut answer).await.unwrap();
            answer
        });
        let ended = drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_secs(5)).await;
        assert!(matches!(ended, Ended::Finished));
        drop(far);
        assert_eq!(peer.await.unwrap(), "one\ntwo\nquit\n");
    }

    #[tokio::test]
    async fn input_left_for_want_of_capacity_is_shown_again_without_more_arriving() {
        let (mut near, mut far) = tokio::io::duplex(64);
        let (mut protocol, outbox) = lines(1024);
        protocol.stop_at = 4;
        let peer = tokio::spawn(async move {
            near.write_all(b"one\ntwo\nquit\n").await.unwrap();
            let mut answer = String::new();
            near.read_to_string(&mut answer).await.unwrap();
            answer
        });
        let ended = drive(&mut far, &mut protocol, &outbox, 4, Duration::from_secs(5)).await;
        assert!(matches!(ended, Ended::Finished));
        drop(far);
        assert_eq!(peer.await.unwrap(), "one\ntwo\nquit\n");
    }

    #[tokio::test]
    async fn a_nudge_reaches_a_connection_that_waits() {
        let (near, mut far) = tokio::io::duplex(64);
        let (mut protocol, outbox) = lines(1024);
        let peer = tokio::spawn(async move {
            let mut near = tokio::io::BufReader::new(near);
            outbox.nudge();
            let mut answer = String::new();
            tokio::io::AsyncBufReadExt::read_line(&mut near, &mut answer).await.unwrap();
            answer
        });
        let outbox = protocol.outbox.clone();
        let ended = drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_secs(5)).await;
        assert!(matches!(ended, Ended::Eof));
        assert_eq!(peer.await.unwrap(), "nudged\n");
    }

    #[tokio::test]
    async fn very_many_that_are_lost_at_once_end_a_few_at_a_time() {
        const LOST: usize = 500;
        let ended = Arc::new(AtomicUsize::new(0));
        let open = |_| {
            let (near, mut far) = tokio::io::duplex(64);
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                let (mut protocol, outbox) = lines(1024);
                drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_secs(5)).await;
                ended.fetch_add(1, Relaxed);
            });
            near
        };
        let peers: Vec<_> = (0..LOST).map(open).collect();
        drop(peers);
        let mut before = 0;
        while before < LOST {
            // All other ready tasks run here.
            tokio::task::yield_now().await;
            let now = ended.load(Relaxed);
            assert!(now - before <= 2 * AT_ONCE, "{} at a time", now - before);
            before = now;
        }
    }

    #[tokio::test]
    async fn batches_are_framed_and_the_backlog_counts_the_frames() {
        let (mut near, mut far) = tokio::io::duplex(4);
        let (lines, outbox) = lines(1024);
        let seen = outbox.clone();
        let peer = tokio::spawn(async move {
            let mut first = [0];
            near.read_exact(&mut first).await.unwrap();
            near.write_all(b"one\n").await.unwrap();
            let mut second = [0; 5];
            near.read_exact(&mut second).await.unwrap();
            near.write_all(b"quit\n").await.unwrap();
            let mut rest = Vec::new();
            near.read_to_end(&mut rest).await.unwrap();
            [&first[..], &second, &rest].concat()
        });
        let mut protocol = Framed(lines, false);
        let ended = drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_secs(5)).await;
        assert!(matches!(ended, Ended::Finished));
        drop(far);
        assert_eq!(peer.await.unwrap(), b"!<one\n<quit\n");
        assert_eq!(seen.backlog(), 0);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (_near, mut far) = tokio::io::duplex(4);
        let (mut protocol, outbox) = lines(1024);
        outbox.append(|buf| buf.tail().extend_from_slice(b"more than four bytes"));
        let ended = drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_millis(20)).await;
        assert!(matches!(ended, Ended::WriteTimeout));
        assert!(outbox.is_closed());
    }

    #[tokio::test]
    async fn the_write_timeout_starts_afresh_when_it_applies_again() {
        let (_near, mut far) = tokio::io::duplex(4);
        let (lines, outbox) = lines(1024);
        let begin = now();
        let (suspended, timeout) = (Duration::from_millis(60), Duration::from_millis(20));
        let mut protocol = Suspended(Lines { deadline: Some(begin + suspended), ..lines });
        outbox.append(|buf| buf.tail().extend_from_slice(b"more than four bytes"));
        let ended = drive(&mut far, &mut protocol, &outbox, 1024, timeout).await;
        assert!(matches!(ended, Ended::WriteTimeout));
        assert!(begin.elapsed() >= suspended + timeout);
    }

    #[tokio::test]
    async fn a_deadline_is_kept() {
        let (_near, mut far) = tokio::io::duplex(4);
        let (mut protocol, outbox) = lines(1024);
        protocol.deadline = Some(now() + Duration::from_millis(5));
        let ended = drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_secs(5)).await;
        assert!(matches!(ended, Ended::Finished));
    }
}
