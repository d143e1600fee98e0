use amqp::FieldValue;
use broker::*;

use crate::world::*;

#[test]
fn nothing_is_delivered_before_the_consumer_is_resumed() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1"]);
    let recorder = Recorder::new(10);
    let id = queue.consume(spec(&recorder, &[])).unwrap();
    world.publish_all("q", &["2"]);
    assert!(recorder.bodies().is_empty(), "consume-ok has not been written yet");
    queue.resume(id, world.now);
    assert_eq!(recorder.bodies(), ["1", "2"]);
}

#[test]
fn a_full_consumer_waits_until_it_has_capacity() {
    let mut world = world();
    let queue = world.queue("q");
    let (id, recorder) = world.consume(&queue, 2, 0);
    world.publish_all("q", &["1", "2", "3", "4"]);
    assert_eq!(recorder.bodies(), ["1", "2"]);
    assert_eq!((queue.message_count(), queue.unacked_count()), (2, 2));
    queue.ack(recorder.got.lock().drain(..).collect(), world.now);
    *recorder.capacity.lock() = 10;
    queue.resume(id, world.now);
    assert_eq!(recorder.bodies(), ["3", "4"]);
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 2));
}

#[test]
fn consumers_take_turns() {
    let mut world = world();
    let queue = world.queue("q");
    let (_, one) = world.consume(&queue, 10, 0);
    let (_, two) = world.consume(&queue, 10, 0);
    world.publish_all("q", &["1", "2", "3", "4"]);
    assert_eq!((one.bodies(), two.bodies()), (vec!["1".into(), "3".into()], vec!["2".into(), "4".into()]));
}

#[test]
fn higher_priorities_first_and_the_rest_spills_over() {
    let mut world = world();
    let queue = world.queue("q");
    let (_, low) = world.consume(&queue, 10, -1);
    let (high_id, high) = world.consume(&queue, 2, 5);
    world.publish_all("q", &["1", "2", "3"]);
    assert_eq!((high.bodies().len(), low.bodies()), (2, vec!["3".to_owned()]));
    *high.capacity.lock() = 1;
    queue.resume(high_id, world.now);
    world.publish_all("q", &["4", "5"]);
    assert_eq!((high.bodies().len(), low.bodies().len()), (3, 2));
}

#[test]
fn a_wrong_priority_is_refused() {
    let world = world();
    let queue = world.queue("q");
    let arguments = table(&[("x-priority", FieldValue::text("high"))]);
    assert_eq!(
        refusal(queue.consume(spec(&Recorder::new(0), &arguments))),
        (
            406,
            "invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\"".into()
        )
    );
}

#[test]
fn an_exclusive_consumer_is_alone_on_its_queue() {
    let world = world();
    let queue = world.queue("q");
    let recorder = Recorder::new(1);
    let exclusive = || ConsumerSpec { exclusive: true, ..spec(&recorder, &[]) };
    let (shared, _) = world.consume(&queue, 0, 0);
    let in_use = (403, "queue 'q' in vhost '/' in exclusive use".to_owned());
    assert_eq!(refusal(queue.consume(exclusive())), in_use);
    queue.cancel(shared, world.now);
    let id = queue.consume(exclusive()).unwrap();
    assert_eq!(refusal(queue.consume(spec(&recorder, &[]))), in_use);
    assert!(world.queue("other").consume(exclusive()).is_ok(), "the check is per queue");
    queue.cancel(id, world.now);
    assert!(queue.consume(spec(&recorder, &[])).is_ok());
}

#[test]
fn nothing_is_delivered_after_cancel() {
    let mut world = world();
    let queue = world.queue("q");
    let (id, recorder) = world.consume(&queue, 10, 0);
    queue.cancel(id, world.now);
    queue.cancel(id, world.now);
    queue.resume(id, world.now);
    world.publish_all("q", &["1"]);
    assert!(recorder.bodies().is_empty());
    assert!(!recorder.was_cancelled(), "the client cancelled it itself");
    assert_eq!(world.broker.metrics().consumers.get(), 0);
}

#[test]
fn deleting_the_queue_cancels_its_consumers() {
    let world = world();
    let queue = world.queue("q");
    let (_, recorder) = world.consume(&queue, 10, 0);
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    assert!(recorder.was_cancelled());
    assert_eq!(world.broker.metrics().consumers.get(), 0);
}

#[test]
fn auto_delete_only_after_having_had_a_consumer() {
    let mut world = world();
    let queue =
        world.declare(QueueDeclare { name: "q", auto_delete: true, ..Default::default() }).unwrap().queue;
    world.publish_all("q", &["1"]);
    assert_eq!(world.drain(&queue), ["1"], "get does not count");
    assert!(!queue.is_deleted());
    let (one, _) = world.consume(&queue, 1, 0);
    let (two, _) = world.consume(&queue, 1, 0);
    queue.cancel(one, world.now);
    assert!(!queue.is_deleted());
    queue.cancel(two, world.now);
    assert!(queue.is_deleted());
    assert!(!world.publish("", "q", "nobody there"));
}

#[test]
fn no_ack_deliveries_are_settled_at_once() {
    let mut world = world();
    let queue = world.queue("q");
    let recorder = Recorder::new(10);
    let id = queue.consume(ConsumerSpec { no_ack: true, ..spec(&recorder, &[]) }).unwrap();
    queue.resume(id, world.now);
    world.publish_all("q", &["1"]);
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
}

#[test]
fn a_single_active_consumer_is_followed_by_the_next() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-single-active-consumer", FieldValue::Boolean(true))]);
    let (first, one) = world.consume(&queue, 2, 0);
    let (_, two) = world.consume(&queue, 10, 0);
    let (_, three) = world.consume(&queue, 10, 0);
    world.publish_all("q", &["1", "2", "3"]);
    assert_eq!((one.bodies().len(), two.bodies().len()), (2, 0), "a full active consumer is not skipped");
    queue.cancel(first, world.now);
    assert_eq!((two.bodies(), three.bodies().len()), (vec!["3".to_owned()], 0));
    let exclusive = ConsumerSpec { exclusive: true, ..spec(&one, &[]) };
    assert_eq!(refusal(queue.consume(exclusive)), (403, "queue 'q' in vhost '/' in exclusive use".into()));
}

#[test]
fn get_returns_the_number_of_remaining_messages() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1", "2", "3"]);
    let got = queue.get(false, world.now).unwrap();
    assert_eq!((text(&got.delivery), got.remaining), ("1".into(), 2));
    assert_eq!(queue.purge(), (2, None), "unacked messages are not purged");
    assert!(queue.get(false, world.now).is_none());
    assert_eq!(queue.unacked_count(), 1);
}
