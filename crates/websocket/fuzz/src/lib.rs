//! The checks of the fuzz targets. `tests/codec/fuzz_corpus.rs` includes this file and runs the same bodies without
//! nightly.
//!
//! Run one with the real fuzzer: `cargo +nightly fuzz run frames` in `crates/websocket`.

use websocket::handshake::{ClientRequest, Head, HeadError, MAX_HEAD, OriginPattern, Upgrade};
use websocket::{
    DecoderLimits, Deflate, FrameDecoder, FrameHeader, MAX_INFLATED, Role, WebSocketEvent, WebSocketFault,
    forwarded,
};

/// Limit of messages, in bytes.
const LIMITS: DecoderLimits = DecoderLimits { message: 10_000 };

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets, by name.
pub const TARGETS: [Target; 3] = [("frames", frames), ("deflated", deflated), ("request", request)];

/// Payload, events and faults do not depend on how a stream was split into reads, and the payload is never longer than the
/// input.
pub fn frames(input: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let reported = |step| reported(FrameDecoder::new(role, LIMITS), input, step);
        let whole = reported(input.len().max(1));
        assert!(whole.1.len() <= input.len());
        for step in [1, 7, 64] {
            assert_eq!(reported(step), whole, "{step} bytes at a time");
        }
    }
    if let Ok(Some((header, len))) = FrameHeader::parse(input, false) {
        assert_eq!(header.encode().as_ref(), &input[..len]);
    }
}

/// The same with compression allowed, except that the first fault may depend on the cut. No message is larger than the
/// limit.
pub fn deflated(input: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let reported = |step| {
            let decoder = FrameDecoder::new(role, LIMITS).with_deflate(true);
            let (events, payload, fault) = reported(decoder, input, step);
            (events, payload, fault.is_some())
        };
        let whole = reported(input.len().max(1));
        let mut begin = 0;
        for (end, event) in &whole.0 {
            assert!((end - begin) as u64 <= LIMITS.message, "a message is larger than the limit");
            if *event == WebSocketEvent::MessageEnd {
                begin = *end;
            }
        }
        for step in [1, 7, 64] {
            assert_eq!(reported(step), whole, "{step} bytes at a time");
        }
    }
}

/// A request is complete at one length only, its response contains nothing that the client did not offer, and the client is
/// distinguished from trusted proxies.
pub fn request(input: &[u8]) {
    let head = Head::parse(input);
    for cut in [1, 7, 64].map(|step| input.len() / step) {
        match (Head::parse(&input[..cut]), &head) {
            (Ok(Some(early)), later) => assert_eq!(Ok(Some(&early)), later.as_ref().map(Option::as_ref)),
            (Err(error), later) => assert!(later.is_err(), "{error} was taken back"),
            (Ok(None), _) => {}
        }
    }
    let _ = ClientRequest::default().validate(input);
    match head {
        Err(HeadError::TooLarge | HeadError::Malformed) | Ok(None) => {}
        Ok(Some((head, len))) => {
            assert!(len <= input.len().min(MAX_HEAD));
            validate(head);
        }
    }
}

fn validate(head: Head<'_>) {
    let _ = forwarded::client(&head, |address| address.is_ipv4());
    if let Some(deflate) = Deflate::negotiate(&head) {
        assert!(deflate.answer().starts_with("permessage-deflate; "));
    }
    if let Some(Ok(pattern)) = head.header("origin").map(str::parse::<OriginPattern>) {
        assert_eq!(pattern.to_string().parse(), Ok(pattern));
    }
    let answer = match Upgrade::validate(head) {
        Ok(upgrade) => upgrade.accept(upgrade.offered.first().copied(), None),
        Err(refusal) => refusal.response(),
    };
    let answer = String::from_utf8(answer).expect("the answer is text");
    let (fields, _) = answer.split_once("\r\n\r\n").expect("the answer has an end");
    assert!(fields.split("\r\n").count() < 10, "no field was smuggled in: {answer}");
}

/// Events with the number of payload bytes before them, all payload up to a fault, and the fault.
fn reported(
    mut decoder: FrameDecoder,
    input: &[u8],
    step: usize,
) -> (Vec<(usize, WebSocketEvent)>, Vec<u8>, Option<WebSocketFault>) {
    let (mut events, mut payload) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    loop {
        let before = payload.len();
        match decoder.decode(&input[start..end], &mut payload) {
            Ok(step) => {
                start += step.taken;
                assert!(payload.len() - before <= step.taken + MAX_INFLATED);
                if let Some(event) = step.event {
                    events.push((payload.len(), event));
                    continue;
                }
            }
            // The amount of an invalid message that is returned before its fault does depend on the split.
            Err(fault) => {
                payload.truncate(events.last().map_or(0, |(len, _)| *len).min(before));
                return (events, payload, Some(fault));
            }
        }
        if end == input.len() {
            return (events, payload, None);
        }
        end = (end + step).min(input.len());
    }
}
