//! Cases in the spirit of the Autobahn test suite, under its headings.

use websocket::{
    CloseCode, CloseFrame, DecoderLimits, FrameDecoder, MAX_HEADER_LEN, MessageKind, Role, encode,
};

use crate::common::{Heard, hear, hear_client, masked};

const FIN: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Concatenates frames.
fn frames(frames: &[(u8, &[u8])]) -> Vec<u8> {
    frames.iter().flat_map(|(first, payload)| masked(*first, payload)).collect()
}

/// The messages of frames that are all valid, whatever the cut.
fn fine(list: &[(u8, &[u8])]) -> Vec<Heard> {
    let bytes = frames(list);
    let (heard, fault) = hear_client(&bytes);
    assert_eq!(fault, None);
    for step in [1, 3, 997] {
        assert_eq!(hear(Role::Server, DecoderLimits::NONE, &bytes, step), (heard.clone(), None));
    }
    heard
}

/// The messages before frames that are refused, and the code.
fn refused(list: &[(u8, &[u8])]) -> (Vec<Heard>, u16) {
    let bytes = frames(list);
    let (heard, fault) = hear_client(&bytes);
    let fault = fault.expect("they are refused");
    for step in [1, 3, 997] {
        assert_eq!(hear(Role::Server, DecoderLimits::NONE, &bytes, step), (heard.clone(), Some(fault)));
    }
    (heard, fault.code.get())
}

#[test]
fn framing_every_length_at_its_edges() {
    for len in [0, 1, 124, 125, 126, 127, 128, 65535, 65536, 65537, 1 << 20] {
        let payload = vec![b'*'; len];
        for (first, expected) in
            [(TEXT, Heard::Text(payload.clone())), (BINARY, Heard::Binary(payload.clone()))]
        {
            let bytes = masked(FIN | first, &payload);
            assert_eq!(hear_client(&bytes), (vec![expected.clone()], None));
            assert_eq!(hear(Role::Server, DecoderLimits::NONE, &bytes, 997), (vec![expected], None));
        }
    }
}

#[test]
fn pings_up_to_125_bytes_are_decoded_and_longer_ones_are_refused() {
    for payload in [&b""[..], b"Hello", b"\x00\xff\xfe\xfd", &[0xfe; 125]] {
        assert_eq!(fine(&[(FIN | PING, payload)]), [Heard::Ping(payload.to_vec())]);
        assert_eq!(fine(&[(FIN | PONG, payload)]), [Heard::Pong(payload.to_vec())]);
    }
    assert_eq!(refused(&[(FIN | PING, &[0xfe; 126])]), (vec![], 1002));
    let ten = vec![(FIN | PING, &b"payload"[..]); 10];
    assert_eq!(fine(&ten), vec![Heard::Ping(b"payload".to_vec()); 10]);
}

#[test]
fn reserved_bits_are_refused_in_every_frame() {
    for bits in 1..8u8 {
        let bits = bits << 4;
        for opcode in [TEXT, BINARY, CLOSE, PING, PONG] {
            assert_eq!(refused(&[(FIN | bits | opcode, b"x")]), (vec![], 1002));
        }
        let (heard, code) =
            refused(&[(FIN | TEXT, b"first"), (FIN | bits | TEXT, b"second"), (FIN | PING, b"")]);
        assert_eq!((heard, code), (vec![Heard::Text(b"first".to_vec())], 1002));
    }
}

#[test]
fn unknown_opcodes_are_refused() {
    for opcode in (3..8).chain(11..16) {
        for payload in [&b""[..], b"payload"] {
            assert_eq!(refused(&[(FIN | opcode, payload), (FIN | PING, b"")]), (vec![], 1002));
        }
    }
}

#[test]
fn fragments_are_put_together_with_control_frames_between() {
    let two = [(TEXT, &b"frag"[..]), (FIN | CONTINUATION, b"ment")];
    assert_eq!(fine(&two), [Heard::Text(b"fragment".to_vec())]);
    let heard = fine(&[
        (TEXT, b"a"),
        (CONTINUATION, b""),
        (FIN | PING, b"p"),
        (CONTINUATION, b"b"),
        (FIN | PONG, b"q"),
        (FIN | CONTINUATION, b""),
        (FIN | BINARY, b"c"),
    ]);
    assert_eq!(
        heard,
        [
            Heard::Ping(b"p".to_vec()),
            Heard::Pong(b"q".to_vec()),
            Heard::Text(b"ab".to_vec()),
            Heard::Binary(b"c".to_vec()),
        ]
    );
}

#[test]
fn fragments_that_form_no_message_are_refused() {
    for list in [
        &[(PING, &b"a"[..]), (FIN | CONTINUATION, b"b")][..],
        &[(PONG, b"a")],
        &[(CLOSE, b"")],
        &[(FIN | CONTINUATION, b"of nothing"), (FIN | TEXT, b"x")],
        &[(CONTINUATION, b"of nothing"), (FIN | TEXT, b"x")],
        &[(TEXT, b"a"), (FIN | TEXT, b"b")],
        &[(BINARY, b"a"), (TEXT, b"b")],
    ] {
        assert_eq!(refused(list).1, 1002);
    }
    let (heard, code) = refused(&[(TEXT, b"a"), (FIN | CONTINUATION, b"b"), (FIN | CONTINUATION, b"c")]);
    assert_eq!((heard, code), (vec![Heard::Text(b"ab".to_vec())], 1002));
}

#[test]
fn utf8_text_is_decoded_however_its_characters_are_split() {
    let text = "Hello-µ@ßöäüàá-UTF-8!! κόσμε 🐇 \u{0}\u{7ff}\u{800}\u{ffff}\u{10ffff}";
    assert_eq!(fine(&[(FIN | TEXT, text.as_bytes())]), [Heard::Text(text.into())]);
    for cut in 0..=text.len() {
        let (front, back) = text.as_bytes().split_at(cut);
        assert_eq!(fine(&[(TEXT, front), (FIN | CONTINUATION, back)]), [Heard::Text(text.into())]);
    }
    let bytes: Vec<(u8, &[u8])> = text.as_bytes().chunks(1).map(|byte| (CONTINUATION, byte)).collect();
    let list = [&[(TEXT, &b""[..])], &bytes[..], &[(FIN | CONTINUATION, b"")]].concat();
    assert_eq!(fine(&list), [Heard::Text(text.into())]);
}

#[test]
fn text_that_is_not_utf8_is_refused_with_1007() {
    for bad in [
        &b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited"[..],
        b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited",
        b"\xf8\x88\x80\x80\x80",
        b"\xc0\xaf",
        b"\x80",
        b"\xe1\xbd",
        b"\xff",
    ] {
        assert_eq!(refused(&[(FIN | TEXT, bad)]), (vec![], 1007));
        // Bytes need not be text.
        assert_eq!(fine(&[(FIN | BINARY, bad)]), [Heard::Binary(bad.to_vec())]);
    }
}

#[test]
fn invalid_text_is_refused_before_the_rest_of_its_message_arrives() {
    let begun = frames(&[(TEXT, b"\xce\xba\xf4\x90")]);
    let (heard, fault) = hear_client(&begun);
    assert_eq!((heard, fault.map(|fault| fault.code.get())), (vec![], Some(1007)));
    // Within one frame, as soon as the byte is there.
    let whole = masked(FIN | TEXT, b"\xce\xba\xf4\x90\x80\x80edited");
    let header = whole.len() - 12;
    assert_eq!(hear_client(&whole[..header + 3]).1, None);
    assert_eq!(hear_client(&whole[..header + 4]).1.map(|fault| fault.code.get()), Some(1007));
}

#[test]
fn close_frames_are_decoded_and_bytes_after_them_are_ignored() {
    let close = |code: u16, reason: &str| [&code.to_be_bytes(), reason.as_bytes()].concat();
    assert_eq!(fine(&[(FIN | CLOSE, b"")]), [Heard::Close(None)]);
    let long = "*".repeat(123);
    for reason in ["", "Hello World!", &long] {
        let frame = CloseFrame { code: CloseCode::NORMAL, reason: reason.into() };
        let payload = close(1000, reason);
        for after in [(FIN | TEXT, &b"x"[..]), (FIN | PING, b""), (FIN | CLOSE, b""), (0xff, b"nonsense")] {
            assert_eq!(fine(&[(FIN | CLOSE, &payload), after]), [Heard::Close(Some(frame.clone()))]);
        }
    }
    // A close frame may cut a message short.
    assert_eq!(fine(&[(TEXT, b"begun"), (FIN | CLOSE, b"")]), [Heard::Close(None)]);
}

#[test]
fn close_frames_that_must_not_be_sent_are_refused() {
    assert_eq!(refused(&[(FIN | CLOSE, b"x")]), (vec![], 1002));
    assert_eq!(refused(&[(FIN | CLOSE, &[3; 126])]), (vec![], 1002));
    assert_eq!(refused(&[(FIN | CLOSE, b"\x03\xe8\xce\xba\xed\xa0\x80")]), (vec![], 1007));
    for code in [0u16, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
        assert_eq!(refused(&[(FIN | CLOSE, &code.to_be_bytes())]), (vec![], 1002), "{code}");
    }
    for code in [1000u16, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        assert_eq!(fine(&[(FIN | CLOSE, &code.to_be_bytes())]).len(), 1, "{code}");
    }
}

#[test]
fn each_side_masks_as_it_must() {
    let mut unmasked = Vec::new();
    encode::message(&mut unmasked, None, MessageKind::Binary, b"x");
    let (heard, fault) = hear_client(&unmasked);
    assert_eq!((heard, fault.map(|fault| fault.code.get())), (vec![], Some(1002)));
    let (_, fault) = hear(Role::Client, DecoderLimits::NONE, &masked(FIN | BINARY, b"x"), 64);
    assert_eq!(fault.map(|fault| fault.code.get()), Some(1002));
}

#[test]
fn messages_above_the_limit_are_refused_by_their_headers_alone() {
    let limits = DecoderLimits { message: 10 };
    let code = |bytes: &[u8]| hear(Role::Server, limits, bytes, 64).1.map(|fault| fault.code.get());
    assert_eq!(code(&masked(FIN | BINARY, &[0; 10])), None);
    assert_eq!(code(&masked(FIN | BINARY, &[0; 11])[..6]), Some(1009));
    assert_eq!(
        code(&frames(&[(BINARY, &[0; 6]), (FIN | CONTINUATION, &[0; 4]), (FIN | BINARY, &[0; 10])])),
        None
    );
    assert_eq!(code(&frames(&[(BINARY, &[0; 6]), (FIN | CONTINUATION, &[0; 5])])), Some(1009));
    // The largest length that can be announced, of 63 bits, is refused by its header; without a limit it costs nothing.
    let huge = [0x02, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    assert_eq!(code(&huge), Some(1009));
    assert_eq!(hear_client(&huge), (vec![], None));
}

#[test]
fn large_messages_are_decoded_with_frames_and_reads_of_every_size() {
    for (len, frame, read) in [
        (1 << 20, 64, 1300),
        (1 << 20, 4096, 1 << 20),
        (1 << 20, 1 << 20, 1300),
        (16 << 20, 64 << 10, 128 << 10),
        (16 << 20, 16 << 20, 32 << 20),
    ] {
        let payload: Vec<u8> = (0..len).map(|at| b'a' + (at % 23) as u8).collect();
        for (opcode, expected) in
            [(TEXT, Heard::Text(payload.clone())), (BINARY, Heard::Binary(payload.clone()))]
        {
            let mut bytes = Vec::new();
            for (at, piece) in payload.chunks(frame).enumerate() {
                let fin = if (at + 1) * frame >= len { FIN } else { 0 };
                bytes.extend(masked(fin | if at == 0 { opcode } else { CONTINUATION }, piece));
            }
            let heard = hear(Role::Server, DecoderLimits::NONE, &bytes, read);
            assert!(heard == (vec![expected], None), "{len} bytes in frames of {frame}");
        }
    }
}

/// Payload that was passed in again and again would make the cost of a message grow with its square.
#[test]
fn only_a_header_or_a_control_frame_is_ever_passed_twice() {
    let mut bytes = Vec::new();
    for len in [0, 1, 125, 126, 70_000] {
        bytes.extend(masked(FIN | BINARY, &vec![b'x'; len]));
        bytes.extend(masked(FIN | TEXT, &vec![b'x'; len]));
        bytes.extend(masked(FIN | PING, &[b'x'; 125]));
    }
    for step in [1, 2, 7, 64, 1300] {
        let mut decoder = FrameDecoder::new(Role::Server, DecoderLimits::NONE);
        let (mut start, mut end, mut payload) = (0, 0, Vec::new());
        while end < bytes.len() {
            end = (end + step).min(bytes.len());
            loop {
                let reported = decoder.decode(&bytes[start..end], &mut payload).unwrap();
                start += reported.taken;
                if reported.event.is_none() {
                    break;
                }
            }
            assert!(end - start < MAX_HEADER_LEN + 125, "{} bytes left", end - start);
            payload.clear();
        }
        assert_eq!(start, bytes.len());
    }
}
