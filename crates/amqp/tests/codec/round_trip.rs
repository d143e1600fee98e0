//! All output is read back unchanged, whole or in pieces, and no input does harm (S1).

use amqp::content::write_content;
use amqp::method::basic;
use amqp::properties::NO_PROPERTIES;
use amqp::{FieldTable, FieldValue, Frame, FrameKind, Method, Properties, RawTable, frame};
use proptest::prelude::*;

use crate::bodies;
use crate::common::{any_method_payload, any_properties, any_table, golden_methods};

/// A stream of one frame of each type: method, header with properties, body.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let frame = (any::<u16>(), 0..4, any_method_payload(|_| true), any_properties(), 0..300usize).prop_map(
        |(channel, kind, method, properties, length)| {
            let mut out = Vec::new();
            match kind {
                0 => frame::write_frame(&mut out, FrameKind::Method, channel, |out| out.extend(method)),
                1 => frame::write_content_header(&mut out, channel, length as u64, &properties),
                2 => frame::write_body(&mut out, channel, &vec![7; length]),
                _ => out.extend_from_slice(&frame::HEARTBEAT),
            }
            out
        },
    );
    prop::collection::vec(frame, 0..6).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn every_method(payload in any_method_payload(|_| true)) {
        let method = Method::decode(&payload).unwrap();
        let mut encoded = Vec::new();
        method.encode(&mut encoded);
        prop_assert_eq!(&encoded, &payload);
        bodies::method(&payload);
    }

    #[test]
    fn every_truncation_of_a_method_is_detected(payload in any_method_payload(|_| true), cut in any::<prop::sample::Index>()) {
        prop_assert!(Method::decode(&payload[..cut.index(payload.len())]).is_err());
    }

    #[test]
    fn all_properties(bytes in any_properties()) {
        let properties = Properties::decode(&bytes).unwrap();
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        prop_assert_eq!(encoded, bytes);
    }

    #[test]
    fn every_table(table in any_table()) {
        let bytes = table.encode();
        prop_assert_eq!(RawTable::check(&bytes).unwrap().decode(), table);
        bodies::table(&bytes);
    }

    #[test]
    fn an_entry_that_is_set_leaves_the_bytes_of_all_others(
        tables in prop::collection::vec((any_table(), any::<bool>()), 0..4),
    ) {
        // Names that occur several times, with what is replaced between them.
        let (mut bytes, mut others) = (Vec::new(), Vec::new());
        let set = |value: i32| FieldTable::from_iter([("set", FieldValue::I32(value))]).encode();
        for (mut table, is_twice) in tables {
            table.remove("set");
            let table = table.encode().repeat(1 + usize::from(is_twice));
            others.extend_from_slice(&table);
            bytes.extend_from_slice(&table);
            bytes.extend_from_slice(&set(1));
        }
        others.extend_from_slice(&set(2));
        let with_entry = RawTable::check(&bytes).unwrap().with_entry("set", &FieldValue::I32(2));
        prop_assert_eq!(with_entry, others);
    }

    #[test]
    fn streams_in_pieces_give_the_same_frames(stream in any_stream(), cut in any::<prop::sample::Index>()) {
        bodies::frame_stream(&stream);
        bodies::frame_stream(&stream[..cut.index(stream.len() + 1)]);
    }

    #[test]
    fn messages_survive_at_any_frame_max(length in 0..20_000usize, frame_max in 4096..9000u32) {
        let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let mut stream = Vec::new();
        write_content(&mut stream, 1, basic::Publish::default(), NO_PROPERTIES, &body, frame_max);
        let mut joined = Vec::new();
        let mut rest = &stream[..];
        while let Some(frame) = Frame::parse(rest, frame_max).unwrap() {
            rest = &rest[frame.wire_len()..];
            if frame.kind == FrameKind::Body {
                joined.extend_from_slice(frame.payload);
            }
        }
        prop_assert!(rest.is_empty());
        prop_assert_eq!(joined, body);
        bodies::content(&stream);
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for (_, body) in bodies::TARGETS {
            body(&bytes);
        }
    }

    #[test]
    fn random_arguments_do_no_harm(
        at in 0..golden_methods().count(),
        arguments in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut payload = golden_methods().nth(at).unwrap().payload;
        payload.truncate(4);
        payload.extend(arguments);
        bodies::method(&payload);
    }
}
