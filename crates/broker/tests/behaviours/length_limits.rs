use amqp::FieldValue;
use broker::Returned;

use crate::world::*;

#[test]
fn the_oldest_ready_messages_are_dropped() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-max-length", FieldValue::I32(2))]);
    world.publish_all("q", &["1", "2", "3"]);
    assert_eq!(world.drain(&queue), ["2", "3"]);
}

#[test]
fn bytes_of_bodies_are_limited_too() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-max-length-bytes", FieldValue::I32(5))]);
    world.publish_all("q", &["aaa", "bb", "c"]);
    assert_eq!(world.drain(&queue), ["bb", "c"]);
    world.publish_all("q", &["longer than all"]);
    assert!(world.drain(&queue).is_empty());
}

#[test]
fn only_ready_messages_count_and_a_requeue_can_evict_the_head() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-max-length", FieldValue::I32(2))]);
    world.publish_all("q", &["1"]);
    let held = world.get(&queue);
    world.publish_all("q", &["2", "3"]);
    assert_eq!(queue.message_count(), 2);
    queue.requeue(vec![held], Returned::Failed, world.now);
    assert_eq!(world.drain(&queue), ["2", "3"], "the requeued message was the oldest");
}

#[test]
fn length_limits_apply_to_a_batch_as_to_single_messages() {
    let mut world = world();
    let reject = FieldValue::text("reject-publish");
    let queue = world.queue_with("q", &[("x-max-length", FieldValue::I32(2)), ("x-overflow", reject)]);
    let (_, recorder) = world.consume(&queue, 3, 0);
    for n in 0..8 {
        let body = n.to_string();
        let publish = broker::Publish {
            exchange: "",
            routing_key: "q",
            properties: &[0, 0],
            body: broker::Body::Copied(body.as_bytes()),
        };
        world.publisher.publish(publish, world.now).unwrap();
    }
    let now = world.now;
    assert_eq!(world.publisher.flush(now).refused, [5, 6, 7]);
    assert_eq!(recorder.bodies(), ["0", "1", "2"]);
    assert_eq!(world.drain(&queue), ["3", "4"]);
}

#[test]
fn a_queue_of_length_zero_serves_waiting_consumers_only() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-max-length", FieldValue::I32(0))]);
    let (_, recorder) = world.consume(&queue, 1, 0);
    world.publish_all("q", &["1", "2"]);
    assert_eq!((recorder.bodies(), queue.message_count()), (vec!["1".to_owned()], 0));
}
