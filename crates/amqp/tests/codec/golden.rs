//! Agreement with bytes that pika encoded (`fixtures/golden.txt`, made by `fixtures/make_golden.py`).

use amqp::frame::{self, HEARTBEAT};
use amqp::method::{METHODS, basic};
use amqp::properties::NO_PROPERTIES;
use amqp::{FieldTable, FieldValue, Frame, Method, Properties, RawTable};

use crate::common::{GoldenMethod, golden_lines, golden_methods, unhex};

#[test]
fn every_method_has_pikas_layout() {
    for GoldenMethod { name, payload, view, .. } in golden_methods() {
        let method = Method::decode(&payload).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(method.name(), name);
        assert_eq!(format!("{method:?}"), view);
        let mut encoded = Vec::new();
        method.encode(&mut encoded);
        assert_eq!(encoded, payload, "{name}");
    }
}

#[test]
fn no_method_is_missing() {
    let known: Vec<String> = golden_methods().map(|method| method.name).collect();
    for (_, _, name) in METHODS {
        assert!(known.iter().any(|known| known == name), "{name}");
    }
    assert_eq!(known.len(), METHODS.len());
}

#[test]
fn a_table_has_pikas_layout() {
    let bytes = unhex(&golden_lines("table").next().unwrap()[0]);
    let nested: FieldTable = [("k", FieldValue::text("v"))].into_iter().collect();
    let array = vec![FieldValue::I32(1), FieldValue::text("two"), FieldValue::Void];
    let expected: FieldTable = [
        ("bool", FieldValue::Boolean(true)),
        ("int", FieldValue::I32(-5)),
        ("long", FieldValue::I64(1 << 40)),
        ("text", FieldValue::text("héllo")),
        ("bytes", FieldValue::ByteArray(vec![0, 255])),
        ("decimal", FieldValue::Decimal { scale: 2, value: 314 }),
        ("time", FieldValue::Timestamp(1_700_000_000)),
        ("array", FieldValue::Array(array)),
        ("nested", FieldValue::Table(nested)),
        ("void", FieldValue::Void),
    ]
    .into_iter()
    .collect();
    assert_eq!(RawTable::check(&bytes).unwrap().decode(), expected);
    assert_eq!(expected.encode(), bytes);
}

#[test]
fn properties_have_pikas_layout() {
    let bytes = unhex(&golden_lines("properties").next().unwrap()[0]);
    let headers: FieldTable = [("n", FieldValue::I32(1))].into_iter().collect();
    let headers = headers.encode();
    let expected = Properties::default()
        .with_content_type("text/plain")
        .with_content_encoding("gzip")
        .with_headers(RawTable::check(&headers).unwrap())
        .with_delivery_mode(2)
        .with_priority(9)
        .with_correlation_id("c".into())
        .with_reply_to("r")
        .with_expiration("1000")
        .with_message_id("m".into())
        .with_timestamp(1)
        .with_kind("t")
        .with_user_id("u")
        .with_app_id("a")
        .with_cluster_id("k");
    assert_eq!(Properties::decode(&bytes), Ok(expected));
    let mut encoded = Vec::new();
    expected.encode(&mut encoded);
    assert_eq!(encoded, bytes);
}

#[test]
fn frames_have_pikas_layout() {
    let mut written: [Vec<u8>; 4] = Default::default();
    frame::write_method(&mut written[0], 7, basic::Ack { delivery_tag: 5, multiple: true });
    frame::write_content_header(&mut written[1], 7, 300, NO_PROPERTIES);
    frame::write_body(&mut written[2], 7, b"hello");
    written[3] = HEARTBEAT.to_vec();
    let golden: Vec<Vec<u8>> = golden_lines("frame").map(|fields| unhex(&fields[0])).collect();
    assert_eq!(golden, written);
    for bytes in &golden {
        assert_eq!(Frame::parse(bytes, 4096).unwrap().unwrap().wire_len(), bytes.len());
    }
}
