//! Frames (specification section 4.2.3): a 7-byte header, the payload, and an end byte.

use crate::error::{Fault, ReplyCode};
use crate::method::{BASIC_CLASS, Method};

/// The client's first bytes, and a server's answer to any others: `AMQP`, 0, version 0-9-1.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
/// Bytes before a frame's payload: type, channel, payload length.
pub const HEADER_LEN: usize = 7;
/// Bytes of a frame besides its payload: the header and the end byte.
pub const OVERHEAD: usize = HEADER_LEN + 1;
/// The byte that ends every frame.
pub const FRAME_END: u8 = 0xCE;
/// The smallest frame_max that may be negotiated (specification section 4.2.3; RabbitMQ enforces it too).
pub const MIN_FRAME_MAX: u32 = 4096;
/// A whole heartbeat frame.
pub const HEARTBEAT: [u8; OVERHEAD] = [8, 0, 0, 0, 0, 0, 0, FRAME_END];

/// The type of a frame, its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A method and its arguments.
    Method = 1,
    /// A content header: body size and properties.
    Header = 2,
    /// A piece of a content body.
    Body = 3,
    /// A heartbeat.
    Heartbeat = 8,
}

/// A complete frame inside a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The type of the payload.
    pub kind: FrameKind,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// The bytes between header and end byte.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses the frame at the start of `input`, or returns `None` if it is not complete yet. A parsed frame takes
    /// [`Frame::wire_len`] bytes of `input`.
    ///
    /// The announced length is validated as soon as the header is there, before the caller waits for, or allocates, the
    /// payload. `frame_max` is in bytes and includes [`OVERHEAD`]; 0 means no limit. Like RabbitMQ, which writes such frames
    /// too, this accepts a payload of up to `frame_max`.
    ///
    /// # Errors
    /// 501 FRAME_ERROR for an unknown type, a payload longer than `frame_max`, or a wrong end byte.
    #[inline]
    pub fn parse(input: &'a [u8], frame_max: u32) -> Result<Option<Self>, Fault> {
        let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
            return match input.first() {
                Some(&kind) => kind_of(kind).map(|_| None),
                None => Ok(None),
            };
        };
        let kind = kind_of(header[0])?;
        let channel = u16::from_be_bytes([header[1], header[2]]);
        let length = u32::from_be_bytes([header[3], header[4], header[5], header[6]]);
        if frame_max != 0 && length > frame_max {
            return Err(Fault::new(
                ReplyCode::FrameError,
                format!(
                    "frame of {} bytes is larger than frame_max {frame_max}",
                    u64::from(length) + OVERHEAD as u64
                ),
            ));
        }
        // Widening: usize is at least 32 bits on every supported target.
        let length = length as usize;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        match rest.get(length) {
            None => Ok(None),
            Some(&FRAME_END) => Ok(Some(Self { kind, channel, payload })),
            Some(_) => Err(Fault::new(ReplyCode::FrameError, "frame does not end with 0xCE")),
        }
    }

    /// Bytes of the frame on the wire.
    #[inline]
    pub fn wire_len(&self) -> usize {
        OVERHEAD + self.payload.len()
    }

    /// The 505 UNEXPECTED_FRAME for a frame that is not allowed on its channel at this time, with RabbitMQ's text.
    pub fn unexpected(&self) -> Fault {
        let (which, snippet) = match self.payload.get(..SNIPPET_LEN) {
            Some(first) if self.payload.len() > SNIPPET_LEN => ("first 16", first),
            _ => ("all", self.payload),
        };
        let bytes: Vec<String> = snippet.iter().map(u8::to_string).collect();
        let text = format!("type {}, {which} bytes = <<{}>>", self.kind as u8, bytes.join(","));
        Fault::new(ReplyCode::UnexpectedFrame, text)
    }
}

/// Bytes of an unexpected payload that RabbitMQ shows: enough to recognise it, too little to leak much.
const SNIPPET_LEN: usize = 16;

fn kind_of(byte: u8) -> Result<FrameKind, Fault> {
    match byte {
        1 => Ok(FrameKind::Method),
        2 => Ok(FrameKind::Header),
        3 => Ok(FrameKind::Body),
        8 => Ok(FrameKind::Heartbeat),
        _ => Err(Fault::new(ReplyCode::FrameError, format!("unknown frame type {byte}"))),
    }
}

/// Appends a frame around the bytes that `payload` writes.
#[inline]
pub fn write_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    let [c0, c1] = channel.to_be_bytes();
    out.extend_from_slice(&[kind as u8, c0, c1, 0, 0, 0, 0]);
    payload(out);
    let length = out.len() - start - HEADER_LEN;
    // Callers keep payloads within frame_max, which is a u32.
    out[start + 3..start + HEADER_LEN].copy_from_slice(&(length as u32).to_be_bytes());
    out.push(FRAME_END);
}

/// Appends a method frame.
#[inline]
pub fn write_method<'a>(out: &mut Vec<u8>, channel: u16, method: impl Into<Method<'a>>) {
    let method = method.into();
    write_frame(out, FrameKind::Method, channel, |out| method.encode(out));
}

/// Appends a content header frame. `properties` are the property flags and list as they are on the wire.
#[inline]
pub fn write_content_header(out: &mut Vec<u8>, channel: u16, body_size: u64, properties: &[u8]) {
    write_frame(out, FrameKind::Header, channel, |out| {
        let [b0, b1] = BASIC_CLASS.to_be_bytes();
        out.extend_from_slice(&[b0, b1, 0, 0]);
        out.extend_from_slice(&body_size.to_be_bytes());
        out.extend_from_slice(properties);
    });
}

/// Appends one body frame. The caller splits bodies by [`max_body_payload`].
#[inline]
pub fn write_body(out: &mut Vec<u8>, channel: u16, piece: &[u8]) {
    write_frame(out, FrameKind::Body, channel, |out| out.extend_from_slice(piece));
}

/// The seven bytes before a payload of `length` bytes, for payloads that are sent without being copied.
#[inline]
pub fn header(kind: FrameKind, channel: u16, length: u32) -> [u8; HEADER_LEN] {
    let [c0, c1] = channel.to_be_bytes();
    let [l0, l1, l2, l3] = length.to_be_bytes();
    [kind as u8, c0, c1, l0, l1, l2, l3]
}

/// The most bytes of a body that fit one frame; `frame_max` 0 means no limit.
#[inline]
pub fn max_body_payload(frame_max: u32) -> usize {
    if frame_max == 0 { usize::MAX } else { frame_max as usize - OVERHEAD }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_parses() {
        let frame = Frame::parse(&HEARTBEAT, 4096).unwrap().unwrap();
        assert_eq!(frame, Frame { kind: FrameKind::Heartbeat, channel: 0, payload: b"" });
        assert_eq!(frame.wire_len(), HEARTBEAT.len());
    }

    #[test]
    fn an_oversize_frame_is_refused_by_its_header_alone() {
        let announced = header(FrameKind::Method, 0, 1 << 30);
        let fault = Frame::parse(&announced, 131_072).unwrap_err();
        assert_eq!(fault.code, ReplyCode::FrameError);
        assert!(Frame::parse(&announced, 0).unwrap().is_none(), "0 means no limit");
    }

    #[test]
    fn the_largest_frame_passes() {
        let mut out = Vec::new();
        write_body(&mut out, 3, &vec![7; max_body_payload(4096)]);
        assert_eq!(out.len(), 4096);
        let frame = Frame::parse(&out, 4096).unwrap().unwrap();
        assert_eq!((frame.channel, frame.wire_len()), (3, 4096));
    }

    #[test]
    fn a_frame_may_be_larger_by_its_own_overhead() {
        let mut out = Vec::new();
        write_frame(&mut out, FrameKind::Header, 3, |out| out.extend([7; 4096]));
        assert_eq!(Frame::parse(&out, 4096).unwrap().unwrap().wire_len(), 4104);
        let announced = header(FrameKind::Header, 3, 4097);
        assert_eq!(Frame::parse(&announced, 4096).unwrap_err().code, ReplyCode::FrameError);
    }

    #[test]
    fn a_wrong_end_byte_or_type_is_a_frame_error() {
        let mut bad_end = HEARTBEAT;
        bad_end[7] = 0;
        assert_eq!(Frame::parse(&bad_end, 0).unwrap_err().code, ReplyCode::FrameError);
        assert_eq!(Frame::parse(b"G", 0).unwrap_err().code, ReplyCode::FrameError);
    }

    #[test]
    fn every_prefix_waits_for_more() {
        let mut out = Vec::new();
        write_content_header(&mut out, 1, 5, &[0, 0]);
        for n in 0..out.len() {
            assert_eq!(Frame::parse(&out[..n], 4096), Ok(None), "{n} bytes");
        }
    }
}
