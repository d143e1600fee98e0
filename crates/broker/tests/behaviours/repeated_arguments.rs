//! An argument that is given twice has one value for permissions, for the broker's behaviour, and for
//! display: the first, as in RabbitMQ.

use amqp::wire::Writer;
use amqp::{FieldValue, Properties};
use broker::*;

use crate::world::*;

/// A table that contains `key` twice.
fn twice(key: &str, first: &FieldValue, second: &FieldValue) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes);
    for value in [first, second] {
        writer.write(&key);
        value.write(&mut writer);
    }
    bytes
}

#[test]
fn a_dead_letter_exchange_is_the_one_that_operators_see() {
    let mut world = world();
    let [first, second] = ["first", "second"].map(|name| world.queue(name));
    for name in ["first", "second"] {
        world.exchange(name, "fanout");
        world.bind(name, name, "");
    }
    let arguments = twice("x-dead-letter-exchange", &FieldValue::text("first"), &FieldValue::text("second"));
    let declare = QueueDeclare { name: "q", arguments: raw(&arguments), ..Default::default() };
    let queue = world.declare(declare).unwrap().queue;
    world.publish("", "q", "m");
    let delivery = world.get(&queue);
    queue.reject(vec![delivery], Returned::Failed, world.now);
    assert_eq!((first.message_count(), second.message_count()), (1, 0));
    assert_eq!(json_of(&queue.properties().arguments)["x-dead-letter-exchange"], "first");
}

#[test]
fn an_alternate_exchange_is_the_one_that_operators_see() {
    let mut world = world();
    let [first, second] = ["first", "second"].map(|name| world.queue(name));
    for name in ["first", "second"] {
        world.exchange(name, "fanout");
        world.bind(name, name, "");
    }
    let arguments = twice("alternate-exchange", &FieldValue::text("first"), &FieldValue::text("second"));
    let declare =
        ExchangeDeclare { name: "e", kind: "fanout", arguments: raw(&arguments), ..Default::default() };
    world.vhost.declare_exchange(&declare).unwrap();
    assert!(world.publish("e", "", "m"));
    assert_eq!((first.message_count(), second.message_count()), (1, 0));
    let view = world.vhost.exchange_view("e").unwrap();
    assert_eq!(json_of(&view.arguments)["alternate-exchange"], "first");
}

#[test]
fn a_binding_matches_as_operators_see_it() {
    let mut world = world();
    world.queue("q");
    let arguments = twice("k", &FieldValue::I32(1), &FieldValue::I32(2));
    let bound = Binding { arguments: raw(&arguments), ..binding("amq.headers", "q", "") };
    world.vhost.bind_queue(ME, &bound).unwrap();
    let bindings = world.vhost.bindings_to_queue("q").unwrap();
    assert_eq!(json_of(&bindings[0].arguments)["k"], 1);
    for (value, matches) in [(1, true), (2, false)] {
        let headers = table(&[("k", FieldValue::I32(value))]);
        let properties = Properties::default().with_headers(raw(&headers));
        assert_eq!(world.try_publish("amq.headers", "", "m", properties).unwrap(), matches, "{value}");
    }
    world.vhost.unbind_queue(ME, &bound).unwrap();
    assert!(world.vhost.bindings_to_queue("q").unwrap().is_empty());
}

#[test]
fn copies_go_where_the_first_header_says_and_blind_ones_are_hidden_whole() {
    let mut world = world();
    let [first, second] = ["first", "second"].map(|name| world.queue(name));
    let keys = |key| FieldValue::Array(vec![FieldValue::text(key)]);
    for header in ["CC", "BCC"] {
        let headers = twice(header, &keys("first"), &keys("second"));
        let properties = Properties::default().with_headers(raw(&headers));
        assert!(world.try_publish("", "nowhere", "m", properties).unwrap());
    }
    assert_eq!((first.message_count(), second.message_count()), (2, 0));
    world.get(&first);
    let blind = world.get(&first);
    let properties = Properties::decode(blind.message().properties()).unwrap();
    assert!(properties.headers.unwrap_or_default().is_empty(), "BCC is hidden");
}
