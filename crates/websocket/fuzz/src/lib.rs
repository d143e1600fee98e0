//! What the fuzz targets check. `tests/codec/fuzz_corpus.rs` includes this file and runs the same bodies without nightly.
//!
//! Run one for real with `cargo +nightly fuzz run frames` in `crates/websocket`.

use websocket::handshake::{ClientRequest, Head, HeadError, MAX_HEAD, OriginPattern, Upgrade};
use websocket::{Decoder, Event, Fault, Header, Limits, Role, forwarded};

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 2] = [("frames", frames), ("request", request)];

/// Payload, events and faults do not depend on how a stream was cut into reads, and payload is never longer than what
/// came.
pub fn frames(input: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let whole = told(role, input, input.len().max(1));
        assert!(whole.1.len() <= input.len());
        for step in [1, 7, 64] {
            assert_eq!(told(role, input, step), whole, "{step} octets at a time");
        }
    }
    if let Ok(Some((header, len))) = Header::parse(input) {
        assert_eq!(header.encode().as_ref(), &input[..len]);
    }
}

/// A request is complete at one length only, its answer carries nothing that the client did not offer, and whoever
/// asks for it is told apart from trusted proxies.
pub fn request(input: &[u8]) {
    let head = Head::parse(input);
    for cut in [1, 7, 64].map(|step| input.len() / step) {
        match (Head::parse(&input[..cut]), &head) {
            (Ok(Some(early)), later) => assert_eq!(Ok(Some(&early)), later.as_ref().map(Option::as_ref)),
            (Err(error), later) => assert!(later.is_err(), "{error} was taken back"),
            (Ok(None), _) => {}
        }
    }
    let _ = ClientRequest::default().judge(input);
    match head {
        Err(HeadError::TooLarge | HeadError::Malformed) | Ok(None) => {}
        Ok(Some((head, len))) => {
            assert!(len <= input.len().min(MAX_HEAD));
            judge(head);
        }
    }
}

fn judge(head: Head<'_>) {
    let _ = forwarded::client(&head, |address| address.is_ipv4());
    if let Some(Ok(pattern)) = head.header("origin").map(str::parse::<OriginPattern>) {
        assert_eq!(pattern.to_string().parse(), Ok(pattern));
    }
    let answer = match Upgrade::judge(head) {
        Ok(upgrade) => upgrade.accept(upgrade.offered.first().copied()),
        Err(refusal) => refusal.response(),
    };
    let answer = String::from_utf8(answer).expect("the answer is text");
    let (fields, _) = answer.split_once("\r\n\r\n").expect("the answer has an end");
    assert!(fields.split("\r\n").count() < 10, "no field was smuggled in: {answer}");
}

/// Events with the octets of payload before them, all payload up to a fault, and the fault.
fn told(role: Role, input: &[u8], step: usize) -> (Vec<(usize, Event)>, Vec<u8>, Option<Fault>) {
    let mut decoder = Decoder::new(role, Limits { message: 10_000 });
    let (mut events, mut payload) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    loop {
        let before = payload.len();
        match decoder.decode(&input[start..end], &mut payload) {
            Ok(step) => {
                start += step.taken;
                if let Some(event) = step.event {
                    events.push((payload.len(), event));
                    continue;
                }
            }
            // How much of a bad message is handed out before its fault does depend on the cut.
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
