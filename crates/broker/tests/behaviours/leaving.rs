//! The end of a client: its consumers leave and its deliveries return, in one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use amqp::{FieldValue, Properties};
use broker::*;
use sync::work::{self, Turn};

use crate::dead_letters::dead_letter_to;
use crate::quorum_queues::quorum;
use crate::rabbitmq_4::rabbitmq_4;
use crate::world::*;

fn single_active(world: &World) -> Arc<Queue> {
    world.queue_with("q", &[("x-single-active-consumer", FieldValue::Boolean(true))])
}

/// Publishes as many messages to queue q, each with its number; returns these.
fn publish_numbers(world: &mut World, count: usize) -> Vec<String> {
    let bodies: Vec<_> = (0..count).map(|number| number.to_string()).collect();
    world.publish_all("q", &bodies.iter().map(|body| &**body).collect::<Vec<_>>());
    bodies
}

/// Takes what a consumer has got.
fn taken(recorder: &Recorder) -> Vec<Delivery> {
    recorder.got.lock().drain(..).collect()
}

#[test]
fn the_next_single_active_consumer_starts_with_requeued_messages() {
    let mut world = world();
    let queue = single_active(&world);
    let (first, one) = world.consume(&queue, 2, 0);
    let (_, two) = world.consume(&queue, 10, 0);
    world.publish_all("q", &["1", "2", "3", "4"]);
    queue.leave(&[first], taken(&one), world.now);
    assert_eq!(two.bodies(), ["1", "2", "3", "4"]);
    assert_eq!((queue.message_count(), queue.unacked_count(), queue.consumer_count()), (0, 4, 1));
}

#[test]
fn an_end_counts_one_failure_however_many_consumers_leave() {
    let mut world = world();
    let queue = quorum(&world, &[("x-delivery-limit", FieldValue::I64(1))]);
    let consumers: Vec<_> = (0..25).map(|_| world.consume(&queue, 10, 0)).collect();
    world.publish_all("q", &["m"]);
    let ids: Vec<_> = consumers.iter().map(|(id, _)| *id).collect();
    queue.leave(&ids, consumers.iter().flat_map(|(_, one)| taken(one)).collect(), world.now);
    assert!(consumers.iter().all(|(_, one)| one.bodies().is_empty()));
    assert_eq!((queue.message_count(), queue.unacked_count(), queue.consumer_count()), (1, 0, 0));
}

#[test]
fn a_queue_deleted_with_its_last_consumer_takes_no_deliveries_back() {
    let mut world = world();
    let dead = world.queue("dead");
    let [exchange, key] = dead_letter_to("dead");
    let arguments = table(&[exchange, key, ("x-max-length", FieldValue::I64(1))]);
    let declare =
        QueueDeclare { name: "q", auto_delete: true, arguments: raw(&arguments), ..Default::default() };
    let queue = world.declare(declare).unwrap().queue;
    let (id, recorder) = world.consume(&queue, 10, 0);
    world.publish_all("q", &["1", "2"]);
    queue.leave(&[id], taken(&recorder), world.now);
    assert!(queue.is_deleted() && !recorder.was_cancelled());
    assert_eq!((queue.message_count(), queue.unacked_count(), dead.message_count()), (0, 0, 0));
    assert_eq!(world.broker.metrics().messages_requeued.get(), 0);
    // The consumer is gone already.
    queue.leave(&[id], Vec::new(), world.now);
}

#[test]
fn deliveries_without_a_consumer_return_and_consumers_without_deliveries_leave() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1"]);
    let got = world.get(&queue);
    let (id, recorder) = world.consume(&queue, 1, 0);
    queue.leave(&[], vec![got], world.now);
    assert_eq!(recorder.bodies(), ["1"]);
    queue.leave(&[id], Vec::new(), world.now);
    assert_eq!((queue.consumer_count(), queue.unacked_count()), (0, 1), "its channel still has the message");
    assert_eq!(world.broker.metrics().consumers.get(), 0);
}

#[test]
fn very_many_consumers_leave_before_another_is_served() {
    let mut world = world();
    let queue = single_active(&world);
    let mine: Vec<_> = (0..2_000).map(|_| world.consume(&queue, 2, 0)).collect();
    let (_, other) = world.consume(&queue, 10, -1);
    world.publish_all("q", &["1", "2", "3"]);
    let ids: Vec<_> = mine.iter().map(|(id, _)| *id).collect();
    queue.leave(&ids, taken(&mine[0].1), world.now);
    assert!(mine.iter().all(|(_, one)| one.bodies().is_empty()));
    assert_eq!((other.bodies(), queue.consumer_count()), (vec!["1".into(), "2".into(), "3".into()], 1));
}

/// Enough messages to be put back as one batch.
const MANY: usize = 3_000;

#[test]
fn very_many_messages_return_to_their_places_and_are_charged() {
    for max_priority in [0, 3] {
        let mut world = world();
        let queue = world.queue_with("q", &[("x-max-priority", FieldValue::I64(max_priority))]);
        for number in 0..MANY {
            let properties = Properties::default().with_priority((number % 4) as u8);
            world.try_publish("", "q", &number.to_string(), properties).unwrap();
        }
        let deliveries: Vec<_> = (0..MANY - 10).map(|_| world.get(&queue)).collect();
        let order: Vec<_> = deliveries.iter().map(text).collect();
        let (few, mut many): (Vec<_>, Vec<_>) =
            deliveries.into_iter().enumerate().partition(|(at, _)| at % 100 == 0);
        many.reverse();
        queue.requeue(few.into_iter().map(|(_, one)| one).collect(), Returned::Failed, world.now);
        let turn = Turn::begin();
        queue.requeue(many.into_iter().map(|(_, one)| one).collect(), Returned::Failed, world.now);
        assert!(turn.spent() > 50 * MANY as u64, "{} ns", turn.spent());
        drop(turn);
        assert_eq!((queue.message_count(), queue.unacked_count()), (MANY as u64, 0));
        let again = world.drain(&queue);
        assert_eq!((&again[..order.len()], again.len()), (&order[..], MANY));
    }
}

#[test]
fn very_many_messages_return_in_front_where_these_come_first() {
    let mut world = rabbitmq_4();
    let queue = quorum(&world, &[]);
    let bodies = publish_numbers(&mut world, MANY + 2);
    let mut deliveries: Vec<_> = (0..=MANY).map(|_| world.get(&queue)).collect();
    let last = deliveries.pop().unwrap();
    queue.requeue(vec![last], Returned::Released, world.now);
    queue.requeue(deliveries, Returned::Released, world.now);
    let again = world.drain(&queue);
    let (first, rest) = (&again[0], &again[1..]);
    assert_eq!((&**first, rest[0].as_str(), rest.len()), ("3000", "0", MANY + 1));
    assert_eq!((&rest[..MANY], &*rest[MANY]), (&bodies[..MANY], "3001"));
}

#[test]
fn very_many_refused_messages_are_charged_and_dead_lettered_in_order() {
    let mut world = world();
    let dead = world.queue("dead");
    let queue = world.queue_with("q", &dead_letter_to("dead"));
    let bodies = publish_numbers(&mut world, MANY);
    let deliveries: Vec<_> = (0..MANY).map(|_| world.get(&queue)).collect();
    let turn = Turn::begin();
    queue.reject(deliveries, Returned::Failed, world.now);
    assert!(work::is_turn_over());
    drop(turn);
    // The timer sends those for which the turn had no time.
    while world.broker.next_deadline().is_some_and(|due| due <= world.now) {
        world.broker.expire(world.now);
    }
    assert_eq!((queue.unacked_count(), world.drain(&dead)), (0, bodies));
}

#[test]
fn no_consumer_is_served_while_very_many_messages_return() {
    let mut world = world();
    let queue = single_active(&world);
    let bodies = publish_numbers(&mut world, MANY);
    let (first, one) = world.consume(&queue, MANY, 0);
    let (_, two) = world.consume(&queue, usize::MAX, 0);
    let (over, now) = (AtomicBool::new(false), world.now);
    thread::scope(|scope| {
        // Each arriving message offers the ready messages to consumers with capacity.
        let publishing = scope.spawn(|| {
            let mut published = 0;
            while !over.load(Ordering::SeqCst) {
                world.publish("", "q", "later");
                published += 1;
            }
            published
        });
        queue.leave(&[first], taken(&one), now);
        over.store(true, Ordering::SeqCst);
        let published = publishing.join().unwrap();
        let got = two.bodies();
        assert_eq!((&got[..MANY], got.len()), (&bodies[..], MANY + published));
    });
}

#[test]
fn deliveries_of_several_channels_return_in_order_where_returned_messages_come_first() {
    let mut world = rabbitmq_4();
    let queue = quorum(&world, &[]);
    let bodies = publish_numbers(&mut world, MANY);
    let got: Vec<_> = bodies.iter().map(|_| world.get(&queue)).collect();
    let (one, other): (Vec<_>, Vec<_>) = got.into_iter().partition(|delivery| delivery.position() % 3 == 0);
    let mut requeue = Requeue::of_leaving(&queue, Vec::new(), MANY, true);
    for channel in [other, one] {
        channel.chunks(100).for_each(|step| requeue.add(step.to_vec()));
    }
    assert_eq!(queue.message_count(), 0);
    requeue.finish(world.now);
    let back: Vec<_> = (0..MANY).map(|_| text(&world.get(&queue))).collect();
    assert_eq!(back, bodies);
}

#[test]
fn a_queue_that_is_deleted_while_very_many_messages_return_takes_none_back() {
    let mut world = world();
    let queue = world.queue("q");
    publish_numbers(&mut world, MANY);
    let got: Vec<_> = (0..MANY).map(|_| world.get(&queue)).collect();
    let mut requeue = Requeue::of_leaving(&queue, Vec::new(), MANY, false);
    let (early, late) = got.split_at(MANY / 2);
    requeue.add(early.to_vec());
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    requeue.add(late.to_vec());
    requeue.finish(world.now);
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
    assert_eq!(world.broker.metrics().messages_requeued.get(), 0);
}
