//! permessage-deflate (RFC 7692): negotiation, the RFC's own examples, every cut, and messages that blow up.

use websocket::handshake::{Head, Upgrade};
use websocket::{DecoderLimits, Deflate, MessageKind, Role, encode};

use crate::common::{Heard, hear, hear_deflated, masked};

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const COMPRESSED: u8 = 0x40;
const KEY: Option<[u8; 4]> = Some([0xde, 0xad, 0xbe, 0xef]);

/// The extensions in the answer to a request with these offers, if any are accepted.
fn negotiated(offers: &[&str]) -> Option<String> {
    let fields: String =
        offers.iter().map(|offer| format!("Sec-WebSocket-Extensions: {offer}\r\n")).collect();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
    );
    let (head, _) = Head::parse(request.as_bytes()).unwrap().unwrap();
    let deflate = Deflate::negotiate(&head);
    let answer = String::from_utf8(Upgrade::validate(head).unwrap().accept(None, deflate)).unwrap();
    let found = answer.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "));
    found.map(str::to_owned)
}

fn deflate(window_bits: u8) -> Deflate {
    let request = format!(
        "GET / HTTP/1.1\r\nSec-WebSocket-Extensions: permessage-deflate; server_max_window_bits={window_bits}\r\n\r\n"
    );
    Deflate::negotiate(&Head::parse(request.as_bytes()).unwrap().unwrap().0).unwrap()
}

/// The messages that a server decodes, whatever the cut.
fn heard(bytes: &[u8]) -> (Vec<Heard>, Option<u16>) {
    let code =
        |(heard, fault): (_, Option<websocket::WebSocketFault>)| (heard, fault.map(|fault| fault.code.get()));
    let whole = code(hear_deflated(Role::Server, DecoderLimits::NONE, bytes, bytes.len()));
    for step in [1, 3, 997] {
        assert_eq!(code(hear_deflated(Role::Server, DecoderLimits::NONE, bytes, step)), whole);
    }
    whole
}

fn text(payload: &str) -> (Vec<Heard>, Option<u16>) {
    (vec![Heard::Text(payload.into())], None)
}

#[test]
fn deflate_is_negotiated_without_context_takeover_for_every_offer() {
    let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    for offer in [
        "permessage-deflate",
        // Chromium's, and Firefox's.
        "permessage-deflate; client_max_window_bits",
        "PerMessage-Deflate; client_no_context_takeover;client_max_window_bits = \"10\"",
        "x-webkit-deflate-frame, permessage-deflate",
    ] {
        assert_eq!(negotiated(&[offer]).as_deref(), Some(plain), "{offer}");
    }
    let limited = format!("{plain}; server_max_window_bits=12");
    // The default of Python's `websockets`.
    let offer = "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12";
    assert_eq!(negotiated(&[offer]).as_deref(), Some(&*limited));
    // The first acceptable offer, in one list or in several.
    let later =
        ["permessage-deflate; server_max_window_bits=8", "permessage-deflate; server_max_window_bits=12"];
    assert_eq!(negotiated(&later).as_deref(), Some(&*limited));
    assert_eq!(negotiated(&[&later.join(", ")]).as_deref(), Some(&*limited));
}

#[test]
fn offers_that_are_unknown_or_broken_are_declined() {
    for offer in [
        "permessage-bzip2",
        "permessage-deflate; unknown",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=010",
        "permessage-deflate; server_max_window_bits=+9",
        "permessage-deflate; client_max_window_bits=x",
        "permessage-deflate; client_no_context_takeover=1",
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
    ] {
        assert_eq!(negotiated(&[offer]), None, "{offer}");
    }
    assert_eq!(negotiated(&[]), None);
}

#[test]
fn the_rfcs_examples_are_decoded() {
    // 7.2.3.1: one frame, and the same in two.
    let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(heard(&masked(TEXT | COMPRESSED, &hello)), text("Hello"));
    let fragments = [masked(0x41, &hello[..3]), masked(0x80, &hello[3..])].concat();
    assert_eq!(heard(&fragments), text("Hello"));
    // 7.2.3.3: a block without compression.
    let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
    assert_eq!(heard(&masked(TEXT | COMPRESSED, &stored)), text("Hello"));
    // 7.2.3.4: a last block.
    let last = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
    assert_eq!(heard(&masked(TEXT | COMPRESSED, &last)), text("Hello"));
    // 7.2.3.5: two blocks.
    let two = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(heard(&masked(TEXT | COMPRESSED, &two)), text("Hello"));
    // 7.2.3.6: nothing.
    assert_eq!(heard(&masked(TEXT | COMPRESSED, &[0])), text(""));
    // Uncompressed messages may come between.
    let mixed = [masked(TEXT, b"plain"), masked(TEXT | COMPRESSED, &hello)].concat();
    assert_eq!(heard(&mixed).0, [text("plain").0, text("Hello").0].concat());
}

#[test]
fn compressed_messages_are_decoded_unchanged() {
    let mut noise = 1u32;
    let mut noise = || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    };
    for window_bits in 9..=15 {
        for len in [0, 1, 63, 64, 1000, 65_535, 65_536, 300_000] {
            let regular: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
            let random: Vec<u8> = (0..len).map(|_| noise()).collect();
            for payload in [regular, random, vec![0; len]] {
                let mut bytes = Vec::new();
                encode::deflated_message(
                    &mut bytes,
                    KEY,
                    MessageKind::Binary,
                    deflate(window_bits),
                    &payload,
                );
                assert!(bytes.len() <= payload.len() + 14, "never longer than without");
                let (heard, fault) = hear_deflated(Role::Server, DecoderLimits::NONE, &bytes, 4096);
                assert_eq!((heard, fault), (vec![Heard::Binary(payload)], None));
            }
        }
    }
}

#[test]
fn a_message_that_blows_up_is_refused_before_it_exists() {
    let bomb = vec![0; 64 << 20];
    let mut compressed = Vec::with_capacity(1 << 20);
    let mut best = flate2::Compress::new(flate2::Compression::best(), false);
    best.compress_vec(&bomb, &mut compressed, flate2::FlushCompress::Sync).unwrap();
    compressed.truncate(compressed.len() - 4);
    let bytes = masked(BINARY | COMPRESSED, &compressed);
    assert!(bytes.len() * 900 < bomb.len(), "{}", bytes.len());
    // `hear` asserts the limit for each call.
    for step in [1000, bytes.len()] {
        let (heard, fault) = hear_deflated(Role::Server, DecoderLimits { message: 1 << 20 }, &bytes, step);
        assert_eq!((heard, fault.map(|fault| fault.code.get())), (vec![], Some(1009)));
    }
    let exactly = DecoderLimits { message: 64 << 20 };
    assert_eq!(hear_deflated(Role::Server, exactly, &bytes, bytes.len()).0, [Heard::Binary(bomb)]);
}

#[test]
fn invalid_deflate_data_and_invalid_utf8_are_refused() {
    // A block of an undefined type.
    assert_eq!(heard(&masked(BINARY | COMPRESSED, &[0x07, 0xff])), (vec![], Some(1007)));
    let mut not_text = Vec::new();
    encode::deflated_message(&mut not_text, KEY, MessageKind::Text, deflate(15), &[0xff; 100]);
    assert_eq!(heard(&not_text), (vec![], Some(1007)));
    // A decompressor that was left in the middle still works for the next message.
    assert_eq!(heard(&masked(TEXT | COMPRESSED, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00])), text("Hello"));
}

#[test]
fn the_bit_counts_only_where_a_message_begins_and_only_if_negotiated() {
    for first in [0xc9, 0xca, 0xc8, 0xc0, 0xa2, 0x92] {
        assert_eq!(heard(&masked(first, b"")), (vec![], Some(1002)), "{first:x}");
    }
    let second = [masked(0x41, &[0xf2]), masked(0xc0, &[0x48])].concat();
    assert_eq!(heard(&second), (vec![], Some(1002)));
    let (_, fault) = hear(Role::Server, DecoderLimits::NONE, &masked(BINARY | COMPRESSED, &[0]), 64);
    assert_eq!(fault.map(|fault| fault.code.get()), Some(1002));
}

#[test]
fn control_frames_may_come_between_compressed_fragments() {
    let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    let bytes = [masked(0x41, &hello[..1]), masked(0x89, b"p"), masked(0x80, &hello[1..])].concat();
    assert_eq!(heard(&bytes), (vec![Heard::Ping(b"p".to_vec()), Heard::Text(b"Hello".to_vec())], None));
}
