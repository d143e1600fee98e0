//! A byte-stream protocol inside a WebSocket.
//!
//! [`WebSocket`] is itself a [`Protocol`] around another one, so [`transport::drive`] runs it like any other. Inbound
//! payload is unmasked into a thread-local buffer and passed to the inner protocol, regardless of message boundaries. All
//! output is still appended to the connection's one outbox, by code that knows nothing of WebSocket. Message headers are
//! inserted when a batch is taken to be written ([`Protocol::frame_output`]). Compared with the two alternatives:
//! Compared with the two alternatives:
//!
//! - A second outbox would need another copy, lock and wake-up per batch, some 200 bytes more per connection, and a
//!   second count of unwritten bytes.
//! - A stream that frames the bytes passing through it could not answer a ping while there is nothing to read, nor report
//!   why the connection ends, and would need its own timer.
//!
//! So a message costs a header of 2 to 10 bytes per batch and no copy of the payload, and an idle connection
//! some 250 bytes and no buffer.
//!
//! With permessage-deflate, messages are copied as they are compressed, and input is inflated piece by piece:
//! the inner protocol takes each piece before the next exists, and other connections get their turn.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sync::work;
use transport::{Intent, OutBuf, Outbox, Protocol};
use websocket::{CloseCode, Deflate, FrameHeader, HeaderBytes, MAX_INFLATED, Opcode, Utf8, encode};

use super::client_frames::{ClientFrames, DecodeStop, PeerEnd, close_answer};
use super::messages::{MESSAGE, messages, slices};
use super::pings::{PingAction, Pings};

/// Cost of inflating one byte, in picoseconds, as charged to the turn.
const INFLATED_BYTE: u32 = 3_000;

/// Cost of compressing one byte, in picoseconds, as charged to the turn.
const DEFLATED_BYTE: u32 = 10_000;

/// A protocol that a WebSocket can carry.
pub(crate) trait CarriedProtocol: Protocol {
    /// The mapping of the protocol's bytes to messages.
    const CARRIAGE: FrameMapping;
    /// The reason why the protocol has finished, for the close frame. Called after [`Intent::Finish`].
    fn ending(&self) -> (CloseCode, String);
}

/// The mapping of a protocol's bytes to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameMapping {
    /// In binary messages of whole AMQP frames.
    AmqpFrames,
    /// In binary messages cut anywhere, as MQTT allows.
    Bytes,
    /// In text messages if they are UTF-8, as STOMP's mostly are, and in binary ones otherwise. Each batch,
    /// which consists of whole frames, is a message. Clients may send either.
    Text,
}

/// The server's side of a WebSocket after the handshake.
pub(crate) struct WebSocket<P> {
    inner: P,
    outbox: Arc<Outbox>,
    /// Reading stops when the outbox's backlog reaches this number of bytes.
    read_limit: usize,
    frames: ClientFrames,
    deflate: Option<Deflate>,
    /// Whether the decoder has more output from input that it has taken.
    more: bool,
    /// Payload that the inner protocol has not taken: the beginning of a frame, or bytes that arrived while it paused.
    /// Bounded by what a protocol may leave plus one read. Uses no memory while empty.
    left: Vec<u8>,
    /// Whether the inner protocol left `left` because it paused or its turn was over, so that it must be passed in again.
    has_unconsumed: bool,
    pings: Pings,
    /// How the peer has ended the WebSocket. Set when the end is decoded, taken by [`Self::end_when_shown`]: the inner
    /// protocol is notified once it has been passed everything before, as for a socket that is read to its end.
    peer_end: Option<PeerEnd>,
    closing: Closing,
    /// Whether bytes of the inner protocol are being written.
    inner_writes: bool,
    /// The reason why the connection ended, if the inner protocol does not know it.
    reason: Option<String>,
}

enum Closing {
    No,
    /// Neither side has more to send; this frame goes out after the last batch.
    Last(Vec<u8>),
    Done,
}

thread_local! {
    /// The buffer for unmasked payload.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl<P: CarriedProtocol> WebSocket<P> {
    /// Wraps `inner`, whose output goes to `outbox`, and for which input is read up to a backlog of
    /// `read_limit` bytes. A peer that is silent for `ping_interval` is pinged, and dropped after another one;
    /// zero turns that off.
    pub(crate) fn new(
        inner: P,
        outbox: Arc<Outbox>,
        read_limit: usize,
        ping_interval: Duration,
        now: Instant,
    ) -> Self {
        Self {
            inner,
            outbox,
            read_limit,
            frames: ClientFrames::new(false),
            deflate: None,
            more: false,
            left: Vec::new(),
            has_unconsumed: false,
            pings: Pings::new(ping_interval, now),
            peer_end: None,
            closing: Closing::No,
            inner_writes: false,
            reason: None,
        }
    }

    /// Enables compression if it was negotiated.
    pub(crate) fn with_deflate(mut self, deflate: Option<Deflate>) -> Self {
        self.deflate = deflate;
        self.frames = ClientFrames::new(deflate.is_some());
        self
    }

    /// Takes the reason why the connection ended, if the inner protocol does not know it.
    pub(crate) fn take_reason(&mut self) -> Option<String> {
        self.reason.take()
    }

    pub(crate) fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn unwrap(&mut self, input: &[u8], payload: &mut Vec<u8>) -> (usize, DecodeStop) {
        self.frames.decode(input, payload, P::CARRIAGE == FrameMapping::Text)
    }

    /// Unwraps `input` and passes it to the inner protocol, for as long as that takes it and this connection's turn
    /// lasts. Returns the number of bytes taken.
    fn advance(&mut self, input: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        loop {
            self.more = false;
            let (step, stop) = self.show(&input[taken..], now);
            taken += step;
            self.note_unconsumed_and_finished(now);
            match stop {
                _ if !matches!(self.closing, Closing::No) => return input.len(),
                DecodeStop::InputUsedUp => return taken,
                DecodeStop::End(end) => {
                    self.peer_end = Some(end);
                    self.end_when_shown();
                    return taken;
                }
                DecodeStop::More => {}
            }
            self.more = true;
            work::charge_bytes(INFLATED_BYTE, MAX_INFLATED);
            if work::is_turn_over() {
                self.outbox.nudge();
                return taken;
            }
            if self.has_unconsumed || !self.reads() {
                return taken;
            }
        }
    }

    /// Unwraps one decoder step from the front of `input`, and passes the payload to the inner protocol.
    fn show(&mut self, input: &[u8], now: Instant) -> (usize, DecodeStop) {
        let (taken, stop);
        if self.left.is_empty() {
            let mut payload = SCRATCH.take();
            (taken, stop) = self.unwrap(input, &mut payload);
            if !payload.is_empty() {
                let inner_taken = self.inner.handle_input(&payload, now);
                self.keep(payload[inner_taken..].to_vec());
                payload.clear();
            }
            SCRATCH.set(payload);
        } else {
            let mut left = std::mem::take(&mut self.left);
            let before = left.len();
            (taken, stop) = self.unwrap(input, &mut left);
            let has_more = left.len() > before;
            self.left = left;
            if has_more {
                self.show_left(now);
            }
        }
        (taken, stop)
    }

    /// Passes the payload to the inner protocol that it has not taken before.
    fn show_left(&mut self, now: Instant) {
        let mut left = std::mem::take(&mut self.left);
        let taken = self.inner.handle_input(&left, now);
        left.drain(..taken);
        self.keep(left);
    }

    /// Stores payload that the inner protocol did not take.
    fn keep(&mut self, mut left: Vec<u8>) {
        if left.is_empty() {
            left = Vec::new();
        } else if left.capacity() / 4 > left.len() {
            left.shrink_to_fit();
        }
        self.has_unconsumed = !left.is_empty() && (!self.reads() || work::is_turn_over());
        if self.has_unconsumed && self.reads() {
            self.outbox.nudge();
        }
        self.left = left;
    }

    fn reads(&self) -> bool {
        self.inner.intent() == Intent::Run && self.outbox.backlog() < self.read_limit
    }

    /// Called after every call to the inner protocol: passes it payload that it could not take before and the decoder's
    /// remaining output, and ends the WebSocket if the protocol has finished.
    fn follow_inner(&mut self, now: Instant) {
        self.note_unconsumed_and_finished(now);
        if self.more && !self.has_unconsumed && self.reads() && matches!(self.closing, Closing::No) {
            self.advance(&[], now);
        }
        self.end_when_shown();
    }

    /// Ends a WebSocket that the peer has ended, unless the inner protocol has not taken or not finished handling the
    /// input before the end.
    fn end_when_shown(&mut self) {
        if self.has_unconsumed || self.more || !self.reads() || !matches!(self.closing, Closing::No) {
            return;
        }
        if let Some(end) = self.peer_end.take() {
            self.peer_ended(end);
        }
    }

    fn note_unconsumed_and_finished(&mut self, now: Instant) {
        if self.has_unconsumed && self.reads() {
            self.show_left(now);
        }
        if matches!(self.closing, Closing::No) && self.inner.intent() == Intent::Finish {
            let (code, reason) = self.inner.ending();
            self.close(code, &reason);
        }
    }

    /// Turns a batch into compressed messages.
    fn deflate_output(&mut self, batch: &mut OutBuf, deflate: Deflate) {
        let mut out = std::mem::take(&mut self.frames.control);
        for MessageSpan { start, len, opcode } in P::CARRIAGE.messages(batch) {
            let payload = slices(batch, start, len);
            work::charge_bytes(DEFLATED_BYTE, len);
            let mut compressed = Vec::new();
            if deflate.compress(payload.iter().copied(), &mut compressed) {
                let header = FrameHeader { compressed: true, ..message_header(opcode, compressed.len()) };
                out.extend_from_slice(header.encode().as_ref());
                out.append(&mut compressed);
            } else {
                out.extend_from_slice(message_header(opcode, len).encode().as_ref());
                payload.iter().for_each(|piece| out.extend_from_slice(piece));
            }
        }
        if let Closing::Last(frame) = &mut self.closing {
            out.append(frame);
            self.closing = Closing::Done;
        }
        if !out.is_empty() {
            batch.clear();
            batch.push(Bytes::from(out));
        }
    }

    fn close(&mut self, code: CloseCode, reason: &str) {
        let mut frame = Vec::new();
        encode::close(&mut frame, None, code, reason);
        self.end(Closing::Last(frame));
    }

    fn end(&mut self, closing: Closing) {
        self.closing = closing;
        self.left = Vec::new();
        self.has_unconsumed = false;
        self.more = false;
        self.peer_end = None;
    }

    fn peer_ended(&mut self, end: PeerEnd) {
        match end {
            PeerEnd::Fault(fault) => {
                self.reason = Some(format!("WebSocket closed by server: {fault}"));
                self.inner.handle_eof();
                self.close(fault.code, fault.reason);
            }
            PeerEnd::Closed(frame) => {
                self.inner.handle_eof();
                self.end(Closing::Last(close_answer(frame.as_ref())));
            }
        }
    }
}

impl FrameMapping {
    /// Splits a batch into messages.
    fn messages(self, batch: &OutBuf) -> Vec<MessageSpan> {
        match self {
            Self::AmqpFrames => {
                let opcode = Opcode::Binary;
                messages(batch).into_iter().map(|(start, len)| MessageSpan { start, len, opcode }).collect()
            }
            Self::Bytes | Self::Text if batch.is_empty() => Vec::new(),
            Self::Bytes => bytes(batch.len()),
            Self::Text => vec![MessageSpan { start: 0, len: batch.len(), opcode: text_or_bytes(batch) }],
        }
    }

    /// The opcode of a batch that is sent as a single message; `None` if it is split.
    fn whole(self, batch: &OutBuf) -> Option<Opcode> {
        match self {
            Self::AmqpFrames | Self::Bytes => (batch.len() <= MESSAGE).then_some(Opcode::Binary),
            Self::Text => Some(text_or_bytes(batch)),
        }
    }
}

/// Splits `len` bytes, which may be cut anywhere, into binary messages.
fn bytes(len: usize) -> Vec<MessageSpan> {
    let starts = (0..len).step_by(MESSAGE);
    starts.map(|start| MessageSpan { start, len: MESSAGE.min(len - start), opcode: Opcode::Binary }).collect()
}

fn text_or_bytes(batch: &OutBuf) -> Opcode {
    let mut utf8 = Utf8::default();
    let is_text = batch.pieces().all(|piece| utf8.push(piece).is_ok()) && utf8.finish().is_ok();
    if is_text { Opcode::Text } else { Opcode::Binary }
}

/// A message within a batch: where it begins, and its length.
struct MessageSpan {
    start: usize,
    len: usize,
    opcode: Opcode,
}

/// The header of a message.
fn header(message: &MessageSpan) -> HeaderBytes {
    message_header(message.opcode, message.len).encode()
}

fn message_header(opcode: Opcode, len: usize) -> FrameHeader {
    FrameHeader { opcode, fin: true, compressed: false, mask: None, len: len as u64 }
}

impl<P: CarriedProtocol> Protocol for WebSocket<P> {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        self.pings.received(now);
        if !matches!(self.closing, Closing::No) {
            return input.len();
        }
        if self.peer_end.is_some() {
            // Nothing follows the end, but the inner protocol may continue with earlier input.
            self.follow_inner(now);
            return input.len();
        }
        if self.more {
            // Called again before the decoder's output was passed on in a turn of this connection.
            self.follow_inner(now);
            return if self.more { 0 } else { self.advance(input, now) };
        }
        self.advance(input, now)
    }

    fn handle_eof(&mut self) {
        if matches!(self.closing, Closing::No) {
            self.inner.handle_eof();
        }
        self.end(Closing::Done);
    }

    fn handle_nudge(&mut self, now: Instant) {
        self.inner.handle_nudge(now);
        self.follow_inner(now);
    }

    fn frame_output(&mut self, batch: &mut OutBuf) {
        if matches!(self.closing, Closing::Done) {
            // Nothing may follow a close frame.
            batch.clear();
            return;
        }
        self.inner_writes |= !batch.is_empty();
        if let Some(deflate) = self.deflate {
            return self.deflate_output(batch, deflate);
        }
        if self.frames.control.is_empty()
            && matches!(self.closing, Closing::No)
            && let Some(opcode) = P::CARRIAGE.whole(batch)
        {
            if !batch.is_empty() {
                batch.insert(&[(0, header(&MessageSpan { start: 0, len: batch.len(), opcode }))]);
            }
            return;
        }
        let messages = P::CARRIAGE.messages(batch);
        let mut inserts = vec![(0, std::mem::take(&mut self.frames.control))];
        inserts.extend(messages.iter().map(|message| (message.start, header(message).as_ref().to_vec())));
        if let Closing::Last(frame) = &mut self.closing {
            inserts.push((batch.len(), std::mem::take(frame)));
            self.closing = Closing::Done;
        }
        batch.insert(&inserts);
    }

    fn handle_capacity(&mut self) {
        self.inner.handle_capacity();
        self.follow_inner(Instant::now());
    }

    fn handle_written(&mut self, now: Instant) {
        // A pong is not a sign of life to the inner protocol's peer.
        if std::mem::take(&mut self.inner_writes) {
            self.inner.handle_written(now);
        }
        self.follow_inner(now);
    }

    fn handle_deadline(&mut self, now: Instant) {
        if self.inner.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.inner.handle_deadline(now);
            self.follow_inner(now);
        }
        if !self.reads() {
            // The peer is not read, so its silence means nothing.
            self.pings.received(now);
        }
        match self.pings.poll(now) {
            PingAction::None => {}
            PingAction::Ping => encode::ping(&mut self.frames.control, None, b""),
            PingAction::PeerDead => {
                self.reason = Some("WebSocket ping timed out".to_owned());
                self.handle_eof();
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self.closing {
            Closing::No => {
                [self.inner.next_deadline(), self.pings.next_deadline()].into_iter().flatten().min()
            }
            Closing::Last(_) | Closing::Done => None,
        }
    }

    fn intent(&self) -> Intent {
        match self.closing {
            Closing::No
                if (self.more || self.has_unconsumed || self.peer_end.is_some())
                    && self.inner.intent() == Intent::Run =>
            {
                Intent::Pause
            }
            Closing::No => self.inner.intent(),
            // The last close frame is appended and written first.
            Closing::Last(_) => Intent::Pause,
            Closing::Done => Intent::Finish,
        }
    }

    fn write_timeout_applies(&self) -> bool {
        self.inner.write_timeout_applies()
    }
}
