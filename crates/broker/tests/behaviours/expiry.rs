use amqp::{FieldValue, Properties};
use broker::*;

use crate::disk_world::disk_world;
use crate::world::*;

#[test]
fn messages_expire_by_the_smaller_of_both_times() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-message-ttl", FieldValue::I32(100))]);
    let expiring = |ms| Properties::default().with_expiration(ms);
    world.try_publish("", "q", "short", expiring("10")).unwrap();
    world.try_publish("", "q", "long", expiring("1000")).unwrap();
    assert_eq!(world.broker.next_deadline(), Some(world.now.after(10)));
    world.wait(10);
    assert_eq!(queue.message_count(), 1);
    world.wait(89);
    assert_eq!(queue.message_count(), 1);
    world.wait(1);
    assert_eq!((queue.message_count(), world.broker.next_deadline()), (0, None));
}

#[test]
fn a_ttl_of_zero_delivers_only_at_once() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-message-ttl", FieldValue::I32(0))]);
    world.publish("", "q", "nobody there");
    assert_eq!(queue.message_count(), 0);
    let (_, recorder) = world.consume(&queue, 1, 0);
    world.publish("", "q", "taken");
    assert_eq!(recorder.bodies(), ["taken"]);
}

#[test]
fn with_a_ttl_of_zero_a_message_behind_others_is_dropped_on_arrival() {
    let mut disk_world = disk_world(1);
    let queue = disk_world.durable("q", &[]);
    disk_world.publish("", "q", "older");
    let definition = serde_json::from_str(r#"{"message-ttl": 0, "max-length": 1}"#).unwrap();
    let definition = PolicyDefinition::parse(&definition, Compatibility::V3_10).unwrap();
    let pattern = Pattern::new("^q$").unwrap();
    let policy = Policy { name: "p".into(), pattern, priority: 0, apply_to: ApplyTo::All, definition };
    disk_world.world.vhost.set_policy(policy, disk_world.world.now);
    disk_world.publish("", "q", "new");
    assert_eq!(disk_world.world.drain(&queue), ["older"], "it has been dropped, and displaces nothing");
    disk_world.sync();
    let live = disk_world.store.journal().segments().iter().map(|segment| segment.live).sum::<u64>();
    assert_eq!(live, 0, "nothing of it is left in the journal");
    // Each of several goes to a consumer at once, as if it had come alone.
    let (_, recorder) = disk_world.world.consume(&queue, 2, 0);
    disk_world.world.publish_all("q", &["1", "2", "3"]);
    assert_eq!((recorder.bodies(), queue.message_count()), (vec!["1".to_owned(), "2".to_owned()], 0));
}

#[test]
fn get_does_not_count_expired_messages_behind_as_remaining() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish("", "q", "lasting");
    world.try_publish("", "q", "expired", Properties::default().with_expiration("0")).unwrap();
    assert_eq!(queue.message_count(), 2, "it is checked only when it comes to the head");
    assert_eq!(queue.get(true, world.now).unwrap().remaining, 0);
}

#[test]
fn expired_messages_behind_a_live_one_are_not_consumed() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish("", "q", "1");
    world.try_publish("", "q", "expired", Properties::default().with_expiration("0")).unwrap();
    world.publish("", "q", "2");
    let (_, recorder) = world.consume(&queue, 10, 0);
    assert_eq!(recorder.bodies(), ["1", "2"]);
}

#[test]
fn an_expired_message_is_not_delivered_though_no_timer_has_run() {
    let mut world = world();
    let queue = world.queue("q");
    world.try_publish("", "q", "m", Properties::default().with_expiration("5")).unwrap();
    world.now = world.now.after(5);
    assert!(queue.get(true, world.now).is_none());
}

#[test]
fn a_requeued_message_keeps_its_deadline() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-message-ttl", FieldValue::I32(50))]);
    world.publish("", "q", "m");
    let held = world.get(&queue);
    world.wait(60);
    queue.requeue(vec![held], Returned::Failed, world.now);
    assert_eq!(queue.message_count(), 0);
}

#[test]
fn an_unused_queue_expires_and_use_renews_its_lease() {
    let mut world = world();
    let arguments = table(&[("x-expires", FieldValue::I32(100))]);
    let declare = QueueDeclare { name: "q", arguments: raw(&arguments), ..Default::default() };
    let queue = world.declare(declare).unwrap().queue;
    world.wait(90);
    queue.get(true, world.now);
    world.wait(90);
    world.declare(declare).unwrap();
    world.wait(90);
    let (id, recorder) = world.consume(&queue, 1, 0);
    world.wait(500);
    assert!(!queue.is_deleted(), "it has a consumer");
    queue.cancel(id, world.now);
    world.wait(99);
    assert!(!queue.is_deleted());
    world.wait(1);
    assert!(queue.is_deleted());
    assert!(world.vhost.queue(ME, "q").is_err());
    assert!(!recorder.was_cancelled());
}

#[test]
fn the_timer_is_woken_when_an_earlier_deadline_comes() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let woken = Arc::new(AtomicUsize::new(0));
    let counter = woken.clone();
    let waker: Arc<dyn Waiter> = Arc::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let broker = Broker::new(BrokerConfig { deadline_waker: Some(waker), ..BrokerConfig::default() });
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let vhost = broker.open(&guest, "/").unwrap();
    let mut world = World { publisher: vhost.publisher(&guest), broker, vhost, now: Timestamp(1) };
    world.queue("q");
    world.queue("r");
    for (queue, expiration, wakes) in [("q", "100", 1), ("r", "200", 1), ("r", "50", 1), ("q", "10", 1)] {
        let properties = Properties::default().with_expiration(expiration);
        world.try_publish("", queue, "m", properties).unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), wakes, "only heads of queues expire");
    }
    world.queue("s");
    world.try_publish("", "s", "m", Properties::default().with_expiration("10")).unwrap();
    assert_eq!(woken.load(Ordering::SeqCst), 2);
}

#[test]
fn very_many_expired_messages_go_in_bounded_steps() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-message-ttl", FieldValue::I32(10))]);
    for _ in 0..20_000 {
        let publish =
            Publish { exchange: "", routing_key: "q", properties: &[0, 0], body: Body::Copied(b"m") };
        world.publisher.publish(publish, world.now).unwrap();
    }
    world.publisher.flush(world.now);
    let mut later = world.now.after(10);
    let (mut left, mut steps) = (queue.message_count(), 0);
    assert_eq!(left, 20_000);
    while left > 0 {
        assert!(world.broker.next_deadline().is_some_and(|due| due <= later), "the rest is due at once");
        world.broker.expire(later);
        let now_left = queue.message_count();
        assert!((1..=2_000).contains(&(left - now_left)), "{} at once", left - now_left);
        (left, steps) = (now_left, steps + 1);
        later = later.after(steps % 2);
    }
    assert!(steps >= 10);
    assert_eq!(world.broker.next_deadline(), None);
}

#[test]
fn very_many_queues_go_in_bounded_steps_and_none_waits_for_a_long_one() {
    let mut world = world();
    let long = world.queue_with("long", &[("x-message-ttl", FieldValue::I32(10))]);
    for _ in 0..50 {
        world.publish("", "long", "m");
        (0..199).for_each(|_| world.publish_all("long", &["m"]));
    }
    let names: Vec<String> = (0..1_000).map(|number| format!("q{number}")).collect();
    let queues: Vec<_> =
        names.iter().map(|name| world.queue_with(name, &[("x-expires", FieldValue::I32(20))])).collect();
    let later = world.now.after(20);
    let mut gone = 0;
    for step in 1.. {
        world.broker.expire(later.after(step));
        let now_gone = queues.iter().filter(|queue| queue.is_deleted()).count();
        assert!(now_gone - gone <= 256, "{} at once", now_gone - gone);
        gone = now_gone;
        if gone == queues.len() {
            break;
        }
        assert!(step < 20, "{gone} gone");
    }
    assert!(long.message_count() > 0, "the long one is behind them");
    world.wait(30);
    assert_eq!((long.message_count(), world.broker.next_deadline()), (0, None));
}

#[test]
fn expired_messages_are_not_delivered_while_they_are_being_dropped() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-message-ttl", FieldValue::I32(10))]);
    (0..3_000).for_each(|_| world.publish_all("q", &["old"]));
    world.now = world.now.after(10);
    world.publish_all("q", &["new"]);
    assert!(queue.message_count() > 1, "a publisher drops a part of it only");
    let (id, recorder) = world.consume(&queue, 1, 0);
    assert_eq!(recorder.bodies(), Vec::<String>::new(), "and a consumer's thread, too");
    world.wait(0);
    assert_eq!(recorder.bodies(), ["new"]);
    queue.cancel(id, world.now);
    (0..3_000).for_each(|_| world.publish_all("q", &["old"]));
    world.now = world.now.after(10);
    world.publish_all("q", &["new"]);
    let got = queue.get(true, world.now).unwrap();
    assert_eq!((text(&got.delivery), got.remaining), ("new".into(), 0));
}

#[test]
fn an_expired_message_waits_behind_one_of_a_higher_priority() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-max-priority", FieldValue::I32(3))]);
    let urgent = Properties { priority: Some(1), ..Properties::default() };
    world.try_publish("", "q", "urgent", urgent).unwrap();
    world.try_publish("", "q", "expired", Properties::default().with_expiration("0")).unwrap();
    assert_eq!(queue.message_count(), 2);
    assert_eq!(world.drain(&queue), ["urgent"]);
}
