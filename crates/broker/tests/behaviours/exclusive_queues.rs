use broker::*;

use crate::world::*;

fn exclusive(world: &World, name: &str) -> std::sync::Arc<Queue> {
    world.declare(QueueDeclare { name, exclusive: true, ..Default::default() }).unwrap().queue
}

#[test]
fn other_sessions_cannot_use_an_exclusive_queue() {
    let world = world();
    exclusive(&world, "q");
    let text = "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on \
                another connection or the exclusive property value does not match that of the original declaration.";
    let locked = (405, text.to_owned());
    let vhost = &world.vhost;
    for passive in [false, true] {
        let declare = QueueDeclare { name: "q", passive, exclusive: true, ..Default::default() };
        assert_eq!(refusal(vhost.declare_queue(OTHER, &declare, world.now)), locked);
    }
    assert_eq!(refusal(vhost.queue(OTHER, "q")), locked, "get and consume");
    assert_eq!(refusal(vhost.bind_queue(OTHER, &binding("amq.direct", "q", "k"))), locked);
    assert_eq!(refusal(vhost.purge(OTHER, "q")), locked);
    assert_eq!(refusal(vhost.delete_queue(OTHER, "q", false, false)), locked);
    assert_eq!(
        vhost.unbind_queue(OTHER, &binding("amq.direct", "q", "k")).map(drop),
        Ok(()),
        "nothing to unbind"
    );
    world.bind("q", "amq.direct", "k");
    assert_eq!(refusal(vhost.unbind_queue(OTHER, &binding("amq.direct", "q", "k"))), locked);
}

#[test]
fn exclusive_has_to_match_on_redeclare() {
    let world = world();
    world.queue("shared");
    exclusive(&world, "own");
    let declare = |name, exclusive| world.declare(QueueDeclare { name, exclusive, ..Default::default() });
    assert_eq!(refusal(declare("shared", true)).0, 405);
    assert_eq!(refusal(declare("own", false)).0, 405);
    assert!(declare("own", true).is_ok());
}

#[test]
fn exclusive_queues_are_deleted_with_their_session_and_their_bindings() {
    let mut world = world();
    let queue = exclusive(&world, "q");
    world.queue("stays");
    world.bind("q", "amq.fanout", "");
    world.vhost.end_session(OTHER);
    assert!(world.publish("amq.fanout", "", "x"));
    world.vhost.end_session(ME);
    assert!(queue.is_deleted());
    assert!(!world.publish("amq.fanout", "", "x"), "the binding is gone");
    assert!(world.vhost.queue(ME, "stays").is_ok());
    assert_eq!((world.broker.metrics().queues.get(), world.broker.metrics().bindings.get()), (1, 0));
}

#[test]
fn a_late_end_does_not_remove_a_redeclared_namesake() {
    let world = world();
    exclusive(&world, "q");
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    let declare = QueueDeclare { name: "q", exclusive: true, ..Default::default() };
    let namesake = world.vhost.declare_queue(OTHER, &declare, world.now).unwrap().queue;
    world.vhost.end_session(ME);
    assert!(!namesake.is_deleted());
    assert!(world.vhost.queue(OTHER, "q").is_ok());
}

#[test]
fn exclusive_queues_are_transient_even_if_declared_durable() {
    let world = world();
    let declare = |durable| QueueDeclare { name: "q", durable, exclusive: true, ..Default::default() };
    assert!(!world.declare(declare(true)).unwrap().queue.properties().durable);
    assert!(world.declare(declare(false)).is_ok());
    assert!(world.declare(declare(true)).is_ok(), "durable makes no difference");
}

#[test]
fn a_binding_is_validated_before_the_queues_owner() {
    let world = world();
    world.declare(QueueDeclare { name: "q", exclusive: true, ..Default::default() }).unwrap();
    world.exchange("e", "x-consistent-hash");
    let refused = refusal(world.vhost.bind_queue(OTHER, &binding("e", "q", "heavy")));
    assert_eq!(refused, (406, "The binding key must be an integer: <<\"heavy\">>".into()));
    assert_eq!(refusal(world.vhost.bind_queue(OTHER, &binding("e", "q", "1"))).0, 405);
}
