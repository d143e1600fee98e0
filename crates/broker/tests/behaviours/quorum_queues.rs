//! What distinguishes a quorum queue on one node: deliveries are counted, shown and limited.

use amqp::{FieldValue, Properties};
use broker::*;

use crate::world::*;

fn quorum(world: &World, arguments: &[(&str, FieldValue)]) -> std::sync::Arc<Queue> {
    let mut all = vec![("x-queue-type", FieldValue::text("quorum"))];
    all.extend_from_slice(arguments);
    let arguments = table(&all);
    let declare = QueueDeclare { name: "q", durable: true, arguments: raw(&arguments), ..Default::default() };
    world.declare(declare).unwrap().queue
}

fn count_shown(delivery: &Delivery, by_get: bool) -> Option<i64> {
    let properties = delivery.properties(QueueKind::Quorum, by_get);
    let headers = Properties::decode(&properties).unwrap().headers.map(|headers| headers.decode());
    headers.unwrap_or_default().get("x-delivery-count").and_then(FieldValue::as_integer)
}

#[test]
fn deliveries_are_counted_in_a_header() {
    let mut world = world();
    let queue = quorum(&world, &[]);
    world.publish("", "q", "m");
    let first = world.get(&queue);
    assert_eq!((count_shown(&first, true), count_shown(&first, false)), (Some(0), None));
    queue.requeue(vec![first], world.now);
    let second = world.get(&queue);
    assert!(second.redelivered());
    assert_eq!((count_shown(&second, true), count_shown(&second, false)), (Some(1), Some(1)));
}

#[test]
fn classic_queues_show_properties_as_they_were_sent() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish("", "q", "m");
    queue.requeue(vec![world.get(&queue)], world.now);
    let again = world.get(&queue);
    assert_eq!(&*again.properties(QueueKind::Classic, true), again.message().properties());
}

#[test]
fn a_message_that_came_back_too_often_is_dead_lettered() {
    let mut world = world();
    let dead = world.queue("dead");
    let queue = quorum(
        &world,
        &[
            ("x-delivery-limit", FieldValue::I32(2)),
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ],
    );
    world.publish("", "q", "m");
    for _ in 0..3 {
        queue.requeue(vec![world.get(&queue)], world.now);
    }
    assert_eq!((queue.message_count(), dead.message_count()), (0, 1));
    let reason = headers_of(&world.get(&dead)).get("x-first-death-reason").cloned();
    assert_eq!(reason, Some(FieldValue::text("delivery_limit")));
}
