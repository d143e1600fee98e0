//! The adapter around a line protocol, driven by hand: the inner protocol's input and the client's messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::work;
use transport::{Intent, OutBuf, Outbox, Protocol};
use websocket::handshake::Head;
use websocket::{
    CloseCode, CloseFrame, DecoderLimits, Deflate, FrameDecoder, MAX_INFLATED, MessageKind, Role,
    WebSocketEvent, encode,
};

use super::adapter::{CarriedProtocol, FrameMapping, WebSocket};

const KEY: [u8; 4] = [1, 2, 3, 4];
const READ_LIMIT: usize = 4096;
const INTERVAL: Duration = Duration::from_secs(30);

/// Takes whole lines and echoes them; `pause` pauses until nudged, `quit` ends.
struct Lines {
    outbox: Arc<Outbox>,
    intent: Intent,
    seen: Vec<String>,
    eof: bool,
    written: usize,
}

impl Protocol for Lines {
    fn handle_input(&mut self, input: &[u8], _now: Instant) -> usize {
        let mut taken = 0;
        while self.intent == Intent::Run && self.outbox.backlog() < READ_LIMIT {
            let Some(end) = input[taken..].iter().position(|byte| *byte == b'\n') else { break };
            let line = &input[taken..=taken + end];
            taken += line.len();
            self.seen.push(String::from_utf8_lossy(line).trim().to_owned());
            match line {
                b"pause\n" => self.intent = Intent::Pause,
                b"quit\n" => self.intent = Intent::Finish,
                _ => {}
            }
            self.outbox.append(|buf| buf.tail().extend_from_slice(line));
        }
        taken
    }
    fn handle_eof(&mut self) {
        self.eof = true;
        self.intent = Intent::Finish;
    }
    fn handle_nudge(&mut self, _now: Instant) {
        self.intent = Intent::Run;
    }
    fn handle_capacity(&mut self) {}
    fn handle_written(&mut self, _now: Instant) {
        self.written += 1;
    }
    fn handle_deadline(&mut self, _now: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        self.intent
    }
}

impl CarriedProtocol for Lines {
    const CARRIAGE: FrameMapping = FrameMapping::AmqpFrames;

    fn ending(&self) -> (CloseCode, String) {
        (CloseCode::GOING_AWAY, "bye".to_owned())
    }
}

/// A message or control frame that a client receives.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Message(String),
    Ping,
    Pong(Vec<u8>),
    Close(Option<CloseFrame>),
}

struct World {
    socket: WebSocket<Lines>,
    outbox: Arc<Outbox>,
    now: Instant,
    /// Input that the server has not taken.
    unread: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let outbox = Arc::new(Outbox::new(READ_LIMIT));
        let lines =
            Lines { outbox: Arc::clone(&outbox), intent: Intent::Run, seen: vec![], eof: false, written: 0 };
        let now = Instant::now();
        let socket = WebSocket::new(lines, Arc::clone(&outbox), READ_LIMIT, INTERVAL, now);
        Self { socket, outbox, now, unread: Vec::new() }
    }

    fn deflated() -> Self {
        let mut world = Self::new();
        world.socket = world.socket.with_deflate(Some(deflate()));
        world
    }

    /// A read as the connection's loop does it: input that was left is shown again before the new bytes.
    fn read(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let taken = self.socket.handle_input(&self.unread, self.now);
        self.unread.drain(..taken);
    }

    fn send(&mut self, text: &str) {
        self.read(&message(text));
    }

    /// Writes everything that waits.
    fn written(&mut self) -> Vec<Got> {
        let mut batch = OutBuf::default();
        let waiting = self.outbox.read_all();
        batch.tail().extend_from_slice(&waiting);
        self.socket.frame_output(&mut batch);
        let bytes: Vec<u8> = batch.pieces().flatten().copied().collect();
        if !bytes.is_empty() {
            self.socket.handle_written(self.now);
        }
        decode(&bytes)
    }

    fn seen(&mut self) -> &[String] {
        &self.socket.inner_mut().seen
    }
}

fn message(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode::message(&mut out, Some(KEY), MessageKind::Binary, text.as_bytes());
    out
}

fn deflate() -> Deflate {
    let request = b"GET / HTTP/1.1\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    Deflate::negotiate(&Head::parse(request).unwrap().unwrap().0).unwrap()
}

fn compressed(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode::deflated_message(&mut out, Some(KEY), MessageKind::Binary, deflate(), text.as_bytes());
    assert!(out.len() < text.len());
    out
}

fn decode(bytes: &[u8]) -> Vec<Got> {
    let mut decoder = FrameDecoder::new(Role::Client, DecoderLimits::NONE).with_deflate(true);
    let (mut got, mut payload, mut start) = (Vec::new(), Vec::new(), 0);
    loop {
        let step = decoder.decode(&bytes[start..], &mut payload).expect("the server speaks well");
        start += step.taken;
        got.push(match step.event {
            None => {
                assert_eq!(start, bytes.len());
                return got;
            }
            Some(WebSocketEvent::MessageStart(kind)) => {
                assert_eq!(kind, MessageKind::Binary);
                continue;
            }
            Some(WebSocketEvent::More) => continue,
            Some(WebSocketEvent::MessageEnd) => {
                Got::Message(String::from_utf8(std::mem::take(&mut payload)).expect("lines are text"))
            }
            Some(WebSocketEvent::Ping(_)) => Got::Ping,
            Some(WebSocketEvent::Pong(control)) => Got::Pong(control.payload().to_vec()),
            Some(WebSocketEvent::Close(frame)) => Got::Close(frame),
        });
    }
}

fn closed(code: CloseCode, reason: &str) -> Got {
    Got::Close(Some(CloseFrame { code, reason: reason.to_owned() }))
}

#[test]
fn any_fragmentation_and_any_cut_show_the_same_bytes() {
    let mut bytes = Vec::new();
    encode::fragment(&mut bytes, Some(KEY), Some(MessageKind::Binary), false, b"on");
    encode::ping(&mut bytes, Some(KEY), b"?");
    encode::fragment(&mut bytes, Some(KEY), None, true, b"e\ntw");
    bytes.extend(message("o\nthree\nfo"));
    bytes.extend(message("ur\n"));
    for step in [1, 2, 5, bytes.len()] {
        let mut world = World::new();
        bytes.chunks(step).for_each(|chunk| world.read(chunk));
        assert_eq!(world.seen(), ["one", "two", "three", "four"]);
        let got = world.written();
        assert_eq!(got[0], Got::Pong(b"?".to_vec()));
        assert_eq!(got[1..], [Got::Message("one\ntwo\nthree\nfour\n".to_owned())]);
    }
}

#[test]
fn input_received_during_a_pause_is_passed_on_after_it_in_order() {
    let mut world = World::new();
    world.send("one\npause\ntwo\nth");
    assert_eq!(world.seen(), ["one", "pause"]);
    assert_eq!(world.socket.intent(), Intent::Pause);
    world.socket.handle_nudge(world.now);
    assert_eq!(world.seen(), ["one", "pause", "two"]);
    world.send("ree\n");
    assert_eq!(world.seen(), ["one", "pause", "two", "three"]);
}

#[test]
fn input_held_up_by_a_full_outbox_continues_once_it_is_written() {
    let mut world = World::new();
    let long = format!("{}\n", "x".repeat(READ_LIMIT));
    world.send(&format!("{long}after\n"));
    assert_eq!(world.seen().len(), 1);
    assert_eq!(world.written(), [Got::Message(long)]);
    assert_eq!(world.seen()[1..], ["after"]);
    assert_eq!(world.written(), [Got::Message("after\n".to_owned())]);
}

#[test]
fn a_protocol_that_finishes_says_why_behind_its_last_bytes() {
    let mut world = World::new();
    world.send("quit\nmore\n");
    assert_eq!(world.socket.intent(), Intent::Pause, "the close frame is still to be written");
    assert_eq!(world.written(), [Got::Message("quit\n".to_owned()), closed(CloseCode::GOING_AWAY, "bye")]);
    assert_eq!(world.socket.intent(), Intent::Finish);
    world.outbox.append(|buf| buf.tail().extend_from_slice(b"late\n"));
    assert_eq!(world.written(), [], "nothing follows a close frame");
}

#[test]
fn a_close_frame_is_answered_and_ends_the_session() {
    let mut world = World::new();
    let mut bytes = message("one\nha");
    encode::close(&mut bytes, Some(KEY), CloseCode::NORMAL, "done");
    bytes.extend(message("lf\n"));
    world.read(&bytes);
    assert!(world.socket.inner_mut().eof);
    assert_eq!(world.seen(), ["one"]);
    assert_eq!(world.written(), [Got::Message("one\n".to_owned()), closed(CloseCode::NORMAL, "")]);
    assert_eq!(world.socket.intent(), Intent::Finish);
}

#[test]
fn a_close_frame_waits_until_earlier_input_has_been_consumed() {
    let mut world = World::new();
    let mut bytes = message("one\npause\ntwo\npause\nha");
    encode::close(&mut bytes, Some(KEY), CloseCode::NORMAL, "done");
    bytes.extend(message("lf\n"));
    world.read(&bytes);
    assert_eq!(world.seen(), ["one", "pause"]);
    world.socket.handle_nudge(world.now);
    // It has taken all, and is still at it.
    assert_eq!(world.seen(), ["one", "pause", "two", "pause"]);
    assert!(!world.socket.inner_mut().eof && world.socket.intent() == Intent::Pause);
    world.socket.handle_nudge(world.now);
    assert!(world.socket.inner_mut().eof);
    let expected = [Got::Message("one\npause\ntwo\npause\n".to_owned()), closed(CloseCode::NORMAL, "")];
    assert_eq!(world.written(), expected);
    assert_eq!(world.socket.intent(), Intent::Finish);
}

#[test]
fn a_protocol_that_finishes_before_the_close_frame_is_not_cut_off() {
    let mut world = World::new();
    let mut bytes = message("pause\nquit\n");
    encode::close(&mut bytes, Some(KEY), CloseCode::NORMAL, "done");
    world.read(&bytes);
    world.socket.handle_nudge(world.now);
    assert!(!world.socket.inner_mut().eof, "it has ended by itself");
    assert_eq!(
        world.written(),
        [Got::Message("pause\nquit\n".to_owned()), closed(CloseCode::GOING_AWAY, "bye")]
    );
}

#[test]
fn input_before_a_protocol_error_is_consumed_first() {
    let mut world = World::new();
    let mut bytes = message("pause\ntwo\n");
    encode::message(&mut bytes, None, MessageKind::Binary, b"three\n");
    world.read(&bytes);
    assert!(!world.socket.inner_mut().eof);
    world.socket.handle_nudge(world.now);
    assert_eq!(world.seen(), ["pause", "two"]);
    assert!(world.socket.inner_mut().eof);
    assert!(
        matches!(&world.written()[1], Got::Close(Some(frame)) if frame.code == CloseCode::PROTOCOL_ERROR)
    );
}

#[test]
fn a_close_frame_behind_more_than_is_inflated_or_written_at_once_waits_for_it() {
    let lines = 256 * 1024;
    let mut world = World::deflated();
    let mut bytes = compressed(&format!("pause\n{}", "x\n".repeat(lines)));
    encode::close(&mut bytes, Some(KEY), CloseCode::NORMAL, "");
    world.read(&bytes);
    while !world.socket.inner_mut().eof {
        let before = world.seen().len();
        let _turn = work::Turn::begin();
        world.socket.handle_nudge(world.now);
        while world.outbox.backlog() > 0 {
            world.written();
        }
        world.read(&[]);
        assert!(world.seen().len() > before || world.socket.inner_mut().eof);
    }
    assert_eq!(world.seen().len(), lines + 1);
}

#[test]
fn compression_is_charged_to_the_turn() {
    let mut world = World::deflated();
    let mut batch = OutBuf::default();
    batch.tail().resize(100 * 1024, b'x');
    let _turn = work::Turn::begin();
    world.socket.frame_output(&mut batch);
    assert!(work::is_turn_over());
}

#[test]
fn text_is_refused_with_1003_and_bad_frames_with_1002() {
    let mut text = message("one\n");
    encode::message(&mut text, Some(KEY), MessageKind::Text, b"two\n");
    let mut unmasked = message("one\n");
    encode::message(&mut unmasked, None, MessageKind::Binary, b"two\n");
    for (bytes, code) in [(text, CloseCode::UNSUPPORTED), (unmasked, CloseCode::PROTOCOL_ERROR)] {
        for step in [1, bytes.len()] {
            let mut world = World::new();
            bytes.chunks(step).for_each(|chunk| world.read(chunk));
            assert_eq!(world.seen(), ["one"]);
            assert!(world.socket.inner_mut().eof);
            let got = world.written();
            assert!(matches!(&got[1], Got::Close(Some(frame)) if frame.code == code), "{got:?}");
            assert!(world.socket.take_reason().is_some());
        }
    }
}

#[test]
fn a_silent_peer_is_pinged_and_then_given_up() {
    let mut world = World::new();
    let mut pong = Vec::new();
    encode::pong(&mut pong, Some(KEY), b"");
    for _ in 0..3 {
        world.now = world.socket.next_deadline().unwrap();
        world.socket.handle_deadline(world.now);
        assert_eq!(world.written(), [Got::Ping]);
        world.read(&pong);
    }
    assert_eq!(world.socket.inner_mut().written, 0, "pings do not count as output of the inner protocol");
    for _ in 0..2 {
        world.now = world.socket.next_deadline().unwrap();
        world.socket.handle_deadline(world.now);
    }
    assert_eq!(world.socket.intent(), Intent::Finish);
    assert!(world.socket.inner_mut().eof);
}

#[test]
fn silence_means_nothing_while_nobody_reads() {
    let mut world = World::new();
    world.send("pause\n");
    world.written();
    for _ in 0..5 {
        world.now = world.socket.next_deadline().unwrap();
        world.socket.handle_deadline(world.now);
        assert_eq!(world.written(), []);
    }
    assert_eq!(world.socket.intent(), Intent::Pause);
}

#[test]
fn pings_without_reading_the_answers_do_not_gather() {
    let mut world = World::new();
    let mut ping = Vec::new();
    encode::ping(&mut ping, Some(KEY), &[7; 125]);
    world.read(&ping.repeat(1000));
    let got = world.written();
    assert!(!got.is_empty() && got.len() < 20, "{}", got.len());
    assert_eq!(got.last(), Some(&Got::Pong(vec![7; 125])));
}

#[test]
fn compressed_messages_are_taken_and_made_and_short_ones_left_as_they_are() {
    let text = "the same again\n".repeat(100);
    let bytes = compressed(&text);
    for step in [1, 7, bytes.len()] {
        let mut world = World::deflated();
        bytes.chunks(step).for_each(|chunk| world.read(chunk));
        world.send("plain\n");
        assert_eq!(world.seen().len(), 101);
        let waiting = world.outbox.backlog();
        let mut batch = OutBuf::default();
        batch.tail().extend_from_slice(&world.outbox.read_all());
        world.socket.frame_output(&mut batch);
        assert!(batch.len() < waiting / 4);
        let bytes: Vec<u8> = batch.pieces().flatten().copied().collect();
        assert_eq!(decode(&bytes), [Got::Message(format!("{text}plain\n"))]);
        world.send("short\n");
        assert_eq!(world.written(), [Got::Message("short\n".to_owned())]);
    }
}

#[test]
fn inflated_input_waits_for_the_inner_protocol_and_its_turn() {
    let lines = 512 * 1024;
    let mut world = World::deflated();
    world.read(&compressed(&format!("pause\n{}", "x\n".repeat(lines))));
    // It has seen at most one inflated piece, and nothing is read until it resumes.
    assert_eq!(world.seen(), ["pause"]);
    assert_eq!(world.socket.intent(), Intent::Pause);
    let (mut turns, mut most) = (0, 0);
    while world.seen().len() <= lines {
        let before = world.seen().len();
        let _turn = work::Turn::begin();
        world.socket.handle_nudge(world.now);
        // The outbox fills repeatedly; each write makes room.
        while world.outbox.backlog() > 0 {
            world.written();
        }
        let left = std::mem::take(&mut world.unread);
        world.read(&left);
        most = most.max((world.seen().len() - before) * 2);
        turns += 1;
    }
    assert!(turns > 1 && most <= 4 * MAX_INFLATED, "{turns} turns, {most}");
    assert_eq!(world.socket.intent(), Intent::Run);
    assert_eq!(world.seen().len(), lines + 1);
}
