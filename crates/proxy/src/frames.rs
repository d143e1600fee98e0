//! Forwarding of frames: with another channel number in the header, and bodies split to the receiver's frame_max.

use amqp::frame::{FRAME_END, HEADER_LEN, OVERHEAD, header, max_body_payload};
use amqp::{Fault, FrameKind, ReplyCode};

/// Appends a frame for `channel` of a receiver with this `frame_max`; a body is split if necessary.
#[inline]
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16, payload: &[u8], frame_max: u32) {
    if kind == FrameKind::Body && payload.len() > max_body_payload(frame_max) {
        for piece in payload.chunks(max_body_payload(frame_max)) {
            put_whole(out, kind, channel, piece);
        }
    } else {
        put_whole(out, kind, channel, payload);
    }
}

/// Appends a copy of a frame in wire format, with another channel number.
#[inline]
pub(crate) fn copy_frame(out: &mut Vec<u8>, wire: &[u8], channel: u16) {
    let start = out.len();
    out.extend_from_slice(wire);
    if let Some(number) = out.get_mut(start + 1..start + 3) {
        number.copy_from_slice(&channel.to_be_bytes());
    }
}

#[inline]
fn put_whole(out: &mut Vec<u8>, kind: FrameKind, channel: u16, payload: &[u8]) {
    out.reserve(payload.len() + OVERHEAD);
    // A payload came in a frame, whose length field is a u32.
    out.extend_from_slice(&header(kind, channel, payload.len() as u32));
    out.extend_from_slice(payload);
    out.push(FRAME_END);
}

/// Checks whether a frame that cannot be split fits the upstream's frame_max.
///
/// # Errors
/// 501 FRAME_ERROR.
#[inline]
pub(crate) fn check_fits(kind: FrameKind, payload: &[u8], frame_max: u32) -> Result<(), Fault> {
    if kind == FrameKind::Body || payload.len() <= max_body_payload(frame_max) {
        return Ok(());
    }
    let length = payload.len() + OVERHEAD;
    let text = format!("frame of {length} bytes is larger than the upstream's frame_max {frame_max}");
    Err(Fault::new(ReplyCode::FrameError, text))
}

/// The frames in `bytes`, which [`put_frame`] wrote: kind and payload of each.
pub(crate) fn stored_frames(mut bytes: &[u8]) -> impl Iterator<Item = (FrameKind, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        bytes = rest.get(1..)?;
        let kind = match head[0] {
            1 => FrameKind::Method,
            2 => FrameKind::Header,
            _ => FrameKind::Body,
        };
        Some((kind, payload))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_split_to_the_receivers_frame_max_and_nothing_else_is() {
        let body: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        let mut out = Vec::new();
        put_frame(&mut out, FrameKind::Body, 7, &body, 4096);
        let pieces: Vec<_> = stored_frames(&out).collect();
        assert_eq!(pieces.iter().map(|(_, piece)| piece.len()).collect::<Vec<_>>(), [4088, 4088, 1824]);
        assert_eq!(pieces.concat_payloads(), body);

        out.clear();
        put_frame(&mut out, FrameKind::Header, 7, &body, 4096);
        assert_eq!(stored_frames(&out).count(), 1);
        assert!(check_fits(FrameKind::Header, &body, 4096).is_err());
        assert!(check_fits(FrameKind::Header, &body, 0).is_ok(), "0 means no limit");
    }

    trait Concat {
        fn concat_payloads(&self) -> Vec<u8>;
    }

    impl Concat for Vec<(FrameKind, &[u8])> {
        fn concat_payloads(&self) -> Vec<u8> {
            self.iter().flat_map(|(_, piece)| piece.iter().copied()).collect()
        }
    }

    #[test]
    fn a_copied_frame_differs_in_its_channel_only() {
        let (mut wire, mut expected, mut out) = (Vec::new(), b"before".to_vec(), b"before".to_vec());
        put_frame(&mut wire, FrameKind::Body, 7, b"body", 0);
        put_frame(&mut expected, FrameKind::Body, 700, b"body", 0);
        copy_frame(&mut out, &wire, 700);
        assert_eq!(out, expected);
    }

    #[test]
    fn an_empty_body_frame_stays_one_frame() {
        let mut out = Vec::new();
        put_frame(&mut out, FrameKind::Body, 1, b"", 4096);
        assert_eq!(stored_frames(&out).collect::<Vec<_>>(), [(FrameKind::Body, &b""[..])]);
    }
}
