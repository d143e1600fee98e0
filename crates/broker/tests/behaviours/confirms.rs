use amqp::FieldValue;
use broker::*;

use crate::world::*;

fn publish(world: &mut World, exchange: &str, routing_key: &str, body: &str) -> Result<bool, BrokerError> {
    let body = Body::Copied(body.as_bytes());
    world.publisher.publish(Publish { exchange, routing_key, properties: &[0, 0], body }, world.now)
}

#[test]
fn publishes_are_counted_in_order_unroutable_ones_included() {
    let mut world = world();
    world.queue("q");
    assert_eq!(publish(&mut world, "", "q", "0"), Ok(true));
    assert_eq!(publish(&mut world, "", "nowhere", "1"), Ok(false));
    assert_eq!(publish(&mut world, "", "q", "2"), Ok(true));
    assert_eq!(
        refusal(publish(&mut world, "nope", "q", "x")),
        (404, "no exchange 'nope' in vhost '/'".into())
    );
    let now = world.now;
    assert_eq!(world.publisher.flush(now), Flushed { count: 3, refused: vec![], ..Flushed::default() });
    assert_eq!(world.publisher.flush(now), Flushed::default());
}

#[test]
fn a_full_queue_refuses_exactly_the_messages_it_does_not_take() {
    let mut world = world();
    let reject = FieldValue::text("reject-publish");
    world.queue_with("full", &[("x-max-length", FieldValue::I32(2)), ("x-overflow", reject)]);
    let open = world.queue("open");
    world.bind("full", "amq.fanout", "");
    world.bind("open", "amq.fanout", "");
    publish(&mut world, "", "open", "-").unwrap();
    for body in ["0", "1", "2", "3"] {
        publish(&mut world, "amq.fanout", "", body).unwrap();
    }
    publish(&mut world, "", "open", "-").unwrap();
    publish(&mut world, "", "full", "4").unwrap();
    let now = world.now;
    assert_eq!(
        world.publisher.flush(now),
        Flushed { count: 7, refused: vec![3, 4, 6], ..Flushed::default() }
    );
    assert_eq!(open.message_count(), 6, "the other queue took all");
}

#[test]
fn a_deleted_queue_does_not_count_as_a_refusal() {
    let mut world = world();
    world.queue("q");
    publish(&mut world, "", "q", "0").unwrap();
    world.vhost.delete_queue(ME, "q", false, false).unwrap();
    let now = world.now;
    assert_eq!(world.publisher.flush(now), Flushed { count: 1, refused: vec![], ..Flushed::default() });
}

#[test]
fn messages_of_one_publisher_keep_their_order_across_routes() {
    let mut world = world();
    let queue = world.queue("q");
    world.bind("q", "amq.topic", "#");
    for n in 0..1000 {
        let key = if n % 3 == 0 { "a" } else { "b" };
        publish(&mut world, "amq.topic", key, &n.to_string()).unwrap();
    }
    let now = world.now;
    world.publisher.flush(now);
    assert_eq!(world.drain(&queue), (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_dropped_publisher_loses_nothing() {
    let mut world = world();
    let queue = world.queue("q");
    publish(&mut world, "", "q", "0").unwrap();
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    world.publisher = world.vhost.publisher(&guest);
    assert_eq!(world.drain(&queue), ["0"]);
}
