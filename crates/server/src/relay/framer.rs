//! Splits bytes of the upstream into WebSocket messages.
//!
//! A message has the bytes of one read, since a byte stream has no better boundaries. But if AMQP 0-9-1 is relayed, a
//! message ends at the end of an AMQP frame: browser clients rely on that, and websocket-tcp-relay does it. Frames are
//! not buffered for this: an incomplete frame is sent as a fragment, and the browser joins the fragments.

use amqp::frame::{HEADER_LEN, OVERHEAD};
use websocket::{Deflate, FrameHeader, MessageKind, Opcode, encode};

/// The protocol header of AMQP 0-9-1 clients.
const AMQP_PROTOCOL_HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";

/// The frame types of AMQP.
const AMQP_FRAME_TYPES: [u8; 4] = [1, 2, 3, 8];

/// Turns bytes into messages.
#[derive(Debug, Default)]
pub(super) struct Framer {
    kind: FramerKind,
    /// Whether a message has been started and not ended.
    within: bool,
    /// Compresses messages that are whole in one frame; the first frame says whether a message is compressed.
    pub(super) deflate: Option<Deflate>,
}

#[derive(Debug)]
enum FramerKind {
    /// The number of leading bytes from the client that match AMQP's protocol header so far.
    Unknown(usize),
    Amqp(Position),
    Bytes,
}

impl Default for FramerKind {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl Framer {
    /// Detects the client's protocol from its first bytes.
    pub(super) fn detect_protocol(&mut self, bytes: &[u8]) {
        let FramerKind::Unknown(known) = self.kind else { return };
        let expected = &AMQP_PROTOCOL_HEADER[known..];
        let looked_at = bytes.len().min(expected.len());
        self.kind = if bytes[..looked_at] != expected[..looked_at] {
            FramerKind::Bytes
        } else if looked_at == expected.len() {
            FramerKind::Amqp(Position::default())
        } else {
            FramerKind::Unknown(known + looked_at)
        };
    }

    /// Appends `bytes`, which must not be empty, to `out` in frames.
    pub(super) fn frame(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let whole = match &mut self.kind {
            FramerKind::Amqp(position) => match position.advance(bytes) {
                Some(whole) => whole,
                // Not AMQP after all, such as the answer to a version that the upstream does not support.
                None => {
                    self.kind = FramerKind::Bytes;
                    bytes.len()
                }
            },
            FramerKind::Unknown(_) | FramerKind::Bytes => bytes.len(),
        };
        let (ended, begun) = bytes.split_at(whole);
        for (part, fin) in [(ended, true), (begun, false)] {
            if !part.is_empty() {
                self.write(part, fin, out);
            }
        }
    }

    /// Ends the current message.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.within {
            self.write(&[], true, out);
        }
    }

    fn write(&mut self, bytes: &[u8], fin: bool, out: &mut Vec<u8>) {
        if let (Some(deflate), true, false) = (self.deflate, fin, self.within) {
            return encode::deflated_message(out, None, MessageKind::Binary, deflate, bytes);
        }
        let opcode = if self.within { Opcode::Continuation } else { Opcode::Binary };
        let header = FrameHeader { opcode, fin, compressed: false, mask: None, len: bytes.len() as u64 };
        out.extend_from_slice(header.encode().as_ref());
        out.extend_from_slice(bytes);
        self.within = !fin;
    }
}

/// Position within a stream of AMQP frames.
#[derive(Debug, Default)]
struct Position {
    header: [u8; HEADER_LEN],
    /// Bytes of the frame header received.
    header_len: u8,
    /// Bytes of the frame still missing after its header.
    missing: usize,
}

impl Position {
    /// Advances over `bytes`, and returns how many of them belong to frames that are then complete. `None` if
    /// they are not frames.
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let (mut at, mut whole) = (0, 0);
        while at < bytes.len() {
            if self.missing == 0 {
                let have = usize::from(self.header_len);
                if have == 0 && !AMQP_FRAME_TYPES.contains(&bytes[at]) {
                    return None;
                }
                let step = (HEADER_LEN - have).min(bytes.len() - at);
                self.header[have..have + step].copy_from_slice(&bytes[at..at + step]);
                self.header_len += step as u8;
                at += step;
                if usize::from(self.header_len) == HEADER_LEN {
                    let [.., a, b, c, d] = self.header;
                    self.missing = u32::from_be_bytes([a, b, c, d]) as usize + OVERHEAD - HEADER_LEN;
                }
            } else {
                let step = self.missing.min(bytes.len() - at);
                self.missing -= step;
                at += step;
                if self.missing == 0 {
                    self.header_len = 0;
                    whole = at;
                }
            }
        }
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use amqp::FrameKind;
    use amqp::frame::write_frame;
    use websocket::{DecoderLimits, FrameDecoder, Role, WebSocketEvent};

    use super::*;

    fn messages(framed: &[u8]) -> Vec<Vec<u8>> {
        let mut decoder = FrameDecoder::new(Role::Client, DecoderLimits::NONE);
        let (mut messages, mut payload, mut at) = (Vec::new(), Vec::new(), 0);
        loop {
            let step = decoder.decode(&framed[at..], &mut payload).unwrap();
            at += step.taken;
            match step.event {
                None => break,
                Some(WebSocketEvent::MessageEnd) => messages.push(std::mem::take(&mut payload)),
                Some(_) => {}
            }
        }
        assert!(payload.is_empty() && !decoder.is_within_message());
        messages
    }

    fn amqp_framer() -> Framer {
        let mut framer = Framer::default();
        framer.detect_protocol(b"AM");
        framer.detect_protocol(b"QP\0\0\x09\x01\x01");
        framer
    }

    #[test]
    fn a_read_is_a_message() {
        let mut framer = Framer::default();
        framer.detect_protocol(b"CONNECT\n");
        let mut out = Vec::new();
        framer.frame(b"one", &mut out);
        framer.frame(b"two", &mut out);
        assert_eq!(messages(&out), [b"one", b"two"]);
    }

    #[test]
    fn messages_of_amqp_end_with_its_frames_however_they_come() {
        let mut stream = Vec::new();
        let mut ends = Vec::new();
        for len in [0, 4, 300, 70_000] {
            write_frame(&mut stream, FrameKind::Body, 1, |out| out.resize(out.len() + len, 7));
            ends.push(stream.len());
        }
        for step in [1, 3, 7, 8, 1000, stream.len()] {
            let (mut framer, mut out) = (amqp_framer(), Vec::new());
            stream.chunks(step).for_each(|chunk| framer.frame(chunk, &mut out));
            let messages = messages(&out);
            assert_eq!(messages.concat(), stream);
            let mut end = 0;
            for message in messages {
                end += message.len();
                assert!(ends.contains(&end), "{end} with steps of {step}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_an_amqp_frame_are_sent_as_received() {
        let (mut framer, mut out) = (amqp_framer(), Vec::new());
        framer.frame(b"AMQP\0\0\x09\x01", &mut out);
        assert_eq!(messages(&out), [b"AMQP\0\0\x09\x01"]);
    }

    #[test]
    fn an_unfinished_message_is_ended_at_eof() {
        let (mut framer, mut out) = (amqp_framer(), Vec::new());
        framer.frame(&[1, 0, 0], &mut out);
        framer.finish(&mut out);
        framer.finish(&mut out);
        assert_eq!(messages(&out), [[1, 0, 0]]);
    }
}
