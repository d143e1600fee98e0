//! The properties that the fuzz targets check. `tests/codec/fuzz_corpus.rs` includes this file and runs the
//! same bodies without nightly.
//!
//! Run one for real with `cargo +nightly fuzz run frames` in `crates/stomp`.

use std::sync::Arc;
use std::time::Instant;

use stomp::destination::Destination;
use stomp::server::{EventKind, StompEvent, StompServerConnection, StompSettings};
use stomp::{StompDecoder, StompFault, StompVersion};

/// Bytes of the largest body.
const BODY_LIMIT: u64 = 1000;

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets, by name.
pub const TARGETS: [Target; 2] = [("frames", frames), ("connection", connection)];

/// Frames do not depend on how a stream was cut into reads, and no body exceeds the limit.
pub fn frames(input: &[u8]) {
    for version in [StompVersion::V10, StompVersion::V11, StompVersion::V12] {
        for decoder in [StompDecoder::of_clients, StompDecoder::of_servers] {
            let reported = |step| {
                let mut decoder = decoder(BODY_LIMIT);
                decoder.set_version(version);
                reported(decoder, input, step)
            };
            let whole = reported(input.len().max(1));
            for step in [1, 7, 64] {
                assert_eq!(reported(step), whole, "{step} bytes at a time");
            }
        }
    }
}

/// The frames of a stream that arrives in pieces, and whether an error followed them. Which error is found
/// first may depend on the cut: a wrong beginning of a frame is noticed before a limit is.
fn reported(mut decoder: StompDecoder, input: &[u8], step: usize) -> (Vec<String>, bool) {
    let mut frames = Vec::new();
    let mut unread = Vec::new();
    for piece in input.chunks(step) {
        unread.extend_from_slice(piece);
        loop {
            let taken = match decode(&mut decoder, &unread, &mut frames) {
                Ok(0) => break,
                Ok(taken) => taken,
                Err(_) => return (frames, true),
            };
            unread.drain(..taken);
        }
    }
    (frames, false)
}

fn decode(decoder: &mut StompDecoder, input: &[u8], frames: &mut Vec<String>) -> Result<usize, StompFault> {
    let step = decoder.decode(input)?;
    if let Some(frame) = &step.frame {
        assert!(frame.body.bytes().len() as u64 <= BODY_LIMIT);
        frames.push(format!("{} {:?} {:?}", frame.command, frame.headers, frame.body.bytes()));
    }
    Ok(step.taken)
}

/// The server's end answers any input with well-formed frames, and reports nothing after its end.
pub fn connection(input: &[u8]) {
    let now = Instant::now();
    let settings = Arc::new(StompSettings { body_limit: BODY_LIMIT, server: "Fuzz/1".to_owned() });
    let mut connection = StompServerConnection::new(settings, now);
    let mut out = Vec::new();
    let mut rest = input;
    let mut has_ended = false;
    loop {
        let step = connection.handle_input(rest, now, &mut out);
        let taken = step.taken;
        assert!(!has_ended || step.event.is_none(), "something came behind the end");
        let (mut is_connect, mut receipt) = (false, None);
        match &step.event {
            None if taken == 0 || taken == rest.len() => break,
            None => {}
            Some(StompEvent::Connect(_)) => is_connect = true,
            Some(StompEvent::Ended(_)) => has_ended = true,
            Some(StompEvent::Request(request)) => {
                receipt = request.receipt().map(str::to_owned);
                if let EventKind::Send { destination, .. } = &request.kind {
                    let _ = Destination::parse(destination);
                }
                if let EventKind::Subscribe(subscribe) = &request.kind {
                    subscribe.form.begin(&mut out, &subscribe.destination, 1, false).end(b"body");
                }
            }
        }
        drop(step);
        rest = &rest[taken..];
        if is_connect {
            connection.accept("session-fuzz".into(), now, &mut out);
        }
        if let Some(receipt) = receipt {
            connection.receipt(&receipt, &mut out);
        }
    }
    let mut decoder = StompDecoder::of_servers(u64::MAX);
    decoder.set_version(connection.version());
    let mut unread = &out[..];
    loop {
        let taken = decoder.decode(unread).expect("what the server writes is well-formed").taken;
        if taken == 0 {
            break;
        }
        unread = &unread[taken..];
    }
    assert!(unread.is_empty(), "the server wrote half a frame");
}
