//! `x-consistent-hash`: each message to one destination, by weight.

use amqp::FieldValue;
use broker::*;

use crate::world::*;

#[test]
fn messages_are_shared_out_by_weight_and_each_key_keeps_its_queue() {
    let mut world = world();
    world.exchange("e", "x-consistent-hash");
    let queues: Vec<_> = ["1", "2", "3", "4"]
        .map(|weight| {
            let queue = world.queue(&format!("q{weight}"));
            world.bind(&format!("q{weight}"), "e", weight);
            queue
        })
        .into();
    for key in 0..2000 {
        assert!(world.publish("e", &key.to_string(), "x"));
    }
    let counts: Vec<u64> = queues.iter().map(|queue| queue.message_count()).collect();
    assert_eq!(counts.iter().sum::<u64>(), 2000, "each to one queue");
    for (weight, count) in (1..).zip(&counts) {
        assert!(count.abs_diff(weight * 200) < 60, "{counts:?}");
    }
    (0..2000).for_each(|key| assert!(world.publish("e", &key.to_string(), "x")));
    let again: Vec<u64> = queues.iter().map(|queue| queue.message_count()).collect();
    assert_eq!(again, counts.iter().map(|count| 2 * count).collect::<Vec<_>>());
}

#[test]
fn a_header_decides_although_the_route_of_the_key_is_known() {
    let mut world = world();
    let arguments = table(&[("hash-header", FieldValue::text("h"))]);
    let declare = ExchangeDeclare {
        name: "e",
        kind: "x-consistent-hash",
        arguments: raw(&arguments),
        ..Default::default()
    };
    world.vhost.declare_exchange(&declare).unwrap();
    let queues: Vec<_> = (0..4).map(|n| world.queue(&format!("q{n}"))).collect();
    (0..4).for_each(|n| world.bind(&format!("q{n}"), "e", "1"));
    for value in 0..100 {
        let headers = table(&[("h", FieldValue::I32(value))]);
        let properties = amqp::Properties::default().with_headers(raw(&headers));
        assert!(world.try_publish("e", "same", "x", properties).unwrap());
    }
    let used = queues.iter().filter(|queue| queue.message_count() > 0).count();
    assert_eq!(used, 4);
}

#[test]
fn a_binding_key_is_a_weight() {
    let world = world();
    world.exchange("e", "x-consistent-hash");
    world.queue("q");
    let refused = refusal(world.vhost.bind_queue(ME, &binding("e", "q", "abc")));
    assert_eq!(refused, (406, "The binding key must be an integer: <<\"abc\">>".to_owned()));
}
