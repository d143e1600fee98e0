//! The two directions of a pair.
//!
//! Each direction reads only when the other side's socket has accepted the previous read, so that a slow reader
//! holds back its sender through TCP, and at most one read waits in each direction. Reads use a thread-local
//! buffer; memory is allocated only for bytes that a socket did not accept at once.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use transport::{PEER_CHECK, PeerState, PeerWatch as _, Stream, now};
use websocket::{Deflate, WebSocketFault, encode};

use super::TextRule;
use super::close::{CLOSE_ANSWER, HALF_CLOSED, RelayEnd};
use super::framer::Framer;
use super::pending::Pending;
use crate::websocket::{ClientFrames, DecodeStop, PeerEnd, PingAction, Pings, close_answer};

/// Bytes per read. Bounds the memory of a pair for each side that does not accept output.
const READ: usize = 64 * 1024;

/// Bytes moved for one pair before other tasks get their turn.
const BUDGET: usize = 8 * READ;

/// Most bytes of input that the decoder may leave: less than a control frame.
const MAX_LEFT: usize = 256;

/// The shortest delay of the timer, so that a deadline in the past cannot spin.
const MIN_TIMER: Duration = Duration::from_millis(1);

struct Scratch {
    /// Bytes read, after those that the decoder left.
    input: Box<[u8]>,
    /// The same bytes in the form in which the other side gets them.
    output: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        RefCell::new(Scratch { input: vec![0; MAX_LEFT + READ].into_boxed_slice(), output: Vec::new() });
}

/// A client joined to the upstream server.
pub(super) struct Pump {
    pub(super) client: Stream,
    pub(super) upstream: Stream,
    inward: ToUpstream,
    outward: ToClient,
    frames: ClientFrames,
    /// Input that the decoder has not taken: the beginning of a header or a control frame, or bytes after those that it
    /// is still inflating.
    left: Vec<u8>,
    /// Whether the decoder has more output from input that it has taken.
    more: bool,
    framer: Framer,
    to_upstream: Pending,
    to_client: Pending,
    text: TextRule,
    pings: Pings,
    write_timeout: Duration,
    /// Whether the upstream accepts no more bytes; it may still send some.
    upstream_deaf: bool,
    /// The answer to the client's close frame, once that was received.
    answer: Option<Vec<u8>>,
    /// When the client was last found to be present, while it was not read.
    checked: Instant,
    /// When the client was found to have disconnected, while it was not read.
    gone_since: Option<Instant>,
    /// The time of the client's close, of the upstream's last bytes after it, or of the server's close.
    since: Instant,
    /// The reason why the pair ends, once it does.
    reason: Option<RelayEnd>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes read from both sides since this pair's turn began.
    read: usize,
    /// Payload bytes from the client, and to it.
    pub(super) moved: (u64, u64),
}

/// From the client to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToUpstream {
    Open,
    /// The client has ended; the upstream's write side is to be shut down after the remaining bytes.
    Ending,
    Shut,
}

/// From the upstream to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToClient {
    Open,
    /// The close frame is being written.
    Closing,
    Closed,
}

impl Pump {
    pub(super) fn new(
        client: Stream,
        upstream: Stream,
        text: TextRule,
        ping_interval: Duration,
        write_timeout: Duration,
    ) -> Self {
        let now = now();
        Self {
            client,
            upstream,
            inward: ToUpstream::Open,
            outward: ToClient::Open,
            frames: ClientFrames::new(false),
            left: Vec::new(),
            more: false,
            framer: Framer::default(),
            to_upstream: Pending::default(),
            to_client: Pending::default(),
            text,
            pings: Pings::new(ping_interval, now),
            write_timeout,
            upstream_deaf: false,
            answer: None,
            checked: now,
            gone_since: None,
            since: now,
            reason: None,
            timer: None,
            read: 0,
            moved: (0, 0),
        }
    }

    /// Enables compressed messages in both directions, if negotiated.
    pub(super) fn deflate(&mut self, deflate: Option<Deflate>) {
        self.framer.deflate = deflate;
        self.frames = ClientFrames::new(deflate.is_some());
    }

    /// Moves bytes until both sides are done, and returns the reason of the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        self.read = 0;
        loop {
            // Polls all three each time: one may have unblocked another.
            let progress = self.poll_inward(cx) | self.poll_outward(cx) | self.poll_deadline(cx);
            if self.is_over() {
                return Poll::Ready(self.reason.take().unwrap_or(RelayEnd::Client));
            }
            if !progress {
                return Poll::Pending;
            }
            if self.read >= BUDGET {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Closes the WebSocket because the server shuts down.
    pub(super) fn drain(&mut self) {
        self.close(RelayEnd::Drain);
    }

    #[cfg(test)]
    pub(super) fn is_upstream_stuck(&self) -> bool {
        self.to_upstream.stuck_since().is_some()
    }

    fn is_over(&self) -> bool {
        let client_has_gone = matches!(
            self.reason,
            Some(
                RelayEnd::ClientGone
                    | RelayEnd::ClientFailed(_)
                    | RelayEnd::ClientStuck
                    | RelayEnd::ClientSilent
            )
        );
        client_has_gone || (self.outward == ToClient::Closed && self.inward == ToUpstream::Shut)
    }

    /// Sets the reason of the end, unless there is one already.
    fn end(&mut self, reason: RelayEnd) {
        self.reason.get_or_insert(reason);
    }

    /// Sends a close frame to the client and reads no more from either side. Bytes already taken still reach
    /// the upstream.
    fn close(&mut self, reason: RelayEnd) {
        self.queue_close_frame(reason);
        if self.inward == ToUpstream::Open {
            self.inward = ToUpstream::Ending;
        }
    }

    /// Queues the close frame behind the output for the client.
    fn queue_close_frame(&mut self, reason: RelayEnd) {
        if self.outward != ToClient::Open {
            return;
        }
        self.outward = ToClient::Closing;
        self.since = now();
        let mut last = std::mem::take(&mut self.frames.control);
        self.framer.finish(&mut last);
        last.extend(self.answer.clone().unwrap_or_else(|| reason.close_frame()));
        self.to_client.push(&last);
        self.end(reason);
    }

    // From the client to the upstream.

    fn poll_inward(&mut self, cx: &mut Context<'_>) -> bool {
        if self.inward == ToUpstream::Shut {
            return false;
        }
        match self.to_upstream.poll(&mut self.upstream, cx) {
            Poll::Pending => return false,
            Poll::Ready(Err(error)) => self.upstream_failed(error),
            Poll::Ready(Ok(())) => {}
        }
        match self.inward {
            ToUpstream::Open if self.more => self.inflate(cx),
            ToUpstream::Open => self.read_client(cx),
            ToUpstream::Ending => {
                let shut = self.upstream_deaf || Pin::new(&mut self.upstream).poll_shutdown(cx).is_ready();
                if shut {
                    self.inward = ToUpstream::Shut;
                }
                shut
            }
            ToUpstream::Shut => false,
        }
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> bool {
        SCRATCH.with_borrow_mut(|scratch| {
            let carried = self.left.len();
            let mut buf = ReadBuf::new(&mut scratch.input[carried..]);
            match Pin::new(&mut self.client).poll_read(cx, &mut buf) {
                Poll::Pending => return false,
                Poll::Ready(Err(error)) => {
                    self.end(RelayEnd::ClientFailed(error));
                    return true;
                }
                Poll::Ready(Ok(())) => {}
            }
            let read = buf.filled().len();
            self.read += read;
            if read == 0 {
                self.end(RelayEnd::ClientGone);
                return true;
            }
            self.pings.received(now());
            scratch.input[..carried].copy_from_slice(&self.left);
            self.pass_on(cx, &scratch.input[..carried + read], &mut scratch.output);
            true
        })
    }

    /// Continues with output that the decoder has not returned yet.
    fn inflate(&mut self, cx: &mut Context<'_>) -> bool {
        let left = std::mem::take(&mut self.left);
        SCRATCH.with_borrow_mut(|scratch| {
            self.pass_on(cx, &left, &mut scratch.output);
            self.read += scratch.output.len();
        });
        true
    }

    /// Sends the payload in `input` to the upstream. Called only when nothing waits to be sent there.
    fn pass_on(&mut self, cx: &mut Context<'_>, input: &[u8], payload: &mut Vec<u8>) {
        payload.clear();
        let end = self.decode(input, payload);
        self.framer.detect_protocol(payload);
        self.moved.0 += payload.len() as u64;
        if !self.upstream_deaf
            && let Err(error) = self.to_upstream.send(&mut self.upstream, cx, payload)
        {
            self.upstream_failed(error);
        }
        if let Some(fault) = end {
            self.close(RelayEnd::Fault(fault));
        }
    }

    /// Appends the payload in `input` to `payload` and answers control frames.
    fn decode(&mut self, input: &[u8], payload: &mut Vec<u8>) -> Option<WebSocketFault> {
        let (taken, stop) = self.frames.decode(input, payload, self.text != TextRule::Refuse);
        match stop {
            DecodeStop::InputUsedUp | DecodeStop::More => {
                self.more = matches!(stop, DecodeStop::More);
                self.left = input[taken..].to_vec();
                None
            }
            DecodeStop::End(PeerEnd::Closed(frame)) => {
                self.left = Vec::new();
                self.answer = Some(close_answer(frame.as_ref()));
                self.inward = ToUpstream::Ending;
                self.since = now();
                None
            }
            DecodeStop::End(PeerEnd::Fault(fault)) => Some(fault),
        }
    }

    /// Called when the upstream accepts no more bytes. Bytes that it sent before may still be readable, and often contain
    /// the reason.
    fn upstream_failed(&mut self, error: std::io::Error) {
        self.to_upstream.clear();
        if !std::mem::replace(&mut self.upstream_deaf, true) {
            self.end(RelayEnd::UpstreamFailed(error));
        }
    }

    // From the upstream to the client.

    fn poll_outward(&mut self, cx: &mut Context<'_>) -> bool {
        match self.to_client.poll(&mut self.client, cx) {
            Poll::Pending => return false,
            Poll::Ready(Err(error)) => {
                // Replaces any earlier reason, which the client can no longer be sent.
                self.reason = Some(RelayEnd::ClientFailed(error));
                return true;
            }
            Poll::Ready(Ok(())) => {}
        }
        match self.outward {
            ToClient::Open if self.frames.control.is_empty() => self.read_upstream(cx),
            ToClient::Open => {
                let control = std::mem::take(&mut self.frames.control);
                self.send_to_client(cx, &control);
                true
            }
            ToClient::Closing => {
                self.outward = ToClient::Closed;
                if self.answer.is_none() {
                    self.since = now();
                }
                true
            }
            ToClient::Closed => false,
        }
    }

    fn read_upstream(&mut self, cx: &mut Context<'_>) -> bool {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch.input[..READ]);
            match Pin::new(&mut self.upstream).poll_read(cx, &mut buf) {
                Poll::Pending => return false,
                Poll::Ready(Err(error)) => {
                    self.upstream_deaf = true;
                    self.upstream_ended(Some(error));
                    return true;
                }
                Poll::Ready(Ok(())) => {}
            }
            let bytes = buf.filled();
            if bytes.is_empty() {
                self.upstream_ended(None);
                return true;
            }
            if self.answer.is_some() {
                self.since = now();
            }
            self.read += bytes.len();
            self.moved.1 += bytes.len() as u64;
            scratch.output.clear();
            self.framer.frame(bytes, &mut scratch.output);
            self.send_to_client(cx, &scratch.output);
            true
        })
    }

    fn upstream_ended(&mut self, error: Option<std::io::Error>) {
        let reason = match (self.reason.take(), error) {
            // The upstream stopped reading earlier, so bytes are lost, however it ended.
            (Some(reason), _) => reason,
            (None, Some(error)) => RelayEnd::UpstreamFailed(error),
            (None, None) if self.answer.is_some() => RelayEnd::Client,
            (None, None) => RelayEnd::Upstream,
        };
        self.queue_close_frame(reason);
    }

    fn send_to_client(&mut self, cx: &mut Context<'_>, frames: &[u8]) {
        if let Err(error) = self.to_client.send(&mut self.client, cx, frames) {
            self.reason = Some(RelayEnd::ClientFailed(error));
        }
    }

    // Deadlines.

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Some(deadline) = self.next_deadline() {
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
            // A later deadline waits for the timer's next firing: resetting the timer at every read would cost more.
            if deadline < timer.deadline().into_std() {
                timer.as_mut().reset(deadline.into());
            }
            if timer.as_mut().poll(cx).is_pending() {
                return progress;
            }
            let now = now();
            progress |= self.handle_deadline(now);
            match (self.next_deadline(), &mut self.timer) {
                (Some(next), Some(timer)) => timer.as_mut().reset(next.max(now + MIN_TIMER).into()),
                _ => self.timer = None,
            }
        }
        self.timer = None;
        progress
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let stuck = self.to_client.stuck_since().map(|since| since + self.write_timeout);
        let other = match (self.outward, self.inward) {
            (ToClient::Open, ToUpstream::Open) => {
                self.pings.next_deadline().into_iter().chain(self.unread_deadline()).min()
            }
            (ToClient::Closed, ToUpstream::Open) => Some(self.since + CLOSE_ANSWER),
            (ToClient::Open, _) | (_, ToUpstream::Ending) => Some(self.since + HALF_CLOSED),
            (ToClient::Closing, _) | (ToClient::Closed, ToUpstream::Shut) => None,
        };
        stuck.into_iter().chain(other).min()
    }

    /// Returns whether anything has changed.
    fn handle_deadline(&mut self, now: Instant) -> bool {
        if self.to_client.stuck_since().is_some_and(|since| since + self.write_timeout <= now) {
            self.reason = Some(RelayEnd::ClientStuck);
            return true;
        }
        match (self.outward, self.inward) {
            (ToClient::Open, ToUpstream::Open) => self.check_unread(now) || self.ping(now),
            (ToClient::Closed, ToUpstream::Open) if self.since + CLOSE_ANSWER <= now => {
                self.inward = ToUpstream::Ending;
                self.since = now;
                true
            }
            (ToClient::Open, _) | (_, ToUpstream::Ending) if self.since + HALF_CLOSED <= now => {
                self.queue_close_frame(RelayEnd::UpstreamLingered);
                self.inward = ToUpstream::Shut;
                true
            }
            _ => false,
        }
    }

    /// While the client is not read because the upstream accepts nothing: when to check whether the client has
    /// disconnected or, if it has, when to end the pair.
    fn unread_deadline(&self) -> Option<Instant> {
        let stuck = self.to_upstream.stuck_since()?;
        Some(match self.gone_since {
            Some(gone) => gone.max(stuck) + HALF_CLOSED,
            None => self.checked.max(stuck) + PEER_CHECK,
        })
    }

    /// Returns whether the pair ends.
    fn check_unread(&mut self, now: Instant) -> bool {
        if self.unread_deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        if self.gone_since.is_some() {
            self.queue_close_frame(RelayEnd::UpstreamLingered);
            self.inward = ToUpstream::Shut;
            return true;
        }
        self.checked = now;
        // Its end may follow bytes that are not read.
        self.gone_since = (self.client.peer_state() != PeerState::Open).then_some(now);
        false
    }

    fn ping(&mut self, now: Instant) -> bool {
        if let Some(stuck) = self.to_upstream.stuck_since() {
            return self.ping_unread(stuck, now);
        }
        match self.pings.poll(now) {
            PingAction::None => return false,
            PingAction::Ping => encode::ping(&mut self.frames.control, None, b""),
            PingAction::PeerDead => self.reason = Some(RelayEnd::ClientSilent),
        }
        true
    }

    /// Pings a client that is not read, although its silence means nothing. If the client has closed its socket before
    /// all of its bytes were taken, its system answers the ping with a reset, and the remaining bytes are lost. So it is
    /// not pinged until the time limit for a closed client has passed.
    fn ping_unread(&mut self, stuck: Instant, now: Instant) -> bool {
        if self.pings.next_deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        self.pings.received(now);
        let pings = self.gone_since.is_none() && stuck + HALF_CLOSED <= now;
        if pings {
            encode::ping(&mut self.frames.control, None, b"");
        }
        pings
    }
}
