//! B5: requeued messages return to their positions.

use broker::Returned;

use crate::world::*;

#[test]
fn requeue_restores_the_place_and_marks_as_redelivered() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1", "2", "3", "4"]);
    let (one, two, three) = (world.get(&queue), world.get(&queue), world.get(&queue));
    assert!(!two.redelivered());
    queue.requeue(vec![three], Returned::Failed, world.now);
    queue.requeue(vec![two, one], Returned::Failed, world.now);
    assert_eq!((queue.message_count(), queue.unacked_count()), (4, 0));
    let again: Vec<_> = (0..4).map(|_| world.get(&queue)).collect();
    assert_eq!(again.iter().map(text).collect::<Vec<_>>(), ["1", "2", "3", "4"]);
    assert_eq!(again.iter().map(|d| d.redelivered()).collect::<Vec<_>>(), [true, true, true, false]);
}

#[test]
fn requeued_messages_go_to_a_consumer_with_capacity() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1"]);
    let deliveries = world.get(&queue);
    let (_, recorder) = world.consume(&queue, 1, 0);
    queue.requeue(vec![deliveries], Returned::Failed, world.now);
    assert_eq!(recorder.bodies(), ["1"]);
}

#[test]
fn messages_returned_after_their_queue_was_deleted_are_dropped() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1", "2", "3"]);
    let deliveries: Vec<_> = (0..3).map(|_| world.get(&queue)).collect();
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    let mut deliveries = deliveries.into_iter();
    queue.ack(deliveries.next().into_iter().collect(), world.now);
    queue.requeue(deliveries.next().into_iter().collect(), Returned::Failed, world.now);
    queue.reject(deliveries.collect(), Returned::Failed, world.now);
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
}
