use crate::{Broker, BrokerConfig};

use super::*;

fn tracer() -> Tracer {
    let broker = Broker::new(BrokerConfig::default());
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let vhost = broker.open(&guest, "/").unwrap();
    vhost.tracer(&guest, None)
}

fn event<'a>(properties: &'a [u8], routed_queues: &'a [&'a str]) -> TracedEvent<'a> {
    let kind = EventKind::Publish { routed_queues };
    TracedEvent { channel: 7, exchange: "e", routing_keys: &["k"], properties, body: Body::Copied(b""), kind }
}

/// The headers of the report of a message with these properties.
fn reported(properties: Properties<'_>, routed_queues: &[&str]) -> FieldTable {
    let mut encoded = Vec::new();
    properties.encode(&mut encoded);
    let properties = tracer().properties_about(&event(&encoded, routed_queues));
    Properties::decode(&properties).unwrap().headers.unwrap().decode()
}

fn own_properties(reported: &FieldTable) -> &FieldTable {
    match reported.get("properties") {
        Some(FieldValue::Table(table)) => table,
        other => panic!("{other:?}"),
    }
}

/// A table nested in `depth` others.
fn nested(depth: usize) -> FieldTable {
    (0..depth).fold(FieldTable::new(), |inner, _| [("n", FieldValue::Table(inner))].into_iter().collect())
}

#[test]
fn headers_stand_in_rabbitmqs_order() {
    let reported = reported(Properties::default(), &["q"]);
    let names: Vec<_> = reported.iter().map(|(name, _)| name).collect();
    let expected = "exchange_name routing_keys properties node vhost connection channel user routed_queues";
    assert_eq!(names.join(" "), expected);
    assert_eq!(reported.get("channel"), Some(&FieldValue::I32(7)));
    assert_eq!(reported.get("node"), Some(&FieldValue::text("leveret@localhost")));
}

#[test]
fn a_timestamp_of_any_size_keeps_its_value() {
    let at = |seconds| {
        let reported = reported(Properties::default().with_timestamp(seconds), &[]);
        own_properties(&reported).get("timestamp").cloned()
    };
    assert_eq!(at(1_700_000_000), Some(FieldValue::I32(1_700_000_000)));
    assert_eq!(at(5_000_000_000), Some(FieldValue::I64(5_000_000_000)), "RabbitMQ says 705032704");
}

#[test]
fn headers_that_are_too_large_or_too_deep_are_left_out() {
    for (headers, is_reported) in [
        (nested(amqp::table::MAX_TABLE_DEPTH - 2), true),
        (nested(amqp::table::MAX_TABLE_DEPTH), false),
        ([("h", FieldValue::LongString(vec![b'x'; 100_000]))].into_iter().collect(), true),
        ([("h", FieldValue::LongString(vec![b'x'; MAX_HEADERS]))].into_iter().collect(), false),
    ] {
        let encoded = headers.encode();
        let properties =
            Properties::default().with_headers(RawTable::check(&encoded).unwrap()).with_priority(3);
        let reported = reported(properties, &["q"]);
        assert_eq!(own_properties(&reported).get("headers").is_some(), is_reported);
        assert_eq!(own_properties(&reported).get("priority"), Some(&FieldValue::I32(3)));
        assert!(reported.encode().len() <= MAX_HEADERS);
    }
}

#[test]
fn only_the_first_of_very_many_routed_queues_are_reported() {
    let names: Vec<String> = (0..100_000).map(|number| format!("queue.{number:06}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let reported = reported(Properties::default(), &names);
    let Some(FieldValue::Array(queues)) = reported.get("routed_queues") else { panic!("{reported:?}") };
    assert!(queues.len() > 1_000 && queues.len() * (12 + 5) <= MAX_NAMES, "{}", queues.len());
    assert_eq!(queues.last().and_then(FieldValue::as_text), Some(names[queues.len() - 1]));
}
