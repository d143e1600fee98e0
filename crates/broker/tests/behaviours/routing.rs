use amqp::{FieldValue, Properties};
use broker::*;

use crate::world::*;

fn keys(keys: &[&str]) -> FieldValue {
    FieldValue::Array(keys.iter().map(|key| FieldValue::text(*key)).collect())
}

#[test]
fn copies_are_routed_by_every_exchange_and_blind_ones_are_hidden() {
    let mut world = world();
    let queues: Vec<_> = ["to", "cc", "bcc"].iter().map(|name| world.queue(name)).collect();
    ["to", "cc", "bcc"].iter().for_each(|name| world.bind(name, "amq.topic", name));
    let headers = table(&[("CC", keys(&["cc", "to"])), ("BCC", keys(&["bcc"]))]);
    let properties = Properties::default().with_headers(raw(&headers)).with_app_id("app");
    for exchange in ["", "amq.topic"] {
        assert_eq!(world.try_publish(exchange, "to", "m", properties), Ok(true));
        for queue in &queues {
            let delivery = world.get(queue);
            assert!(world.drain(queue).is_empty(), "once for each queue");
            let headers = headers_of(&delivery);
            assert!(headers.get("CC").is_some() && headers.get("BCC").is_none());
            assert_eq!(Properties::decode(delivery.message().properties()).unwrap().app_id, Some("app"));
            assert_eq!(delivery.message().routing_key(), "to");
        }
    }
}

#[test]
fn properties_come_out_byte_for_byte() {
    let mut world = world();
    let queue = world.queue("q");
    let headers = table(&[("z", FieldValue::F32(0.1)), ("a", FieldValue::I8(-1)), ("z2", FieldValue::Void)]);
    let properties = Properties::default().with_headers(raw(&headers)).with_delivery_mode(2).with_priority(3);
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    world.try_publish("", "q", "m", properties).unwrap();
    let delivery = world.get(&queue);
    assert_eq!(delivery.message().properties(), bytes);
    let broker_properties =
        BrokerProperties { persistent: true, priority: Some(3), ..BrokerProperties::default() };
    assert_eq!(delivery.message().broker_properties(), broker_properties);
}

#[test]
fn an_alternate_exchange_takes_unmatched_messages() {
    let mut world = world();
    let lost = world.queue("lost");
    let declare = |name, alternate: &str| {
        let arguments = table(&[("alternate-exchange", FieldValue::text(alternate))]);
        let arguments = raw(&arguments);
        world
            .vhost
            .declare_exchange(&ExchangeDeclare { name, kind: "direct", arguments, ..Default::default() })
            .unwrap();
    };
    declare("main", "spare");
    declare("spare", "fallback");
    declare("fallback", "main");
    declare("lonely", "missing");
    world.queue("q");
    world.bind("q", "main", "k");
    assert!(!world.publish("main", "other", "cycles end"), "and what no one takes is unroutable");
    assert!(!world.publish("lonely", "k", "a missing alternate exchange is silent"));
    world.bind("lost", "fallback", "other");
    assert!(world.publish("main", "other", "counts as routed"));
    assert!(world.publish("main", "k", "matches"));
    assert_eq!(world.drain(&lost), ["counts as routed"]);
}

#[test]
fn redeclaring_with_another_alternate_exchange_is_refused() {
    let world = world();
    world.exchange("e1", "direct");
    let arguments = table(&[("alternate-exchange", FieldValue::text("x"))]);
    let declare =
        ExchangeDeclare { name: "e1", kind: "direct", arguments: raw(&arguments), ..Default::default() };
    assert_eq!(
        refusal(world.vhost.declare_exchange(&declare)),
        (406, "inequivalent arg 'alternate-exchange' for exchange 'e1' in vhost '/': received the value 'x' of type 'longstr' but current is none".into())
    );
}

#[test]
fn internal_exchanges_are_reached_through_others_only() {
    let mut world = world();
    let declare = ExchangeDeclare { name: "ei", kind: "fanout", internal: true, ..Default::default() };
    world.vhost.declare_exchange(&declare).unwrap();
    let queue = world.queue("q");
    world.bind("q", "ei", "");
    assert_eq!(
        refusal(world.try_publish("ei", "", "m", Properties::default())),
        (403, "cannot publish to internal exchange 'ei' in vhost '/'".into())
    );
    world.vhost.bind_exchange(&binding("amq.fanout", "ei", "")).unwrap();
    world.publish("amq.fanout", "", "m");
    assert_eq!(world.drain(&queue), ["m"]);
}

#[test]
fn headers_decide_even_behind_another_exchange() {
    let mut world = world();
    let queue = world.queue("q");
    let pattern = table(&[("x-match", FieldValue::text("any")), ("a", FieldValue::I32(1))]);
    let plain = binding("amq.headers", "q", "");
    world.vhost.bind_queue(ME, &Binding { arguments: raw(&pattern), ..plain }).unwrap();
    world.vhost.bind_exchange(&binding("amq.fanout", "amq.headers", "")).unwrap();
    let with = |value| table(&[("a", FieldValue::I64(value))]);
    for (exchange, value, routed) in [
        ("amq.headers", 1, true),
        ("amq.headers", 2, false),
        ("amq.fanout", 2, false),
        ("amq.fanout", 1, true),
        ("amq.headers", 1, true),
    ] {
        let headers = with(value);
        let properties = Properties::default().with_headers(raw(&headers));
        let found = world.try_publish(exchange, "", "m", properties);
        assert_eq!(found, Ok(routed), "{exchange} {value}");
    }
    assert_eq!(queue.message_count(), 3);
    let bad = table(&[("x-match", FieldValue::text("bad"))]);
    assert_eq!(
        refusal(world.vhost.bind_queue(ME, &Binding { arguments: raw(&bad), ..plain })),
        (406, "Invalid x-match field value <<\"bad\">>; expected all, any, all-with-x, or any-with-x".into())
    );
}

#[test]
fn routes_follow_the_topology_at_once() {
    let mut world = world();
    world.queue("q");
    assert!(!world.publish("amq.direct", "k", "1"));
    world.bind("q", "amq.direct", "k");
    assert!(world.publish("amq.direct", "k", "2"));
    world.vhost.unbind_queue(ME, &binding("amq.direct", "q", "k")).unwrap();
    assert!(!world.publish("amq.direct", "k", "3"));
    world.exchange("e", "direct");
    assert!(!world.publish("e", "k", "4"));
    world.vhost.delete_exchange("e", false).unwrap();
    assert_eq!(refusal(world.try_publish("e", "k", "5", Properties::default())).0, 404);
}

#[test]
fn more_routes_than_fit_the_cache_are_still_right() {
    let mut world = world();
    let queues: Vec<_> = (0..3000).map(|n| world.queue(&format!("q{n}"))).collect();
    for round in 0..2 {
        for n in 0..3000 {
            assert!(world.publish("", &format!("q{n}"), &format!("{n}/{round}")));
        }
    }
    for (n, queue) in queues.iter().enumerate() {
        assert_eq!(world.drain(queue), [format!("{n}/0"), format!("{n}/1")]);
    }
}

#[test]
fn routes_by_headers_are_cached_for_those_headers_and_that_topology_only() {
    let mut world = world();
    let queues: Vec<_> = (0..1500).map(|n| world.queue(&format!("q{n}"))).collect();
    let plain = binding("amq.headers", "", "");
    let bind = |world: &World, n: usize, value: usize| {
        let arguments = table(&[("n", FieldValue::I64(value as i64))]);
        let destination = &format!("q{n}");
        world
            .vhost
            .bind_queue(ME, &Binding { destination, arguments: raw(&arguments), ..plain })
            .map(drop)
            .unwrap();
    };
    (0..1500).for_each(|n| bind(&world, n, n));
    let publish = |world: &mut World, value: usize, padding: usize| {
        let padding = FieldValue::LongString(vec![b'x'; padding]);
        let headers = table(&[("n", FieldValue::I64(value as i64)), ("padding", padding)]);
        let properties = Properties::default().with_headers(raw(&headers));
        world.try_publish("amq.headers", "same key", "m", properties).unwrap()
    };
    for value in 0..1500 {
        assert!(publish(&mut world, value, 0) && publish(&mut world, value, 0), "more than are cached");
        assert!(publish(&mut world, 1, 0), "another in between");
        assert!(publish(&mut world, value, 5_000), "too long to be cached");
    }
    assert!(!publish(&mut world, 1500, 0));
    bind(&world, 0, 1500);
    assert!(publish(&mut world, 1500, 0), "bound by now");
    let counts: Vec<u64> = queues.iter().map(|queue| queue.message_count()).collect();
    assert_eq!((counts[0], counts[1]), (4, 3 + 1500));
    assert!(counts[2..].iter().all(|count| *count == 3));
}
