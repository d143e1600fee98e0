//! The fuzz targets on a small corpus and some thousand deterministic mutations of it, without nightly.

use websocket::handshake::{ClientRequest, Head, Upgrade};
use websocket::{CloseCode, Deflate, MessageKind, encode};

use crate::bodies;

/// Per target; enough to reach every branch of the bodies, within a second in a debug build.
const MUTATIONS: usize = 3000;

/// Bytes with a special meaning.
const TOKENS: [u8; 9] = [0, 0x7e, 0x7f, 0x80, 0xfe, 0xff, b',', b'"', b'\r'];

/// The seeds of a target's mutations.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    if target == "frames" {
        return KEYS.map(conversation).to_vec();
    }
    if target == "deflated" {
        return KEYS
            .iter()
            .flat_map(|key| [[compressed(*key, 5000), conversation(*key)].concat(), compressed(*key, 20_000)])
            .collect();
    }
    let request = ClientRequest {
        host: "localhost:15670".into(),
        target: "/ws/amqp?x".into(),
        origin: Some("https://*.example.com:8443".into()),
        protocols: vec!["amqp091".into(), "mqtt".into()],
        nonce: [0; 16],
    };
    let mut bytes = request.bytes();
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(
        b"Forwarded: for=\"[2001:db8::1]:80\";by=\"a,b\", for=10.0.0.2\r\nX-Forwarded-For: 1.2.3.4, 10.0.0.3\r\n\
          Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=9, x\r\n\r\n",
    );
    let answer = {
        let (head, _) = Head::parse(&bytes).expect("it is a request").expect("it is whole");
        Upgrade::validate(head).expect("it is an upgrade").accept(Some("mqtt"), None)
    };
    vec![bytes, answer]
}

/// The masking keys of a server's frames (none) and of a client's.
const KEYS: [Option<[u8; 4]>; 2] = [None, Some([0x37, 0xfa, 0x21, 0x3d])];

fn compressed(key: Option<[u8; 4]>, most: usize) -> Vec<u8> {
    let head = b"GET / HTTP/1.1\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    let (head, _) = Head::parse(head).expect("it is a request").expect("it is whole");
    let deflate = Deflate::negotiate(&head).expect("it is fine");
    let mut out = Vec::new();
    for len in [100, most] {
        encode::deflated_message(&mut out, key, MessageKind::Binary, deflate, &vec![7; len]);
        let text = "κόσμε ".repeat(len / 12);
        encode::deflated_message(&mut out, key, MessageKind::Text, deflate, text.as_bytes());
    }
    out
}

fn conversation(key: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = Vec::new();
    encode::fragment(&mut out, key, Some(MessageKind::Text), false, "κόσ".as_bytes());
    encode::ping(&mut out, key, b"ping");
    encode::fragment(&mut out, key, None, true, "με".as_bytes());
    for len in [0, 125, 126, 5000] {
        encode::message(&mut out, key, MessageKind::Binary, &vec![7; len]);
    }
    encode::pong(&mut out, key, b"");
    encode::close(&mut out, key, CloseCode::GOING_AWAY, "bye");
    out
}

#[test]
fn the_targets_hold_on_the_corpus_and_its_mutations() {
    for (name, body) in bodies::TARGETS {
        mutations::check_mutations(&corpus(name), MUTATIONS, &TOKENS, body);
    }
}
