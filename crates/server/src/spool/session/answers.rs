//! Answers to the client: the upstream's, with confirms renumbered to the client's numbers, and the spool's own.

use std::sync::Arc;

use amqp::Method;
use amqp::frame::{self, Frame, FrameKind};
use amqp::method::basic;
use spool::Answer;
use transport::Outbox;

use super::channels::SpoolChannels;
use super::contents::UnfinishedContents;

/// Class and method ids of the methods that are inspected.
const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];
const BASIC_ACK: [u8; 4] = [0, 60, 0, 80];
const BASIC_NACK: [u8; 4] = [0, 60, 0, 120];

/// Passes complete frames of the upstream's session to the client, except those for which `passes` is false. Returns
/// their bytes.
pub(super) fn pass(
    bytes: &[u8],
    (channels, contents): (&mut SpoolChannels, &mut UnfinishedContents),
    outbox: &Arc<Outbox>,
    mut passes: impl FnMut(&Frame<'_>) -> bool,
) -> usize {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut taken, mut copied) = (0, 0);
    // The frames come from this process, so their size need not be limited.
    while let Ok(Some(frame)) = Frame::parse(&bytes[taken..], 0) {
        let from = taken;
        taken += frame.wire_len();
        // The client has received the beginning of this content.
        if contents.continues(&frame) {
            if let Some(answers) = contents.passed(&frame) {
                out.extend_from_slice(&bytes[copied..taken]);
                out.extend_from_slice(&answers);
                copied = taken;
            }
            continue;
        }
        if let Some(answers) = contents.abort_content(frame.channel) {
            out.extend_from_slice(&bytes[copied..from]);
            out.extend_from_slice(&answers);
            copied = from;
        }
        if !passes(&frame) {
            out.extend_from_slice(&bytes[copied..from]);
            copied = taken;
            continue;
        }
        if frame.kind != FrameKind::Method {
            continue;
        }
        if carries_content(frame.payload) {
            contents.begin(frame.channel);
            continue;
        }
        if frame.payload.starts_with(&CHANNEL_CLOSE) {
            channels.remove(frame.channel);
            continue;
        }
        let is_confirm = frame.payload.starts_with(&BASIC_ACK) || frame.payload.starts_with(&BASIC_NACK);
        if is_confirm && channels.get_mut(frame.channel).is_none() {
            // The client is closing this channel: its confirms are forgotten, and it expects close-ok only.
            out.extend_from_slice(&bytes[copied..from]);
            copied = taken;
            continue;
        }
        if is_confirm && translate(frame, channels, &mut out, &bytes[copied..from]) {
            copied = taken;
        }
    }
    out.extend_from_slice(&bytes[copied..taken]);
    if !out.is_empty() {
        outbox.append(|buf| buf.tail().extend_from_slice(&out));
    }
    taken
}

/// Appends the frames `before` a confirm, and the confirm in the client's numbers. Returns false if the confirm is passed
/// unchanged.
fn translate(frame: Frame<'_>, channels: &mut SpoolChannels, out: &mut Vec<u8>, before: &[u8]) -> bool {
    let number = frame.channel;
    let Some(confirms) = channels.get_mut(number).and_then(|channel| channel.confirms()) else {
        return false;
    };
    match Method::decode(frame.payload) {
        Ok(Method::BasicAck(ack)) => {
            out.extend_from_slice(before);
            confirms.settle_direct(ack.delivery_tag, ack.multiple, |answer| write_ack(out, number, answer));
        }
        Ok(Method::BasicNack(nack)) => {
            out.extend_from_slice(before);
            confirms.settle_direct(nack.delivery_tag, nack.multiple, |answer| {
                let Answer { delivery_tag, multiple } = answer;
                frame::write_method(
                    out,
                    number,
                    basic::Nack { delivery_tag, multiple, requeue: nack.requeue },
                );
            });
        }
        _ => return false,
    }
    true
}

/// Whether a method is basic.return, basic.deliver or basic.get-ok.
fn carries_content(payload: &[u8]) -> bool {
    matches!(payload, [0, 60, 0, 50 | 60 | 71, ..])
}

fn write_ack(out: &mut Vec<u8>, channel: u16, answer: Answer) {
    let Answer { delivery_tag, multiple } = answer;
    frame::write_method(out, channel, basic::Ack { delivery_tag, multiple });
}
