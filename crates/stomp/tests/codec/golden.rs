//! Frames as the specification and other implementations write them.

use stomp::{StompDecoder, StompVersion};

/// Made by `fixtures/make_golden.py` with stomp.py: a version, the bytes of a frame, and its contents.
const FIXTURES: &str = include_str!("fixtures/golden.txt");

fn read(version: StompVersion, bytes: &[u8]) -> String {
    let is_of_server =
        [&b"CONNECTED"[..], b"MESSAGE", b"RECEIPT", b"ERROR"].iter().any(|name| bytes.starts_with(name));
    let mut decoder =
        if is_of_server { StompDecoder::of_servers(1000) } else { StompDecoder::of_clients(1000) };
    decoder.set_version(version);
    let step = decoder.decode(bytes).unwrap_or_else(|fault| panic!("{fault}: {bytes:?}"));
    assert_eq!(step.taken, bytes.len());
    let frame = step.frame.expect("it is whole");
    let headers: Vec<String> =
        frame.headers.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    format!("{} {} {:?}", frame.command, headers.join(" "), String::from_utf8_lossy(frame.body.bytes()))
}

#[test]
fn the_examples_of_the_specification() {
    for (bytes, reported) in [
        (
            "CONNECT\naccept-version:1.2\nhost:stomp.github.org\n\n\0",
            "CONNECT accept-version=\"1.2\" host=\"stomp.github.org\" \"\"",
        ),
        (
            "SEND\ndestination:/queue/a\ncontent-type:text/plain\n\nhello queue a\n\0",
            "SEND destination=\"/queue/a\" content-type=\"text/plain\" \"hello queue a\\n\"",
        ),
        (
            "MESSAGE\nsubscription:0\nmessage-id:007\ndestination:/queue/a\ncontent-type:text/plain\n\nhello queue a\0",
            "MESSAGE subscription=\"0\" message-id=\"007\" destination=\"/queue/a\" content-type=\"text/plain\" \
             \"hello queue a\"",
        ),
        ("MESSAGE\nfoo:World\nfoo:Hello\n\n\0", "MESSAGE foo=\"World\" \"\""),
        ("ACK\nid:12345\ntransaction:tx1\n\n\0", "ACK id=\"12345\" transaction=\"tx1\" \"\""),
    ] {
        assert_eq!(read(StompVersion::V12, bytes.as_bytes()), reported);
    }
}

#[test]
fn frames_of_another_implementation() {
    let mut frames = 0;
    for line in FIXTURES.lines().filter(|line| !line.starts_with('#')) {
        let [version, bytes, reported] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let version = match version {
            "1.0" => StompVersion::V10,
            "1.1" => StompVersion::V11,
            _ => StompVersion::V12,
        };
        assert_eq!(read(version, &unhex(bytes)), reported);
        frames += 1;
    }
    assert!(frames >= 20, "{frames} frames");
}

fn unhex(text: &str) -> Vec<u8> {
    let value = |digit: u8| char::from(digit).to_digit(16).expect("it is a digit") as u8;
    text.as_bytes().chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}
