//! The counters that operators see of a queue, an exchange and a virtual host: totals and rates.

use amqp::{FieldValue, Properties};
use broker::*;

use crate::world::{ME, Recorder, World, binding, raw, spec, table, world};

/// Milliseconds of a tick, whose counts a rate is computed from.
const TICK: u64 = 5_000;

/// The totals of publish, deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver and ack.
fn totals(world: &World, queue: &Queue) -> Option<[u64; 8]> {
    let counts = queue.view_counted(world.now).1?;
    let MessageCounts {
        publish, deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack, ..
    } = counts;
    Some(
        [publish, deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack]
            .map(|count| count.total),
    )
}

/// Messages published and enqueued: in total, and in the last tick.
fn flow(world: &World, exchange: &str) -> Option<((u64, u64), (u64, u64))> {
    let (published, enqueued) = world.vhost.exchange_view(exchange).unwrap().flow(world.now)?;
    Some(((published.total, enqueued.total), (published.recent, enqueued.recent)))
}

#[test]
fn a_queue_counts_messages_that_enter_and_how_they_leave() {
    let mut world = world();
    let queue = world.queue("q");
    assert_eq!(totals(&world, &queue), None, "nothing was counted");
    world.publish_all("q", &["1", "2", "3", "4", "5"]);
    assert_eq!(totals(&world, &queue), Some([5, 0, 0, 0, 0, 0, 0, 0]));
    let got = world.get(&queue);
    assert!(queue.get(true, world.now).is_some());
    let (id, recorder) = world.consume(&queue, 2, 0);
    assert_eq!(totals(&world, &queue), Some([5, 2, 0, 1, 1, 0, 0, 0]));
    queue.ack(vec![got], world.now);
    queue.requeue(recorder.got.lock().drain(..1).collect(), Returned::Failed, world.now);
    queue.reject(recorder.got.lock().drain(..).collect(), Returned::Failed, world.now);
    queue.cancel(id, world.now);
    assert_eq!(world.drain(&queue), ["3", "5"]);
    assert_eq!(
        totals(&world, &queue),
        Some([5, 2, 0, 1, 3, 1, 1, 1]),
        "a rejected message is not acknowledged"
    );
}

#[test]
fn automatically_acknowledged_deliveries_are_counted_separately() {
    let mut world = world();
    let queue = world.queue("q");
    let recorder = Recorder::new(10);
    let id = queue.consume(ConsumerSpec { no_ack: true, ..spec(&recorder, &[]) }).unwrap();
    queue.resume(id, world.now);
    world.publish_all("q", &["1", "2"]);
    assert_eq!(totals(&world, &queue), Some([2, 0, 2, 0, 0, 0, 0, 0]));
}

#[test]
fn a_refused_message_counts_as_published_and_a_dead_letter_does_not() {
    let mut world = world();
    let arguments =
        [("x-max-length", FieldValue::I32(1)), ("x-overflow", FieldValue::text("reject-publish"))];
    let full = world.queue_with("full", &arguments);
    world.publish_all("full", &["1", "2", "3"]);
    assert_eq!(totals(&world, &full), Some([3, 0, 0, 0, 0, 0, 0, 0]));
    let dead = world.queue("dead");
    let arguments = [
        ("x-max-length", FieldValue::I32(1)),
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
    ];
    world.queue_with("drops", &arguments);
    world.publish_all("drops", &["1", "2"]);
    assert_eq!(dead.message_count(), 1);
    assert_eq!(totals(&world, &dead), None);
}

#[test]
fn a_queues_rate_is_that_of_the_last_whole_tick() {
    let mut world = world();
    let queue = world.queue("q");
    let rate = |world: &World| queue.view_counted(world.now).1.unwrap().publish.rate();
    world.publish_all("q", &["1", "2", "3", "4", "5"]);
    assert_eq!(rate(&world), 0.0);
    world.wait(TICK);
    assert_eq!(rate(&world), 1.0);
    world.publish_all("q", &["6"]);
    world.wait(TICK);
    assert_eq!(rate(&world), 0.2);
    world.wait(TICK);
    assert_eq!(rate(&world), 0.0);
}

#[test]
fn a_late_acknowledgement_counts_when_it_comes() {
    let mut world = world();
    let queue = world.queue("q");
    world.publish_all("q", &["1"]);
    let got = world.get(&queue);
    world.wait(10 * TICK);
    queue.ack(vec![got], world.now);
    world.wait(TICK);
    let counts = queue.view_counted(world.now).1.unwrap();
    assert_eq!((counts.ack.recent, counts.get.recent), (1, 0));
}

#[test]
fn an_exchange_counts_incoming_and_routed_messages() {
    let mut world = world();
    world.exchange("e", "fanout");
    assert_eq!((flow(&world, "e"), flow(&world, "")), (None, None));
    world.publish("e", "", "nowhere to go");
    for name in ["a", "b"] {
        world.queue(name);
        world.bind(name, "e", "");
    }
    world.publish("e", "x", "1");
    world.publish("e", "y", "2");
    world.publish("", "a", "3");
    world.publish("", "nowhere", "4");
    assert_eq!(flow(&world, "e"), Some(((3, 4), (0, 0))));
    assert_eq!(flow(&world, ""), Some(((2, 1), (0, 0))));
    assert_eq!(flow(&world, "amq.fanout"), None);
    world.wait(TICK);
    assert_eq!((flow(&world, "e"), flow(&world, "")), (Some(((3, 4), (3, 4))), Some(((2, 1), (2, 1)))));
    world.wait(TICK);
    assert_eq!(flow(&world, "e"), Some(((3, 4), (0, 0))));
}

#[test]
fn publishes_to_several_exchanges_in_a_batch_are_counted_at_each() {
    let mut world = world();
    world.queue("q");
    for (exchange, kind) in [("direct", "direct"), ("copied", "headers")] {
        world.exchange(exchange, kind);
        world.bind("q", exchange, "q");
    }
    let copies = table(&[("CC", FieldValue::Array(vec![FieldValue::text("also")]))]);
    let mut bytes = Vec::new();
    Properties::default().with_headers(raw(&copies)).encode(&mut bytes);
    for (exchange, properties) in
        [("direct", &[0, 0][..]), ("copied", &bytes), ("copied", &[0, 0]), ("direct", &bytes), ("", &[0, 0])]
    {
        let publish = Publish { exchange, routing_key: "q", properties, body: Body::Copied(b"x") };
        world.publisher.publish(publish, world.now).unwrap();
    }
    world.publisher.flush(world.now);
    let total = |exchange| flow(&world, exchange).unwrap().0;
    assert_eq!((total("direct"), total("copied"), total("")), ((2, 2), (2, 2), (1, 1)));
}

#[test]
fn only_the_exchange_published_to_counts_a_message_routed_to_another() {
    let mut world = world();
    world.exchange("first", "fanout");
    world.exchange("second", "fanout");
    world.queue("q");
    world.bind("q", "second", "");
    world.vhost.bind_exchange(&binding("first", "second", "")).unwrap();
    world.publish("first", "", "x");
    assert_eq!((flow(&world, "first"), flow(&world, "second")), (Some(((1, 1), (0, 0))), None));
}

#[test]
fn a_policy_that_changes_an_exchange_does_not_change_its_counts() {
    let mut world = world();
    world.exchange("e", "fanout");
    world.publish("e", "", "x");
    let policy = serde_json::json!({"policies": [{"name": "p", "vhost": "/", "pattern": "^e$", "apply-to": "exchanges",
        "definition": {"alternate-exchange": "amq.fanout"}}]});
    world.broker.load(&Definitions::from_map(policy.as_object().unwrap()).unwrap(), world.now).unwrap();
    world.publish("e", "", "x");
    assert_eq!(flow(&world, "e"), Some(((2, 0), (0, 0))));
}

#[test]
fn a_virtual_host_keeps_counts_of_deleted_queues_and_exchanges() {
    let mut world = world();
    world.exchange("e", "fanout");
    let queue = world.queue("q");
    world.bind("q", "e", "");
    world.publish("e", "", "1");
    world.publish("", "q", "2");
    queue.get(true, world.now).unwrap();
    assert_eq!(world.vhost.counts_of_deleted_queues(), MessageCounts::default());
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    world.vhost.delete_exchange("e", false).unwrap();
    world.wait(TICK);
    let gone = world.vhost.counts_of_deleted_queues();
    assert_eq!(
        (gone.publish, gone.get_no_ack),
        (Count { total: 2, recent: 0 }, Count { total: 1, recent: 0 })
    );
    assert_eq!(world.vhost.published(world.now), Count { total: 2, recent: 1 });
}
