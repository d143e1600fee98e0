//! A protocol over a stream of bytes, inside of a WebSocket.
//!
//! [`WebSocket`] is itself a [`Protocol`] around another one, so [`transport::drive`] runs it as it runs any. Inwards,
//! payload is unmasked into a buffer of the thread and shown to the inner protocol, whatever the messages. Outwards,
//! everybody goes on appending to the connection's one outbox, and knows nothing of WebSocket: the headers of messages are
//! put in front when a batch is taken to be written ([`Protocol::frame_output`]). Compared with the two other ways:
//!
//! - A second outbox would need a copy, a lock and a wake-up more per batch, some 200 bytes more per connection, and a
//!   second account of what is not yet written.
//! - A stream that frames what passes through it could not answer a ping while nothing is to be read, nor say why the
//!   connection ends, and would need a timer of its own.
//!
//! So a message costs a header of 2 to 10 bytes per batch, no copy of the payload, and an idle connection some 250
//! bytes and no buffer.
//!
//! Where permessage-deflate was negotiated, messages are copied as they are compressed, and what comes is inflated a piece
//! at a time: the inner protocol takes each before the next exists, and other connections get their turn.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sync::work;
use transport::{Intent, OutBuf, Outbox, Protocol};
use websocket::{
    CloseCode, CloseFrame, Decoder, Deflate, Event, Fault, Header, HeaderBytes, Limits, MAX_INFLATED,
    MessageKind, Opcode, Role, Utf8, encode,
};

use super::messages::{MESSAGE, messages, slices};
use super::pings::{PingAction, Pings};

/// Bytes of control frames that wait for their turn. A peer that pings without reading does not make us remember more;
/// the RFC (5.5.3) allows to answer the last of several pings only.
pub(crate) const MAX_WAITING_CONTROL: usize = 1024;

/// What it takes to inflate a byte, in picoseconds.
const INFLATED_BYTE: u32 = 3_000;

/// A protocol that a WebSocket can carry.
pub(crate) trait Inner: Protocol {
    /// How its bytes travel.
    const CARRIAGE: Carriage;
    /// Why the protocol has finished, for the close frame. Asked after [`Intent::Finish`].
    fn ending(&self) -> (CloseCode, String);
}

/// How the bytes of a protocol travel in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carriage {
    /// As bytes, AMQP frames whole.
    AmqpFrames,
    /// As bytes, cut anywhere, as MQTT's may be.
    Bytes,
    /// As text where they are UTF-8, as STOMP's mostly are, and as bytes where not. Each batch, which is made of whole
    /// frames, is a message. Clients may send either.
    Text,
}

/// A server's end of a WebSocket, behind the handshake.
pub(crate) struct WebSocket<P> {
    inner: P,
    outbox: Arc<Outbox>,
    /// Backlog of the outbox from which on nothing is read.
    read_limit: usize,
    decoder: Decoder,
    deflate: Option<Deflate>,
    /// The decoder has more to give of what it has taken.
    more: bool,
    /// Payload that the inner protocol has left: the beginning of a frame, or what it could not take while it paused. It
    /// is at most what a protocol may leave, and one read. No memory while there is none.
    left: Vec<u8>,
    /// The inner protocol left it because it paused, or because its turn was over, so it is to be shown again.
    held: bool,
    /// Control frames that go in front of the next batch.
    control: Vec<u8>,
    pings: Pings,
    closing: Closing,
    /// Bytes of the inner protocol are being written.
    inner_writes: bool,
    /// Why the connection ended, where the inner protocol does not know.
    reason: Option<String>,
}

enum Closing {
    No,
    /// Both sides have nothing more to say; this frame goes out behind the last batch.
    Last(Vec<u8>),
    Done,
}

thread_local! {
    /// Where payload is unmasked.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl<P: Inner> WebSocket<P> {
    /// Around `inner`, whose output goes to `outbox`, and which is read from up to a backlog of `read_limit` bytes. A
    /// peer that is silent for `ping_interval` is pinged, and given up after another; zero turns that off.
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
            decoder: Decoder::new(Role::Server, Limits::NONE),
            deflate: None,
            more: false,
            left: Vec::new(),
            held: false,
            control: Vec::new(),
            pings: Pings::new(ping_interval, now),
            closing: Closing::No,
            inner_writes: false,
            reason: None,
        }
    }

    /// The same where the extension was negotiated, if it was.
    pub(crate) fn with_deflate(mut self, deflate: Option<Deflate>) -> Self {
        self.deflate = deflate;
        self.decoder = self.decoder.with_deflate(deflate.is_some());
        self
    }

    /// Why the connection ended, where the inner protocol does not know.
    pub(crate) fn take_reason(&mut self) -> Option<String> {
        self.reason.take()
    }

    pub(crate) fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    /// Appends the payload in `input` to `payload` and answers control frames. Returns the bytes taken, and why it went
    /// no further.
    fn unwrap(&mut self, input: &[u8], payload: &mut Vec<u8>) -> (usize, Stop) {
        let mut taken = 0;
        loop {
            let good = payload.len();
            let step = match self.decoder.decode(&input[taken..], payload) {
                Ok(step) => step,
                Err(fault) => {
                    payload.truncate(good);
                    return (input.len(), Stop::End(PeerEnd::Fault(fault)));
                }
            };
            taken += step.taken;
            match step.event {
                None => return (taken, Stop::InputUsedUp),
                Some(Event::More) => return (taken, Stop::More),
                Some(Event::MessageStart(MessageKind::Text)) if P::CARRIAGE != Carriage::Text => {
                    return (input.len(), Stop::End(PeerEnd::Fault(TEXT_REFUSED)));
                }
                Some(Event::Ping(control)) => self.answer_ping(control.payload()),
                Some(Event::Close(frame)) => return (input.len(), Stop::End(PeerEnd::Closed(frame))),
                Some(Event::MessageStart(_) | Event::MessageEnd | Event::Pong(_)) => {}
            }
        }
    }

    fn answer_ping(&mut self, payload: &[u8]) {
        if self.control.len() >= MAX_WAITING_CONTROL {
            self.control = Vec::new();
        }
        encode::pong(&mut self.control, None, payload);
    }

    /// Unwraps `input`, shows it to the inner protocol, and goes on for as long as that takes it and it is this
    /// connection's turn. Returns the bytes taken.
    fn advance(&mut self, input: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        loop {
            self.more = false;
            let (step, stop) = self.show(&input[taken..], now);
            taken += step;
            self.note_held_and_finished(now);
            match stop {
                _ if !matches!(self.closing, Closing::No) => return input.len(),
                Stop::InputUsedUp => return taken,
                Stop::End(end) => {
                    self.peer_ended(end);
                    return taken;
                }
                Stop::More => {}
            }
            self.more = true;
            work::charge_bytes(INFLATED_BYTE, MAX_INFLATED);
            if work::is_turn_over() {
                self.outbox.nudge();
                return taken;
            }
            if self.held || !self.reads() {
                return taken;
            }
        }
    }

    /// Unwraps from the front of `input` as far as the decoder goes in one go, and shows that to the inner protocol.
    fn show(&mut self, input: &[u8], now: Instant) -> (usize, Stop) {
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

    /// Shows the inner protocol what it left.
    fn show_left(&mut self, now: Instant) {
        let mut left = std::mem::take(&mut self.left);
        let taken = self.inner.handle_input(&left, now);
        left.drain(..taken);
        self.keep(left);
    }

    /// Keeps payload that the inner protocol did not take.
    fn keep(&mut self, mut left: Vec<u8>) {
        if left.is_empty() {
            left = Vec::new();
        } else if left.capacity() / 4 > left.len() {
            left.shrink_to_fit();
        }
        self.held = !left.is_empty() && (!self.reads() || work::is_turn_over());
        if self.held && self.reads() {
            self.outbox.nudge();
        }
        self.left = left;
    }

    fn reads(&self) -> bool {
        self.inner.intent() == Intent::Run && self.outbox.backlog() < self.read_limit
    }

    /// After every call to the inner protocol: shows it what it could not take before, and what the decoder still has,
    /// and ends when it has finished.
    fn follow_inner(&mut self, now: Instant) {
        self.note_held_and_finished(now);
        if self.more && !self.held && self.reads() && matches!(self.closing, Closing::No) {
            self.advance(&[], now);
        }
    }

    fn note_held_and_finished(&mut self, now: Instant) {
        if self.held && self.reads() {
            self.show_left(now);
        }
        if matches!(self.closing, Closing::No) && self.inner.intent() == Intent::Finish {
            let (code, reason) = self.inner.ending();
            self.close(code, &reason);
        }
    }

    /// Puts a batch into compressed messages.
    fn deflate_output(&mut self, batch: &mut OutBuf, deflate: Deflate) {
        let mut out = std::mem::take(&mut self.control);
        for Message { start, len, opcode } in P::CARRIAGE.messages(batch) {
            let payload = slices(batch, start, len);
            let mut compressed = Vec::new();
            if deflate.compress(payload.iter().copied(), &mut compressed) {
                let header = Header { compressed: true, ..message_header(opcode, compressed.len()) };
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
        self.held = false;
        self.more = false;
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
                let mut answer = Vec::new();
                match frame {
                    Some(frame) => encode::close(&mut answer, None, frame.code, ""),
                    None => encode::empty_close(&mut answer, None),
                }
                self.end(Closing::Last(answer));
            }
        }
    }
}

impl Carriage {
    /// Cuts a batch into messages.
    fn messages(self, batch: &OutBuf) -> Vec<Message> {
        match self {
            Self::AmqpFrames => {
                let opcode = Opcode::Binary;
                messages(batch).into_iter().map(|(start, len)| Message { start, len, opcode }).collect()
            }
            Self::Bytes | Self::Text if batch.is_empty() => Vec::new(),
            Self::Bytes => bytes(batch.len()),
            Self::Text => vec![Message { start: 0, len: batch.len(), opcode: text_or_bytes(batch) }],
        }
    }

    /// The kind of message that a batch is as a whole, if it is one.
    fn whole(self, batch: &OutBuf) -> Option<Opcode> {
        match self {
            Self::AmqpFrames | Self::Bytes => (batch.len() <= MESSAGE).then_some(Opcode::Binary),
            Self::Text => Some(text_or_bytes(batch)),
        }
    }
}

/// Messages of bytes that may be cut anywhere.
fn bytes(len: usize) -> Vec<Message> {
    let starts = (0..len).step_by(MESSAGE);
    starts.map(|start| Message { start, len: MESSAGE.min(len - start), opcode: Opcode::Binary }).collect()
}

fn text_or_bytes(batch: &OutBuf) -> Opcode {
    let mut utf8 = Utf8::default();
    let is_text = batch.pieces().all(|piece| utf8.push(piece).is_ok()) && utf8.finish().is_ok();
    if is_text { Opcode::Text } else { Opcode::Binary }
}

/// A message of a batch: where it begins, and its length.
struct Message {
    start: usize,
    len: usize,
    opcode: Opcode,
}

/// The header of a message.
fn header(message: &Message) -> HeaderBytes {
    message_header(message.opcode, message.len).encode()
}

fn message_header(opcode: Opcode, len: usize) -> Header {
    Header { opcode, fin: true, compressed: false, mask: None, len: len as u64 }
}

/// Why unwrapping went no further.
enum Stop {
    InputUsedUp,
    /// As much was inflated as is at once.
    More,
    End(PeerEnd),
}

/// How a peer ends a WebSocket.
enum PeerEnd {
    Closed(Option<CloseFrame>),
    Fault(Fault),
}

/// What the inner protocol says is bytes; a client that sends text would have them mangled.
const TEXT_REFUSED: Fault =
    Fault { code: CloseCode::UNSUPPORTED, reason: "text is not accepted here: send binary messages" };

impl<P: Inner> Protocol for WebSocket<P> {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        self.pings.received(now);
        if !matches!(self.closing, Closing::No) {
            return input.len();
        }
        if self.more {
            // Shown again, or anew, before it was this connection's turn.
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
        if self.control.is_empty()
            && matches!(self.closing, Closing::No)
            && let Some(opcode) = P::CARRIAGE.whole(batch)
        {
            if !batch.is_empty() {
                batch.insert(&[(0, header(&Message { start: 0, len: batch.len(), opcode }))]);
            }
            return;
        }
        let messages = P::CARRIAGE.messages(batch);
        let mut inserts = vec![(0, std::mem::take(&mut self.control))];
        inserts.extend(messages.iter().map(|message| (message.start, header(message).as_ref().to_vec())));
        if let Closing::Last(frame) = &mut self.closing {
            inserts.push((batch.len(), std::mem::take(frame)));
            self.closing = Closing::Done;
        }
        batch.insert(&inserts);
    }

    fn handle_room(&mut self) {
        self.inner.handle_room();
        self.follow_inner(Instant::now());
    }

    fn handle_written(&mut self, now: Instant) {
        // A pong is no sign of life to the inner protocol's peer.
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
            // Nobody reads what the peer sends, so its silence means nothing.
            self.pings.received(now);
        }
        match self.pings.poll(now) {
            PingAction::None => {}
            PingAction::Ping => encode::ping(&mut self.control, None, b""),
            PingAction::PeerDead => {
                self.reason = Some("client answers no WebSocket ping".to_owned());
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
            Closing::No if (self.more || self.held) && self.inner.intent() == Intent::Run => Intent::Pause,
            Closing::No => self.inner.intent(),
            // The last frame is framed and written first.
            Closing::Last(_) => Intent::Pause,
            Closing::Done => Intent::Finish,
        }
    }

    fn write_timeout_applies(&self) -> bool {
        self.inner.write_timeout_applies()
    }
}
