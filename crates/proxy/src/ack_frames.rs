//! Runs of consecutive `basic.ack` frames: a client's acknowledgements, or a broker's confirms.

use amqp::frame::{FRAME_END, HEADER_LEN, OVERHEAD};
use amqp::method::{BASIC_CLASS, basic};

/// Whether the payload of a method frame is a well-formed `basic.ack`.
#[inline]
pub(crate) fn is_ack(payload: &[u8]) -> bool {
    payload.len() == ACK_LEN && payload.starts_with(&[0, BASIC_CLASS as u8, 0, 80])
}

/// The run of acknowledgements on channel `number` at the start of `input`.
#[inline]
pub(crate) fn acks_in(number: u16, mut input: &[u8]) -> impl Iterator<Item = basic::Ack> {
    let [high, low] = number.to_be_bytes();
    let header = [1, high, low, 0, 0, 0, ACK_LEN as u8];
    std::iter::from_fn(move || {
        let (frame, behind) = input.split_first_chunk::<WIRE_LEN>()?;
        let payload = &frame[HEADER_LEN..WIRE_LEN - 1];
        if !frame.starts_with(&header) || frame[WIRE_LEN - 1] != FRAME_END || !is_ack(payload) {
            return None;
        }
        input = behind;
        Some(decode(payload))
    })
}

/// Decodes the payload of a well-formed `basic.ack`.
#[inline]
pub(crate) fn decode(payload: &[u8]) -> basic::Ack {
    let tag = payload.get(TAG_AT..).and_then(|rest| rest.first_chunk());
    basic::Ack {
        delivery_tag: tag.map_or(0, |tag| u64::from_be_bytes(*tag)),
        multiple: payload.last().is_some_and(|bits| bits & MULTIPLE != 0),
    }
}

/// Bytes of a `basic.ack`: class, method, delivery tag, one byte of bits.
const ACK_LEN: usize = 13;
/// Bytes of a `basic.ack` on the wire.
pub(crate) const WIRE_LEN: usize = ACK_LEN + OVERHEAD;
/// Offset of the delivery tag in the payload, behind class and method.
const TAG_AT: usize = 4;
const MULTIPLE: u8 = 1;

#[cfg(test)]
mod tests {
    use amqp::FrameKind;
    use amqp::frame::write_method;

    use super::*;

    fn ack(channel: u16, delivery_tag: u64, multiple: bool) -> Vec<u8> {
        let mut out = Vec::new();
        write_method(&mut out, channel, basic::Ack { delivery_tag, multiple });
        out
    }

    fn tags(input: &[u8]) -> Vec<(u64, bool)> {
        acks_in(3, input).map(|ack| (ack.delivery_tag, ack.multiple)).collect()
    }

    #[test]
    fn an_incomplete_acknowledgement_at_the_end_is_left_out() {
        let bytes = [ack(3, 1, false), ack(3, u64::MAX, true)].concat();
        assert_eq!(bytes.len(), 2 * WIRE_LEN);
        let all = [(1, false), (u64::MAX, true)];
        for cut in 0..=bytes.len() {
            assert_eq!(tags(&bytes[..cut]), all[..cut / WIRE_LEN], "{cut} bytes");
        }
        assert_eq!(tags(&[&bytes[..], b"more"].concat()), all);
    }

    #[test]
    fn a_run_of_acknowledgements_ends_at_any_other_frame() {
        let changed = |at: usize, value: u8| {
            let mut frame = ack(3, 2, false);
            frame[at] = value;
            frame
        };
        let mut nack = Vec::new();
        write_method(&mut nack, 3, basic::Nack { delivery_tag: 2, multiple: false, requeue: false });
        let mut shorter = changed(6, 12);
        shorter.remove(WIRE_LEN - 2);
        let mut longer = changed(6, 14);
        longer.insert(WIRE_LEN - 1, 0);
        let others = [
            ("another channel", ack(4, 2, false)),
            ("another channel by its high byte", ack(0x103, 2, false)),
            ("a header", changed(0, FrameKind::Header as u8)),
            ("a wrong end", changed(WIRE_LEN - 1, 0)),
            ("length 14 of a frame of 13", changed(6, 14)),
            ("length 14", longer),
            ("length 12", shorter),
            ("a length of four bytes", changed(3, 1)),
            ("nack", nack),
        ];
        for (what, other) in others {
            let bytes = [ack(3, 1, false), other, ack(3, 3, false)].concat();
            assert_eq!(tags(&bytes), [(1, false)], "{what}");
        }
    }
}
