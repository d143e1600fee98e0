//! The examples of RFC 6455, section 5.7, byte by byte, read and written.

use websocket::{DecoderLimits, MessageKind, Role, encode};

use crate::common::{Heard, hear};

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
const HELLO: &[u8] = &[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
const MASKED_HELLO: &[u8] = &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
const FRAGMENTED: &[u8] = &[0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
const PING: &[u8] = &[0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
const MASKED_PONG: &[u8] = &[0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];

fn hello() -> Vec<u8> {
    b"Hello".to_vec()
}

fn large(prefix: &[u8], len: usize) -> (Vec<u8>, Vec<u8>) {
    let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
    ([prefix, &payload].concat(), payload)
}

#[test]
fn the_rfcs_examples_are_read() {
    let (medium, medium_payload) = large(&[0x82, 0x7e, 0x01, 0x00], 256);
    let (long, long_payload) = large(&[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0], 65536);
    for (role, bytes, expected) in [
        (Role::Client, HELLO, Heard::Text(hello())),
        (Role::Server, MASKED_HELLO, Heard::Text(hello())),
        (Role::Client, FRAGMENTED, Heard::Text(hello())),
        (Role::Client, PING, Heard::Ping(hello())),
        (Role::Server, MASKED_PONG, Heard::Pong(hello())),
        (Role::Client, &medium, Heard::Binary(medium_payload)),
        (Role::Client, &long, Heard::Binary(long_payload)),
    ] {
        for step in [1, 2, 3, bytes.len()] {
            assert_eq!(hear(role, DecoderLimits::NONE, bytes, step), (vec![expected.clone()], None));
        }
    }
}

#[test]
fn the_rfcs_examples_are_written() {
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    assert_eq!(written(&|out| encode::message(out, None, MessageKind::Text, b"Hello")), HELLO);
    assert_eq!(written(&|out| encode::message(out, Some(KEY), MessageKind::Text, b"Hello")), MASKED_HELLO);
    assert_eq!(
        written(&|out| {
            encode::fragment(out, None, Some(MessageKind::Text), false, b"Hel");
            encode::fragment(out, None, None, true, b"lo");
        }),
        FRAGMENTED
    );
    assert_eq!(written(&|out| encode::ping(out, None, b"Hello")), PING);
    assert_eq!(written(&|out| encode::pong(out, Some(KEY), b"Hello")), MASKED_PONG);
    for (prefix, len) in
        [(&[0x82, 0x7e, 0x01, 0x00][..], 256), (&[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0], 65536)]
    {
        let (bytes, payload) = large(prefix, len);
        assert_eq!(written(&|out| encode::message(out, None, MessageKind::Binary, &payload)), bytes);
    }
}
