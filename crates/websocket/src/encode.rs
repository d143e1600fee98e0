//! Encoding of outgoing frames. A client passes a masking key, fresh and unpredictable for each frame (RFC 6455, 5.3);
//! a server passes none.

use crate::close::{CloseCode, fitting};
use crate::decode::MessageKind;
use crate::deflate::Deflate;
use crate::frame::{FrameHeader, MAX_CONTROL_PAYLOAD, MAX_HEADER_LEN, Opcode};
use crate::mask::mask;

/// Appends a whole message in one frame.
pub fn message(out: &mut Vec<u8>, key: Option<[u8; 4]>, kind: MessageKind, payload: &[u8]) {
    fragment(out, key, Some(kind), true, payload);
}

/// Appends a whole message in one frame, compressed if that makes it shorter.
pub fn deflated_message(
    out: &mut Vec<u8>,
    key: Option<[u8; 4]>,
    kind: MessageKind,
    deflate: Deflate,
    payload: &[u8],
) {
    let mut compressed = Vec::new();
    if deflate.compress(std::iter::once(payload), &mut compressed) {
        let opcode = if kind == MessageKind::Text { Opcode::Text } else { Opcode::Binary };
        let len = compressed.len() as u64;
        frame(out, FrameHeader { opcode, fin: true, compressed: true, mask: key, len }, &compressed);
    } else {
        message(out, key, kind, payload);
    }
}

/// Appends one frame of a message: the first one if `kind` is given, and otherwise a continuation; `fin` makes it the
/// last.
pub fn fragment(
    out: &mut Vec<u8>,
    key: Option<[u8; 4]>,
    begins: Option<MessageKind>,
    fin: bool,
    payload: &[u8],
) {
    let opcode = match begins {
        Some(MessageKind::Text) => Opcode::Text,
        Some(MessageKind::Binary) => Opcode::Binary,
        None => Opcode::Continuation,
    };
    frame(out, FrameHeader { opcode, fin, compressed: false, mask: key, len: payload.len() as u64 }, payload);
}

/// Appends a ping. Only the first 125 bytes of `payload` are sent.
pub fn ping(out: &mut Vec<u8>, key: Option<[u8; 4]>, payload: &[u8]) {
    control(out, key, Opcode::Ping, payload);
}

/// Appends a pong. Only the first 125 bytes of `payload` are sent.
pub fn pong(out: &mut Vec<u8>, key: Option<[u8; 4]>, payload: &[u8]) {
    control(out, key, Opcode::Pong, payload);
}

/// Appends a close frame. A reason that does not fit is cut between characters.
pub fn close(out: &mut Vec<u8>, key: Option<[u8; 4]>, code: CloseCode, reason: &str) {
    let mut payload = code.get().to_be_bytes().to_vec();
    payload.extend_from_slice(fitting(reason).as_bytes());
    control(out, key, Opcode::Close, &payload);
}

/// Appends a close frame without code and reason.
pub fn empty_close(out: &mut Vec<u8>, key: Option<[u8; 4]>) {
    control(out, key, Opcode::Close, &[]);
}

fn control(out: &mut Vec<u8>, key: Option<[u8; 4]>, opcode: Opcode, payload: &[u8]) {
    let payload = &payload[..payload.len().min(MAX_CONTROL_PAYLOAD)];
    frame(
        out,
        FrameHeader { opcode, fin: true, compressed: false, mask: key, len: payload.len() as u64 },
        payload,
    );
}

fn frame(out: &mut Vec<u8>, header: FrameHeader, payload: &[u8]) {
    out.reserve(MAX_HEADER_LEN + payload.len());
    out.extend_from_slice(header.encode().as_ref());
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = header.mask {
        mask(key, &mut out[start..]);
    }
}
