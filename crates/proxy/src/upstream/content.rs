//! Messages for clients: passed on whole unless large, with delivery tags translated to the client's.

use amqp::frame::HEADER_LEN;
use amqp::{Frame, FrameKind};

use super::client_batch::ClientBatch;
use super::ledger::{has_headers, stream_offset};
use super::slot::{Lease, PartialDelivery};
use crate::link::Event;

/// Whether a method is basic.return, basic.deliver or basic.get-ok: it is passed on as it is, with its content.
#[inline]
pub(super) fn carries_content(payload: &[u8]) -> bool {
    matches!(payload, [0, 60, 0, 50 | 60 | 71, ..])
}

/// Whether to wait until the message at the start of `input` is complete, so that a client is not left with
/// half a message when the connection is lost. Large messages, and those interleaved with other frames, are
/// passed on as they arrive.
#[inline]
pub(super) fn is_worth_waiting_for(input: &[u8]) -> bool {
    let Some(head) = input.first_chunk::<HEADER_LEN>() else { return false };
    let channel = [head[1], head[2]];
    let (mut at, mut missing) = (0, None::<u64>);
    while let Some(head) = input.get(at..).and_then(|rest| rest.first_chunk::<HEADER_LEN>()) {
        if [head[1], head[2]] != channel || (at > 0 && head[0] == FrameKind::Method as u8) {
            return false;
        }
        let payload_at = at + HEADER_LEN;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let end = payload_at + length + 1;
        if end > MAX_BUFFERED {
            return false;
        }
        if head[0] == FrameKind::Header as u8 {
            let Some(size) = input.get(payload_at + 4..).and_then(|rest| rest.first_chunk()) else { break };
            missing = Some(u64::from_be_bytes(*size));
        } else if head[0] == FrameKind::Body as u8 {
            missing = missing.map(|missing| missing.saturating_sub(length as u64));
        }
        if missing.is_some_and(|missing| missing.saturating_add(end as u64) > MAX_BUFFERED as u64) {
            return false;
        }
        if end > input.len() {
            break;
        }
        if missing == Some(0) {
            return false;
        }
        at = end;
    }
    true
}

impl Lease {
    /// Passes on a method that content follows. `behind` is the input received after it.
    #[inline]
    pub(super) fn begin_content(
        &mut self,
        batch: &mut ClientBatch,
        frame: &Frame<'_>,
        wire: &[u8],
        behind: &[u8],
    ) {
        self.missing = PartialDelivery::Header;
        self.dropping = frame.payload.starts_with(&DELIVER) && self.overflows(batch, announced(behind));
        self.consumer_tag.clear();
        if may_have_headers(frame.channel, behind) {
            // The consumer tag is needed if the headers contain a stream offset.
            self.consumer_tag.extend_from_slice(consumer_tag(frame.payload));
        }
        if self.dropping {
            return;
        }
        batch.messages += 1;
        let Some(at) = delivery_tag_at(frame.payload) else { return batch.add_wire(self, frame, wire) };
        let tag = frame.payload.get(at..).and_then(|rest| rest.first_chunk()).copied();
        if let Some(tag) = tag {
            self.ledger.delivered(u64::from_be_bytes(tag));
        }
        if frame.payload.starts_with(&GET_OK) {
            self.replied();
            self.ledger.answered(None, None);
        }
        if self.delivery_offset == 0 {
            batch.add_wire(self, frame, wire);
        } else {
            let tag = u64::from_be_bytes(tag.unwrap_or_default());
            batch.add_delivery(self, wire, at, tag.wrapping_add(self.delivery_offset));
        }
    }

    /// Whether a delivery of this size must be withheld because the client's backlog would exceed its bound
    /// on a shared connection (P3).
    #[inline]
    fn overflows(&mut self, batch: &ClientBatch, size: u64) -> bool {
        if !self.overflowed && batch.is_over_budget(&self.link, size) {
            self.overflowed = true;
            let (channel, lease) = (self.client_channel, self.id);
            self.link.notify(Event::DeliveriesOverflowed { channel, lease });
        }
        self.overflowed
    }

    /// Passes on a content frame.
    #[inline]
    pub(super) fn forward_content(&mut self, batch: &mut ClientBatch, frame: &Frame<'_>, wire: &[u8]) {
        let missing = match self.missing {
            PartialDelivery::Header => frame
                .payload
                .get(4..)
                .and_then(|rest| rest.first_chunk())
                .map_or(0, |size| u64::from_be_bytes(*size)),
            PartialDelivery::Body(missing) => missing.saturating_sub(frame.payload.len() as u64),
            PartialDelivery::Nothing => 0,
        };
        self.missing = if missing == 0 { PartialDelivery::Nothing } else { PartialDelivery::Body(missing) };
        if frame.kind == FrameKind::Header
            && !self.consumer_tag.is_empty()
            && let Some(offset) = stream_offset(frame.payload)
        {
            self.ledger.record_offset(&self.consumer_tag, offset, !self.dropping);
        }
        if !self.dropping {
            batch.add_wire(self, frame, wire);
        }
    }
}

/// Bytes of the body that the content header at the start of `input` announces; 0 if there is none.
#[inline]
fn announced(input: &[u8]) -> u64 {
    match input.split_at_checked(HEADER_LEN + BODY_SIZE_AT) {
        Some((head, rest)) if head[0] == FrameKind::Header as u8 => {
            rest.first_chunk().map_or(0, |size| u64::from_be_bytes(*size))
        }
        _ => 0,
    }
}

/// Whether the message whose method was received before `input` may have headers. False for most messages, because
/// their content header is usually in `input` already.
#[inline]
fn may_have_headers(channel: u16, input: &[u8]) -> bool {
    match input.split_at_checked(HEADER_LEN) {
        Some(([kind, high, low, ..], payload))
            if *kind == FrameKind::Header as u8 && u16::from_be_bytes([*high, *low]) == channel =>
        {
            has_headers(payload).unwrap_or(true)
        }
        _ => true,
    }
}

/// Offset of the delivery tag in the payload of a method: behind the consumer tag of a basic.deliver.
#[inline]
fn delivery_tag_at(payload: &[u8]) -> Option<usize> {
    match payload {
        [0, 60, 0, 60, length, ..] => Some(5 + usize::from(*length)),
        [0, 60, 0, 71, ..] => Some(4),
        _ => None,
    }
}

/// The consumer tag of a basic.deliver; empty for other methods.
#[inline]
fn consumer_tag(payload: &[u8]) -> &[u8] {
    match payload.strip_prefix(&DELIVER) {
        Some([length, rest @ ..]) => rest.get(..usize::from(*length)).unwrap_or_default(),
        _ => &[],
    }
}

/// Offset of the body size in the payload of a content header: behind class and weight.
const BODY_SIZE_AT: usize = 4;
/// Class and method id of basic.deliver.
const DELIVER: [u8; 4] = [0, 60, 0, 60];
/// Class and method id of basic.get-ok.
const GET_OK: [u8; 4] = [0, 60, 0, 71];
/// Bytes of a message, frames included, up to which it is held until complete: the read loop's buffer limit
/// for a protocol.
const MAX_BUFFERED: usize = transport::MAX_UNCONSUMED;

#[cfg(test)]
mod tests {
    use amqp::frame::{write_content_header, write_frame, write_method};
    use amqp::method::basic;
    use amqp::properties::NO_PROPERTIES;
    use amqp::{FieldTable, FieldValue, Properties, RawTable};

    use super::*;

    fn message(size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        write_method(
            &mut out,
            3,
            basic::Deliver { consumer_tag: "tag", delivery_tag: 9, ..Default::default() },
        );
        write_content_header(&mut out, 3, size as u64, NO_PROPERTIES);
        for piece in vec![0; size].chunks(4000) {
            write_frame(&mut out, FrameKind::Body, 3, |out| out.extend_from_slice(piece));
        }
        out
    }

    #[test]
    fn an_incomplete_message_is_held_unless_it_is_large_or_interleaved() {
        let whole = message(9000);
        for cut in HEADER_LEN..whole.len() {
            assert!(is_worth_waiting_for(&whole[..cut]), "{cut} bytes");
        }
        assert!(!is_worth_waiting_for(&whole));
        assert!(!is_worth_waiting_for(&message(0)));
        assert!(!is_worth_waiting_for(&message(MAX_BUFFERED)[..1000]), "too large");
        let method = whole.iter().position(|byte| *byte == amqp::frame::FRAME_END).unwrap() + 1;
        let mut mixed = whole[..method].to_vec();
        write_method(&mut mixed, 4, basic::QosOk {});
        assert!(!is_worth_waiting_for(&mixed), "a frame of another channel comes between");
    }

    #[test]
    fn a_message_may_have_headers_unless_its_content_header_is_there_and_has_none() {
        let header = |properties: Properties<'_>| {
            let (mut encoded, mut out) = (Vec::new(), Vec::new());
            properties.encode(&mut encoded);
            write_content_header(&mut out, 3, 1, &encoded);
            out
        };
        let headers = FieldTable::from_iter([("n", FieldValue::I32(7))]).encode();
        let with = header(Properties::default().with_headers(RawTable::check(&headers).unwrap()));
        let without = header(Properties::default());
        assert!(may_have_headers(3, &with));
        assert!(!may_have_headers(3, &without));
        assert!(may_have_headers(4, &without), "the content header is of another channel");
        assert!(may_have_headers(3, &without[..HEADER_LEN + 12]), "incomplete");
        assert!(may_have_headers(3, &[]), "not received yet");
    }

    #[test]
    fn the_delivery_tag_is_found() {
        let deliver = message(0);
        let payload = &deliver[HEADER_LEN..];
        let at = delivery_tag_at(payload).unwrap();
        assert_eq!(payload[at..at + 8], 9u64.to_be_bytes());
        assert_eq!(delivery_tag_at(&[0, 60, 0, 50, 0]), None);
    }
}
