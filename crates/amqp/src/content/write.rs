//! Writing a message as frames.

use crate::frame::{OVERHEAD, max_body_payload, write_body, write_content_header, write_method};
use crate::method::Method;

/// Appends a content-carrying method, the content header, and the body in as many frames as `frame_max` (0: no limit)
/// requires. `properties` are flags and list as they are on the wire.
///
/// The header frame cannot be split: properties must fit `frame_max`, as those received within the same limit do.
#[inline]
pub fn write_content<'a>(
    out: &mut Vec<u8>,
    channel: u16,
    method: impl Into<Method<'a>>,
    properties: &[u8],
    body: &[u8],
    frame_max: u32,
) {
    let method = method.into();
    out.reserve(METHOD_ESTIMATE + content_wire_len(properties.len(), body.len(), frame_max));
    write_method(out, channel, method);
    write_content_header(out, channel, body.len() as u64, properties);
    for piece in body.chunks(piece_len(frame_max)) {
        write_body(out, channel, piece);
    }
}

/// Bytes of the longest properties whose header frame fits `frame_max` (0: no limit).
pub fn max_properties_len(frame_max: u32) -> usize {
    max_body_payload(frame_max).saturating_sub(FIXED_HEADER_LEN)
}

/// Bytes of the header and body frames on the wire.
#[inline]
fn content_wire_len(properties_len: usize, body_len: usize, frame_max: u32) -> usize {
    let pieces = body_len.div_ceil(piece_len(frame_max));
    OVERHEAD + FIXED_HEADER_LEN + properties_len + body_len + pieces * OVERHEAD
}

/// Bytes of body in a full frame. Without a limit the 32-bit length field is the limit.
fn piece_len(frame_max: u32) -> usize {
    max_body_payload(frame_max).min(u32::MAX as usize)
}

/// Bytes of a content header before the properties: class, weight, body size.
const FIXED_HEADER_LEN: usize = 12;
/// Most content-carrying methods fit into this many bytes. It is a capacity hint, not a limit.
const METHOD_ESTIMATE: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, FrameKind, MIN_FRAME_MAX};
    use crate::method::basic;
    use crate::properties::NO_PROPERTIES;

    const PIECE: usize = MIN_FRAME_MAX as usize - OVERHEAD;

    fn kinds(mut input: &[u8], frame_max: u32) -> Vec<(FrameKind, usize)> {
        let mut kinds = Vec::new();
        while let Some(frame) = Frame::parse(input, frame_max).unwrap() {
            kinds.push((frame.kind, frame.payload.len()));
            input = &input[frame.wire_len()..];
        }
        assert!(input.is_empty());
        kinds
    }

    #[test]
    fn bodies_are_split_to_frame_max() {
        for (length, pieces) in [
            (0, vec![]),
            (1, vec![1]),
            (PIECE, vec![PIECE]),
            (PIECE + 1, vec![PIECE, 1]),
            (2 * PIECE, vec![PIECE, PIECE]),
        ] {
            let mut out = Vec::new();
            let body = vec![7; length];
            write_content(&mut out, 1, basic::Publish::default(), NO_PROPERTIES, &body, MIN_FRAME_MAX);
            let frames = kinds(&out, MIN_FRAME_MAX);
            assert_eq!((frames[0].0, frames[1].0), (FrameKind::Method, FrameKind::Header));
            let bodies: Vec<usize> = frames[2..].iter().map(|(_, length)| *length).collect();
            assert_eq!(bodies, pieces, "{length} bytes");
            let method_len = OVERHEAD + frames[0].1;
            assert_eq!(out.len(), method_len + content_wire_len(NO_PROPERTIES.len(), length, MIN_FRAME_MAX));
        }
    }

    #[test]
    fn the_longest_properties_fill_a_frame() {
        let properties = vec![0; max_properties_len(MIN_FRAME_MAX)];
        let mut out = Vec::new();
        write_content_header(&mut out, 1, 0, &properties);
        assert_eq!(out.len(), MIN_FRAME_MAX as usize);
        assert!(max_properties_len(0) > u32::MAX as usize, "no limit");
    }

    #[test]
    fn without_a_limit_there_is_one_body_frame() {
        let mut out = Vec::new();
        write_content(&mut out, 1, basic::Publish::default(), NO_PROPERTIES, &vec![0; 1 << 20], 0);
        assert_eq!(kinds(&out, 0)[2..], [(FrameKind::Body, 1 << 20)]);
    }
}
