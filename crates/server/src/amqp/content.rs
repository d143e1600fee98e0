//! Encodes messages: basic.deliver, basic.get-ok and basic.return with their content.

use amqp::frame::{self, FRAME_END, FrameKind};
use amqp::method::{Method, basic};
use broker::{Body, BodyView, Delivery, Queue};
use transport::OutBuf;

/// The channel that a message is written to, and its frame size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination {
    pub(crate) channel: u16,
    /// The negotiated maximum frame size, in bytes.
    pub(crate) frame_max: u32,
}

/// Appends basic.deliver with its content.
pub(crate) fn write_deliver(
    buf: &mut OutBuf,
    to: Destination,
    consumer_tag: &str,
    delivery_tag: u64,
    delivery: &Delivery,
    from: &Queue,
) {
    let message = delivery.message();
    let deliver = basic::Deliver {
        consumer_tag,
        delivery_tag,
        redelivered: delivery.redelivered(),
        exchange: message.exchange(),
        routing_key: message.routing_key(),
    };
    write_message(buf, to, deliver.into(), &delivery.properties(from, false), message.body());
}

/// A view of a received body, for sending.
pub(crate) fn view<'a>(body: &'a Body<'a>) -> BodyView<'a> {
    match body {
        Body::Copied(bytes) => BodyView::Inline(bytes),
        Body::Chunks(chunks) => BodyView::Chunks(chunks),
    }
}

/// Appends a method that carries content, the content header, and the body in frames of at most `frame_max` bytes.
pub(crate) fn write_message(
    buf: &mut OutBuf,
    to: Destination,
    method: Method<'_>,
    properties: &[u8],
    body: BodyView<'_>,
) {
    let tail = buf.tail();
    frame::write_method(tail, to.channel, method);
    let max_piece = frame::max_body_payload(to.frame_max);
    match body {
        BodyView::Inline(bytes) => {
            frame::write_content_header(tail, to.channel, bytes.len() as u64, properties);
            for piece in bytes.chunks(max_piece) {
                frame::write_body(tail, to.channel, piece);
            }
        }
        BodyView::Chunks(chunks) => {
            let length: usize = chunks.iter().map(bytes::Bytes::len).sum();
            frame::write_content_header(tail, to.channel, length as u64, properties);
            for chunk in chunks {
                let mut rest = chunk.clone();
                while !rest.is_empty() {
                    let piece = rest.split_to(rest.len().min(max_piece));
                    // Cannot truncate: a piece fits into a frame, whose length is a u32.
                    let header = frame::header(FrameKind::Body, to.channel, piece.len() as u32);
                    buf.tail().extend_from_slice(&header);
                    buf.push(piece);
                    buf.tail().push(FRAME_END);
                }
            }
        }
    }
}
