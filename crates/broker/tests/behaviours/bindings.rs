use amqp::FieldValue;
use broker::*;

use crate::world::*;

#[test]
fn a_refused_binding_names_a_missing_exchange_before_a_missing_queue() {
    let world = world();
    world.queue("q");
    let bind = |source, queue| refusal(world.vhost.bind_queue(ME, &binding(source, queue, "k")));
    assert_eq!(bind("nope", "nada"), (404, "no exchange 'nope' in vhost '/'".into()));
    assert_eq!(bind("amq.direct", "nada"), (404, "no queue 'nada' in vhost '/'".into()));
    assert_eq!(bind("amq.direct", ""), (404, "no previously declared queue".into()));
    let bind = |source, destination| refusal(world.vhost.bind_exchange(&binding(source, destination, "k")));
    assert_eq!(bind("amq.direct", "nope"), (404, "no exchange 'nope' in vhost '/'".into()));
    assert_eq!(bind("nope", "amq.direct"), (404, "no exchange 'nope' in vhost '/'".into()));
}

#[test]
fn unbinding_missing_objects_succeeds() {
    let world = world();
    world.queue("q");
    for (source, queue) in [("nope", "q"), ("amq.direct", "nope"), ("amq.direct", "q")] {
        assert_eq!(world.vhost.unbind_queue(ME, &binding(source, queue, "never")).map(drop), Ok(()));
    }
    assert_eq!(world.vhost.unbind_exchange(&binding("nope", "nada", "k")).map(drop), Ok(()));
}

#[test]
fn several_matching_bindings_deliver_once() {
    let mut world = world();
    let queue = world.queue("q");
    for pattern in ["a.*", "a.#", "#", "a.b"] {
        world.bind("q", "amq.topic", pattern);
    }
    world.publish("amq.topic", "a.b", "once");
    assert_eq!(world.drain(&queue), ["once"]);
}

#[test]
fn bindings_are_distinguished_by_key_and_arguments() {
    let mut world = world();
    let queue = world.queue("q");
    let one = table(&[("a", FieldValue::I32(1)), ("b", FieldValue::I32(2))]);
    let same = table(&[("b", FieldValue::I32(2)), ("a", FieldValue::I32(1))]);
    let plain = binding("amq.direct", "q", "k");
    for arguments in [&one, &same] {
        world.vhost.bind_queue(ME, &Binding { arguments: raw(arguments), ..plain }).unwrap();
    }
    world.vhost.bind_queue(ME, &plain).unwrap();
    world.vhost.bind_queue(ME, &plain).unwrap();
    assert_eq!(world.broker.metrics().bindings.get(), 2, "the order of arguments does not matter");
    world.vhost.unbind_queue(ME, &plain).unwrap();
    world.publish("amq.direct", "k", "still bound");
    assert_eq!(world.drain(&queue), ["still bound"]);
    world.vhost.unbind_queue(ME, &Binding { arguments: raw(&one), ..plain }).unwrap();
    assert!(!world.publish("amq.direct", "k", "no longer"));
}

#[test]
fn an_auto_delete_exchange_goes_with_its_last_binding() {
    let world = world();
    let auto = |name| {
        let declare = ExchangeDeclare { name, kind: "fanout", auto_delete: true, ..Default::default() };
        world.vhost.declare_exchange(&declare).unwrap();
    };
    let exists = |name| {
        world.vhost.declare_exchange(&ExchangeDeclare { name, passive: true, ..Default::default() }).is_ok()
    };
    auto("end");
    auto("middle");
    auto("start");
    world.queue("q");
    world.vhost.bind_exchange(&binding("start", "middle", "")).unwrap();
    world.vhost.bind_exchange(&binding("middle", "end", "")).unwrap();
    world.bind("q", "end", "");
    assert!(exists("start") && exists("middle") && exists("end"), "not before they have had a binding");
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    assert!(!exists("end"), "its last binding went with the queue");
    assert!(!exists("middle") && !exists("start"), "and theirs with the exchange");
    assert_eq!(world.broker.metrics().bindings.get(), 0);
}

#[test]
fn cycles_of_exchanges_are_harmless() {
    let mut world = world();
    let queue = world.queue("q");
    for name in ["a", "b", "c"] {
        world.exchange(name, "fanout");
    }
    for (source, destination) in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "a")] {
        world.vhost.bind_exchange(&binding(source, destination, "")).unwrap();
    }
    world.bind("q", "c", "");
    world.publish("a", "", "once");
    assert_eq!(world.drain(&queue), ["once"]);
    world.vhost.delete_exchange("b", false).unwrap();
    assert!(!world.publish("a", "", "cut off"));
}

#[test]
fn deleting_a_queue_with_very_many_bindings_leaves_nothing_behind() {
    let mut world = world();
    world.queue("q");
    let other = world.queue("other");
    for n in 0..5_000 {
        world.bind("q", "amq.topic", &format!("a.{n}.#"));
    }
    world.bind("other", "amq.topic", "a.7.#");
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    assert_eq!(world.broker.metrics().bindings.get(), 1);
    world.publish("amq.topic", "a.7.x", "m");
    assert_eq!(world.drain(&other), ["m"]);
    assert!(!world.publish("amq.topic", "a.8.x", "m"));
}

#[test]
fn a_deleted_and_redeclared_queue_has_no_bindings() {
    let mut world = world();
    world.queue("q");
    world.bind("q", "amq.direct", "k");
    assert!(world.publish("amq.direct", "k", "m"));
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    world.queue("q");
    assert!(!world.publish("amq.direct", "k", "m"));
    assert!(world.publish("", "q", "by name"));
}

#[test]
fn an_exchange_takes_very_many_bindings_with_it_and_those_to_itself() {
    let world = world();
    world.queue("q");
    for name in ["e", "other"] {
        world.vhost.declare_exchange(&ExchangeDeclare { name, kind: "topic", ..Default::default() }).unwrap();
    }
    for number in 0..2_500 {
        world.bind("q", "e", &format!("{number}.*"));
        world.vhost.bind_exchange(&binding("e", "e", &format!("self.{number}"))).unwrap();
    }
    for (source, destination) in [("e", "other"), ("other", "e")] {
        world.vhost.bind_exchange(&binding(source, destination, "k")).unwrap();
    }
    world.bind("q", "other", "stays");
    assert_eq!(world.broker.metrics().bindings.get(), 5_003);
    world.vhost.delete_exchange("e", false).unwrap();
    assert_eq!(world.broker.metrics().bindings.get(), 1);
    assert_eq!(world.vhost.bindings_to_queue("q").unwrap().len(), 1);
}
