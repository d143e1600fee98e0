//! A message whose frames are next to each other in the receive buffer, as those of small messages usually are.

use super::check_size;
use crate::error::Fault;
use crate::frame::{Frame, FrameKind};
use crate::properties::ContentHeader;

/// Header and body of a message, borrowed from the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole<'a> {
    /// Property flags and list as they are on the wire, not validated.
    pub properties: &'a [u8],
    /// The body, complete in one frame or empty.
    pub body: &'a [u8],
    /// Bytes of the header and body frame on the wire.
    pub wire_len: usize,
}

impl<'a> Whole<'a> {
    /// Looks at `input`, which starts after a content-carrying method on `channel`, for a header frame and, unless
    /// the message is empty, one frame with the whole body.
    ///
    /// Returns `None` for any other input (incomplete, split, interleaved or malformed). Its frames then go through an
    /// [`super::Assembler`], which waits for more or reports the fault.
    ///
    /// # Errors
    /// A body that is too large ([`check_size`]), or an error of [`Frame::parse`].
    #[inline]
    pub fn peek(input: &'a [u8], channel: u16, frame_max: u32, max_size: u64) -> Result<Option<Self>, Fault> {
        let Some(frame) = Frame::parse(input, frame_max)? else { return Ok(None) };
        if frame.kind != FrameKind::Header || frame.channel != channel {
            return Ok(None);
        }
        let Ok(header) = ContentHeader::decode(frame.payload) else { return Ok(None) };
        if !header.is_valid() {
            return Ok(None);
        }
        check_size(header.body_size, max_size)?;
        let properties = header.properties;
        let header_len = frame.wire_len();
        if header.body_size == 0 {
            return Ok(Some(Self { properties, body: &[], wire_len: header_len }));
        }
        let Some(frame) = Frame::parse(&input[header_len..], frame_max)? else { return Ok(None) };
        let is_it = frame.kind == FrameKind::Body
            && frame.channel == channel
            && frame.payload.len() as u64 == header.body_size;
        Ok(is_it.then(|| Self { properties, body: frame.payload, wire_len: header_len + frame.wire_len() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReplyCode;
    use crate::frame::{write_body, write_content_header};
    use crate::properties::NO_PROPERTIES;

    fn message(body_size: u64, pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        write_content_header(&mut out, 1, body_size, NO_PROPERTIES);
        pieces.iter().for_each(|piece| write_body(&mut out, 1, piece));
        out
    }

    #[test]
    fn a_small_message_is_borrowed() {
        let mut input = message(5, &[b"hello"]);
        let wire_len = input.len();
        input.extend_from_slice(b"\x01\0\x01");
        let whole = Whole { properties: NO_PROPERTIES, body: b"hello", wire_len };
        assert_eq!(Whole::peek(&input, 1, 4096, 100), Ok(Some(whole)));
        let empty = message(0, &[]);
        let whole = Whole { properties: NO_PROPERTIES, body: b"", wire_len: empty.len() };
        assert_eq!(Whole::peek(&empty, 1, 4096, 100), Ok(Some(whole)));
    }

    #[test]
    fn anything_else_is_left_to_the_assembler() {
        let whole = message(5, &[b"hello"]);
        for n in 0..whole.len() {
            assert_eq!(Whole::peek(&whole[..n], 1, 4096, 100), Ok(None), "{n} bytes");
        }
        assert_eq!(Whole::peek(&whole, 2, 4096, 100), Ok(None), "another channel");
        assert_eq!(Whole::peek(&message(5, &[b"hel", b"lo"]), 1, 4096, 100), Ok(None), "split");
        assert_eq!(Whole::peek(&message(5, &[b"hello!"]), 1, 4096, 100), Ok(None), "too long");
    }

    #[test]
    fn limits_hold() {
        let fault = Whole::peek(&message(5, &[]), 1, 4096, 4).unwrap_err();
        assert_eq!(fault.code, ReplyCode::PreconditionFailed);
    }
}
