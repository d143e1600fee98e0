//! The behaviour of quorum queues on a single node: deliveries are counted, reported and limited.

use amqp::{FieldValue, Properties};
use broker::*;

use crate::world::*;

pub(crate) fn quorum(world: &World, arguments: &[(&str, FieldValue)]) -> std::sync::Arc<Queue> {
    let mut all = vec![("x-queue-type", FieldValue::text("quorum"))];
    all.extend_from_slice(arguments);
    let arguments = table(&all);
    let declare = QueueDeclare { name: "q", durable: true, arguments: raw(&arguments), ..Default::default() };
    world.declare(declare).unwrap().queue
}

fn reported_count(queue: &Queue, delivery: &Delivery, by_get: bool) -> Option<i64> {
    let properties = delivery.properties(queue, by_get);
    let headers = Properties::decode(&properties).unwrap().headers.map(|headers| headers.decode());
    headers.unwrap_or_default().get("x-delivery-count").and_then(FieldValue::as_integer)
}

#[test]
fn deliveries_are_counted_in_a_header() {
    let mut world = world();
    let queue = quorum(&world, &[]);
    world.publish("", "q", "m");
    let first = world.get(&queue);
    assert_eq!(
        (reported_count(&queue, &first, true), reported_count(&queue, &first, false)),
        (Some(0), None)
    );
    queue.requeue(vec![first], Returned::Failed, world.now);
    let second = world.get(&queue);
    assert!(second.redelivered());
    assert_eq!(
        (reported_count(&queue, &second, true), reported_count(&queue, &second, false)),
        (Some(1), Some(1))
    );
}

#[test]
fn classic_queues_deliver_properties_as_they_were_sent() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish("", "q", "m");
    queue.requeue(vec![world.get(&queue)], Returned::Failed, world.now);
    let again = world.get(&queue);
    assert_eq!(&*again.properties(&queue, true), again.message().properties());
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
        queue.requeue(vec![world.get(&queue)], Returned::Failed, world.now);
    }
    assert_eq!((queue.message_count(), dead.message_count()), (0, 1));
    let reason = headers_of(&world.get(&dead)).get("x-first-death-reason").cloned();
    assert_eq!(reason, Some(FieldValue::text("delivery_limit")));
}

#[test]
fn a_server_does_not_name_quorum_queues() {
    let world = world();
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    let authorised = world.broker.authorised(&guest, "/").unwrap();
    let arguments = table(&[("x-queue-type", FieldValue::text("quorum"))]);
    let declare = QueueDeclare { durable: true, arguments: raw(&arguments), ..Default::default() };
    let text = "Cannot declare a server-named queue for type rabbit_quorum_queue".to_owned();
    assert_eq!(refusal(authorised.declare_queue(ME, &declare, world.now)), (406, text));
}

#[test]
fn quorum_queues_are_deleted_without_conditions() {
    let world = world();
    quorum(&world, &[]);
    let refused = |if_unused, if_empty| refusal(world.vhost.delete_queue(ME, "q", if_unused, if_empty));
    let text = |flag| {
        let text = format!(
            "cannot delete queue 'q' in vhost '/'. queue.delete operations with {flag} flag set are not supported by \
             quorum queues"
        );
        (540, text)
    };
    assert_eq!(refused(true, true), text("if-unused"));
    assert_eq!(refused(false, true), text("if-empty"));
    assert!(world.vhost.delete_queue(ME, "q", false, false).is_ok());
}

#[test]
fn quorum_queues_ignore_the_exclusive_flag_and_invalid_limits() {
    let world = world();
    let queue = quorum(&world, &[("x-delivery-limit", FieldValue::text("odd"))]);
    for _ in 0..2 {
        let recorder = Recorder::new(1);
        let arguments = table(&[]);
        assert!(queue.consume(ConsumerSpec { exclusive: true, ..spec(&recorder, &arguments) }).is_ok());
    }
}

#[test]
fn a_full_quorum_queue_with_reject_publish_dlx_drops_its_oldest_messages() {
    let mut world = world();
    let dead = world.queue("dead");
    let queue = quorum(
        &world,
        &[
            ("x-max-length", FieldValue::I32(2)),
            ("x-overflow", FieldValue::text("reject-publish-dlx")),
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ],
    );
    world.publish_all("q", &["0", "1", "2", "3"]);
    assert_eq!(world.broker.metrics().messages_refused.get(), 0);
    assert_eq!(
        (world.drain(&dead), world.drain(&queue)),
        (vec!["0".into(), "1".into()], vec!["2".into(), "3".into()])
    );
}
