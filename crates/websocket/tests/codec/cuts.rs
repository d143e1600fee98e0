//! The result does not depend on how a peer's messages are cut into frames and reads.

use proptest::prelude::*;
use websocket::{CloseCode, CloseFrame, DecoderLimits, MessageKind, Role, encode};

use crate::common::{Heard, hear};

/// A message or control frame, and bytes that determine how it is cut into frames.
fn utterance() -> impl Strategy<Value = (Heard, Vec<u8>)> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
    let short = || proptest::collection::vec(any::<u8>(), 0..=125);
    let heard = prop_oneof![
        "\\PC{0,80}".prop_map(|text| Heard::Text(text.into_bytes())),
        bytes().prop_map(Heard::Binary),
        short().prop_map(Heard::Ping),
        short().prop_map(Heard::Pong),
    ];
    (heard, proptest::collection::vec(any::<u8>(), 0..5))
}

fn say(out: &mut Vec<u8>, key: Option<[u8; 4]>, heard: &Heard, cuts: &[u8]) {
    let (kind, mut rest) = match heard {
        Heard::Text(text) => (MessageKind::Text, &text[..]),
        Heard::Binary(bytes) => (MessageKind::Binary, &bytes[..]),
        Heard::Ping(payload) => return encode::ping(out, key, payload),
        Heard::Pong(payload) => return encode::pong(out, key, payload),
        Heard::Close(_) => unreachable!("not generated"),
    };
    let mut begins = Some(kind);
    for cut in cuts {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(*cut)));
        encode::fragment(out, key, begins.take(), false, piece);
        rest = after;
    }
    encode::fragment(out, key, begins, true, rest);
}

proptest! {
    #[test]
    fn encoded_conversations_are_decoded_unchanged(
        conversation in proptest::collection::vec(utterance(), 0..12),
        key in any::<Option<[u8; 4]>>(),
        reason in proptest::option::of("\\PC{0,40}"),
        step in 1usize..700,
    ) {
        let mut bytes = Vec::new();
        let mut expected: Vec<Heard> = Vec::new();
        for (heard, cuts) in &conversation {
            say(&mut bytes, key, heard, cuts);
            expected.push(heard.clone());
        }
        let frame = reason.map(|reason| CloseFrame { code: CloseCode::GOING_AWAY, reason });
        match &frame {
            Some(frame) if frame.reason.len() <= websocket::MAX_REASON => {
                encode::close(&mut bytes, key, frame.code, &frame.reason);
                expected.push(Heard::Close(Some(frame.clone())));
            }
            _ => {
                encode::empty_close(&mut bytes, key);
                expected.push(Heard::Close(None));
            }
        }
        let role = if key.is_some() { Role::Server } else { Role::Client };
        prop_assert_eq!(hear(role, DecoderLimits::NONE, &bytes, step), (expected, None));
    }

    #[test]
    fn nonsense_is_judged_the_same_however_it_is_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        step in 1usize..50,
    ) {
        for role in [Role::Server, Role::Client] {
            let whole = hear(role, DecoderLimits { message: 1000 }, &bytes, bytes.len().max(1));
            prop_assert_eq!(hear(role, DecoderLimits { message: 1000 }, &bytes, step), whole);
        }
    }
}
