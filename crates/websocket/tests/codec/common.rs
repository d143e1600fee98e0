//! Feeds a decoder in pieces and collects its events.

use websocket::{
    CloseFrame, DecoderLimits, FrameDecoder, MAX_INFLATED, MessageKind, Role, WebSocketEvent, WebSocketFault,
};

/// A peer's messages and control frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A text message.
    Text(Vec<u8>),
    /// A binary message.
    Binary(Vec<u8>),
    /// A ping and its payload.
    Ping(Vec<u8>),
    /// A pong and its payload.
    Pong(Vec<u8>),
    /// The close frame.
    Close(Option<CloseFrame>),
}

/// Decodes everything in `input`, passing in `step` more bytes at a time, up to the first fault.
pub fn hear(
    role: Role,
    limits: DecoderLimits,
    input: &[u8],
    step: usize,
) -> (Vec<Heard>, Option<WebSocketFault>) {
    hear_with(FrameDecoder::new(role, limits), input, step)
}

/// The same with permessage-deflate negotiated.
pub fn hear_deflated(
    role: Role,
    limits: DecoderLimits,
    input: &[u8],
    step: usize,
) -> (Vec<Heard>, Option<WebSocketFault>) {
    hear_with(FrameDecoder::new(role, limits).with_deflate(true), input, step)
}

fn hear_with(mut decoder: FrameDecoder, input: &[u8], step: usize) -> (Vec<Heard>, Option<WebSocketFault>) {
    let (mut heard, mut payload, mut kind) = (Vec::new(), Vec::new(), None);
    let (mut start, mut end) = (0, 0);
    while end < input.len() {
        end = (end + step).min(input.len());
        loop {
            let before = payload.len();
            let step = match decoder.decode(&input[start..end], &mut payload) {
                Ok(step) => step,
                Err(fault) => return (heard, Some(fault)),
            };
            start += step.taken;
            assert!(
                payload.len() - before <= MAX_INFLATED.max(end - start + step.taken),
                "more than a call may give"
            );
            let Some(event) = step.event else { break };
            heard.push(match event {
                WebSocketEvent::More => continue,
                WebSocketEvent::MessageStart(begun) => {
                    assert!(payload.is_empty());
                    kind = Some(begun);
                    continue;
                }
                WebSocketEvent::MessageEnd => match kind.take().expect("a message was begun") {
                    MessageKind::Text => Heard::Text(std::mem::take(&mut payload)),
                    MessageKind::Binary => Heard::Binary(std::mem::take(&mut payload)),
                },
                WebSocketEvent::Ping(control) => Heard::Ping(control.payload().to_vec()),
                WebSocketEvent::Pong(control) => Heard::Pong(control.payload().to_vec()),
                WebSocketEvent::Close(frame) => Heard::Close(frame),
            });
        }
    }
    (heard, None)
}

/// The same from a client, without limits, in one piece.
pub fn hear_client(input: &[u8]) -> (Vec<Heard>, Option<WebSocketFault>) {
    hear(Role::Server, DecoderLimits::NONE, input, input.len().max(1))
}

/// A client's frame with this first byte and payload.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..=125 => bytes.push(0x80 | len as u8),
        len @ 126..=65535 => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(key);
    bytes.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]));
    bytes
}
