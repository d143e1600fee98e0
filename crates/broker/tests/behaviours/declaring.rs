use amqp::FieldValue;
use broker::*;

use crate::world::*;

#[test]
fn passive_declare_skips_equivalence_and_returns_counts() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1", "2"]);
    world.consume(&queue, 0, 0);
    let found = world
        .declare(QueueDeclare { name: "q", passive: true, durable: true, ..Default::default() })
        .unwrap();
    assert_eq!((found.messages, found.consumers), (2, 1));
    let missing = world.declare(QueueDeclare { name: "nope", passive: true, ..Default::default() });
    assert_eq!(refusal(missing), (404, "no queue 'nope' in vhost '/'".into()));
    let unnamed = world.declare(QueueDeclare { passive: true, ..Default::default() });
    assert_eq!(refusal(unnamed), (404, "no queue '' in vhost '/'".into()));
}

#[test]
fn redeclare_compares_properties_and_known_arguments() {
    let world = world();
    world.queue("q");
    let refused = |declare| refusal(world.declare(declare));
    let text =
        |key: &str, end: &str| (406, format!("inequivalent arg '{key}' for queue 'q' in vhost '/': {end}"));
    let flags = "received 'true' but current is 'false'";
    let q = QueueDeclare { name: "q", ..Default::default() };
    assert_eq!(refused(QueueDeclare { durable: true, ..q }), text("durable", flags));
    assert_eq!(refused(QueueDeclare { auto_delete: true, ..q }), text("auto_delete", flags));
    let ttl = table(&[("x-message-ttl", FieldValue::I32(60000))]);
    assert_eq!(
        refused(QueueDeclare { arguments: raw(&ttl), ..q }),
        text("x-message-ttl", "received the value '60000' of type 'signedint' but current is none")
    );
    let unknown = table(&[("x-unknown", FieldValue::I32(1)), ("x-queue-type", FieldValue::text("classic"))]);
    assert!(world.declare(QueueDeclare { arguments: raw(&unknown), ..q }).is_ok());
}

#[test]
fn wrong_arguments_are_refused() {
    let world = world();
    let refused = |key, value| {
        let arguments = table(&[(key, value)]);
        refusal(world.declare(QueueDeclare { name: "q", arguments: raw(&arguments), ..Default::default() }))
    };
    assert_eq!(
        refused("x-message-ttl", FieldValue::text("x")),
        (
            406,
            "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': \"expected integer, got longstr\""
                .into()
        )
    );
    assert_eq!(
        refused("x-dead-letter-exchange", FieldValue::I32(1)),
        (406, "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'".into())
    );
    assert_eq!(
        refused("x-queue-type", FieldValue::text("quorum")),
        (406, "invalid property 'non-durable' for queue 'q' in vhost '/'".into())
    );
}

#[test]
fn a_queue_without_a_name_gets_one() {
    let world = world();
    let name = world.queue("").name().to_string();
    assert!(name.starts_with("amq.gen-") && name.len() == 30, "{name}");
    let active = world.declare(QueueDeclare { name: &name, ..Default::default() });
    assert_eq!(refusal(active), (403, format!("queue name '{name}' contains reserved prefix 'amq.*'")));
    assert!(world.declare(QueueDeclare { name: &name, passive: true, ..Default::default() }).is_ok());
}

#[test]
fn line_ends_are_stripped_from_names() {
    let mut world = world();
    assert_eq!(&**world.queue("a\r\nb").name(), "ab");
    world.exchange("e\n", "fanout");
    world.bind("\rab", "e", "");
    assert!(world.publish("e", "", "x"));
}

#[test]
fn names_may_be_255_bytes_long() {
    let mut world = world();
    let name = "n".repeat(255);
    world.queue(&name);
    assert!(world.publish("", &name, "x"));
}

#[test]
fn deleting_missing_queues_and_exchanges_succeeds() {
    let world = world();
    assert_eq!(world.vhost.delete_queue(ME, "nope", true, true).map(|(messages, _)| messages), Ok(0));
    assert_eq!(world.vhost.delete_exchange("nope", true).map(drop), Ok(()));
}

#[test]
fn queues_and_exchanges_are_not_deleted_against_conditions() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish("", "q", "1");
    let delete =
        |unused, empty| world.vhost.delete_queue(ME, "q", unused, empty).map(|(messages, _)| messages);
    assert_eq!(refusal(delete(false, true)), (406, "queue 'q' in vhost '/' not empty".into()));
    let (id, _) = world.consume(&queue, 0, 0);
    assert_eq!(refusal(delete(true, false)), (406, "queue 'q' in vhost '/' in use".into()));
    queue.cancel(id, world.now);
    assert_eq!(delete(true, false), Ok(1));
    world.exchange("e", "direct");
    world.queue("q2");
    world.bind("q2", "e", "k");
    let in_use = refusal(world.vhost.delete_exchange("e", true));
    assert_eq!(in_use, (406, "exchange 'e' in vhost '/' in use".into()));
    assert_eq!(world.vhost.delete_exchange("e", false).map(drop), Ok(()));
}

#[test]
fn standard_exchanges_stay_and_reserved_names_are_refused() {
    let world = world();
    let declare = |name, kind| {
        world.vhost.declare_exchange(&ExchangeDeclare { name, kind, durable: true, ..Default::default() })
    };
    for (name, kind) in [("direct", "direct"), ("fanout", "fanout"), ("topic", "topic"), ("match", "headers")]
    {
        let name = format!("amq.{name}");
        let declare = ExchangeDeclare { name: &name, kind, durable: true, ..Default::default() };
        assert_eq!(world.vhost.declare_exchange(&declare).map(drop), Ok(()));
    }
    assert_eq!(
        refusal(world.vhost.delete_exchange("amq.direct", false)),
        (403, "deletion of system exchange 'amq.direct' in vhost '/' not allowed".into())
    );
    assert_eq!(
        refusal(declare("amq.foo", "direct")),
        (403, "exchange name 'amq.foo' contains reserved prefix 'amq.*'".into())
    );
    assert_eq!(
        refusal(declare("amq.direct", "fanout")),
        (406, "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'".into())
    );
    assert_eq!(refusal(declare("e", "nope")), (503, "unknown exchange type 'nope'".into()));
}

#[test]
fn the_default_exchange_cannot_be_changed() {
    let mut world = world();
    world.queue("q");
    let expected = (403, "operation not permitted on the default exchange".to_owned());
    let declare = |passive| {
        world.vhost.declare_exchange(&ExchangeDeclare { kind: "direct", passive, ..Default::default() })
    };
    assert_eq!(refusal(declare(false)), expected);
    assert_eq!(refusal(declare(true)), expected);
    assert_eq!(refusal(world.vhost.delete_exchange("", false)), expected);
    assert_eq!(refusal(world.vhost.bind_queue(ME, &binding("", "q", "k"))), expected);
    assert_eq!(refusal(world.vhost.unbind_queue(ME, &binding("", "q", "k"))), expected);
    assert_eq!(refusal(world.vhost.bind_exchange(&binding("", "amq.fanout", "k"))), expected);
    assert_eq!(refusal(world.vhost.bind_exchange(&binding("amq.fanout", "", "k"))), expected);
    assert!(world.publish("", "q", "publishing works"));
}

#[test]
fn a_missing_vhost_and_a_foreign_one_are_refused() {
    let world = world();
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    assert_eq!(refusal(world.broker.open(&guest, "x")), (530, "vhost x not found".into()));
    world.broker.add_vhost("x");
    assert_eq!(
        refusal(world.broker.open(&guest, "x")),
        (530, "access to vhost 'x' refused for user 'guest'".into())
    );
}

#[test]
fn exchange_types_with_a_hyphen_are_quoted_as_erlang_does() {
    let world = world();
    world.exchange("e", "x-consistent-hash");
    let again =
        world.vhost.declare_exchange(&ExchangeDeclare { name: "e", kind: "direct", ..Default::default() });
    let text = "inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is \
                ''x-consistent-hash''";
    assert_eq!(refusal(again), (406, text.into()));
}
