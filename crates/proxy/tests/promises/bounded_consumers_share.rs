//! P3: bounded consumers share upstream connections, and a slow one delays no other client there.

use std::sync::Arc;

use amqp::method::{basic, channel, queue};
use amqp::{FieldTable, FieldValue, Method, RawTable};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, delivery, until};

const BUDGET: usize = 1024 * 1024;

async fn pool(broker: &Broker) -> Arc<Pool> {
    Pool::new(PoolConfig { consumer_budget: BUDGET, ..broker.config() })
}

/// Sets a limit of 10 and makes a consumer with this tag on channel 1.
async fn consume(client: &mut Client, consumer_tag: &str) {
    client.send(1, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag, ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
}

/// A client that consumes on the shared connection, and its upstream channel.
async fn consumer(pool: &Arc<Pool>, shared: &mut BrokerEnd, consumer_tag: &str) -> (Client, u16) {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    consume(&mut client, consumer_tag).await;
    let number = shared.expect("channel.open").await.channel;
    shared.expect("basic.qos").await;
    shared.expect("basic.consume").await;
    (client, number)
}

/// A pool, its warm connection, and two consumers that share it with their upstream channels.
async fn two_consumers(broker: &mut Broker) -> (Arc<Pool>, BrokerEnd, [(Client, u16); 2]) {
    let pool = pool(broker).await;
    Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    let one = consumer(&pool, &mut shared, "c").await;
    let other = consumer(&pool, &mut shared, "c").await;
    (pool, shared, [one, other])
}

#[tokio::test(start_paused = true)]
async fn p3_bounded_consumers_share_a_connection_with_the_same_tags_and_their_own_deliveries() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut shared, [(mut one, on_one), (mut other, on_other)]) = two_consumers(&mut broker).await;
    assert_ne!(on_one, on_other);
    shared.deliver(on_one, "c", 1, b"for one");
    shared.deliver(on_other, "c", 1, b"for the other");
    assert_eq!(other.expect_delivery().await, (1, b"for the other".to_vec()));
    assert_eq!(one.expect_delivery().await, (1, b"for one".to_vec()));
    other.send(1, basic::Ack { delivery_tag: 1, multiple: false }).await;
    assert_eq!(shared.expect("basic.ack").await.channel, on_other);
    let metrics = pool.metrics();
    assert_eq!((metrics.upstream_connections, metrics.dedicated_connections), (1, 0));

    // Unacknowledged deliveries are back in their queue before the client learns that its channel is closed.
    one.send(1, channel::Close::default()).await;
    assert_eq!(shared.expect("channel.close").await.channel, on_one);
    one.expect("channel.close-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p3_a_frozen_consumer_is_moved_to_a_connection_of_its_own_and_the_other_one_never_waits() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut shared, [(mut frozen, on_frozen), (mut quick, on_quick)]) =
        two_consumers(&mut broker).await;
    // Half of this exceeds its stream and its budget, and is not passed on: the client has not received it, and the
    // broker requeues it.
    let size = 100_000;
    let before = 4 * BUDGET / size;
    for tag in 1..=before as u64 {
        shared.deliver(on_frozen, "c", tag, &vec![tag as u8; size]);
        shared.deliver(on_quick, "c", tag, b"quick");
        assert_eq!(quick.expect_delivery().await, (tag, b"quick".to_vec()));
    }
    assert_eq!(shared.expect("channel.close").await.channel, on_frozen);
    let mut own = broker.next_connection().await;
    let number = own.expect("channel.open").await.channel;
    let qos = own.expect("basic.qos").await;
    assert!(matches!(qos.method(), Method::BasicQos(basic::Qos { prefetch_count: 10, .. })));
    let consume = own.expect("basic.consume").await;
    let Method::BasicConsume(consume) = consume.method() else { unreachable!() };
    assert_eq!((consume.consumer_tag, consume.no_wait), ("c", true));
    assert_eq!(pool.metrics().channels_moved, 1);

    // The client receives whole messages in order, and then the broker's redeliveries, with continued delivery tags.
    own.to.send(delivery(number, "c", 1, b"again")).unwrap();
    let mut last = 0;
    loop {
        let (tag, body) = frozen.expect_delivery().await;
        assert_eq!(tag, last + 1);
        if body == b"again" {
            break;
        }
        assert!(body == vec![tag as u8; size], "message {tag}");
        last = tag;
    }
    assert!(last < before as u64, "all of it was buffered");
    // Acknowledgements of requeued messages are swallowed, also one for everything so far.
    frozen.send(1, basic::Ack { delivery_tag: last, multiple: true }).await;
    frozen.send(1, basic::Ack { delivery_tag: last + 1, multiple: false }).await;
    let ack = own.expect("basic.ack").await;
    assert_eq!(ack.method(), Method::BasicAck(basic::Ack { delivery_tag: 1, multiple: false }));
}

#[tokio::test(start_paused = true)]
async fn p3_a_message_larger_than_the_budget_comes_on_a_connection_of_its_own() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut shared, [(mut one, on_one), (mut other, on_other)]) = two_consumers(&mut broker).await;
    let large = vec![7; BUDGET + 1];
    shared.deliver(on_one, "c", 1, &large);
    shared.deliver(on_other, "c", 1, b"small");
    assert_eq!(other.expect_delivery().await, (1, b"small".to_vec()));
    assert_eq!(shared.expect("channel.close").await.channel, on_one);
    let mut own = broker.next_connection().await;
    let number = own.expect("channel.open").await.channel;
    own.expect("basic.qos").await;
    own.expect("basic.consume").await;
    assert_eq!(pool.metrics().channels_moved, 1);
    own.to.send(delivery(number, "c", 1, &large)).unwrap();
    let (_, mut body) = one.expect_delivery().await;
    while body.len() < large.len() {
        body.extend(one.expect("body").await.payload);
    }
    assert!(body == large);
}

#[tokio::test(start_paused = true)]
async fn p3_with_no_budget_every_consumer_has_a_connection_of_its_own() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { consumer_budget: 0, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    client.open_channel(1).await;
    consume(&mut client, "c").await;
    assert_eq!(pool.metrics().dedicated_connections, 1);
}

#[tokio::test(start_paused = true)]
async fn p2_reusing_a_consumer_tag_is_refused_by_the_pool_and_a_cancelled_one_is_free() {
    let mut broker = Broker::start(Manners::default());
    let (_pool, mut shared, [(mut one, on_one), (mut other, on_other)]) = two_consumers(&mut broker).await;
    // Cancelled by the client, and by the broker.
    one.send(1, basic::Cancel { consumer_tag: "c", no_wait: true }).await;
    consume(&mut one, "c").await;
    shared.send(on_one, basic::Cancel { consumer_tag: "c", no_wait: true });
    one.expect("basic.cancel").await;
    consume(&mut one, "c").await;
    one.send(1, basic::Consume { queue: "q2", consumer_tag: "c", ..Default::default() }).await;
    one.expect_close(530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'").await;
    // The same when both are sent at once.
    let again = basic::Consume { queue: "q", consumer_tag: "d", ..Default::default() };
    other.send(1, again).await;
    other.send(1, again).await;
    other.expect_close(530, "NOT_ALLOWED - attempt to reuse consumer tag 'd'").await;
    let mut asked = 0;
    loop {
        let frame = shared.next().await;
        asked += usize::from(frame.name() == "basic.consume");
        if frame.name() == "channel.close" && frame.channel == on_other {
            break;
        }
    }
    assert_eq!(asked, 3);
}

#[tokio::test(start_paused = true)]
async fn p3_a_shared_consumer_that_needs_its_own_connection_takes_its_consumers_along() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut shared, [(mut client, number), _other]) = two_consumers(&mut broker).await;
    shared.deliver(number, "c", 1, b"first");
    client.expect_delivery().await;
    let arguments = FieldTable::from_iter([("x-credit", FieldValue::text("wrong"))]).encode();
    let arguments = RawTable::check(&arguments).unwrap();
    let odd = basic::Consume { queue: "q2", consumer_tag: "odd", arguments, ..Default::default() };
    client.send(1, odd).await;
    // Sent before the client can know that the first message was requeued.
    client.send(1, basic::Ack { delivery_tag: 0, multiple: true }).await;
    assert_eq!(shared.expect("channel.close").await.channel, number);
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.qos", "basic.consume", "basic.consume"] {
        own.expect(name).await;
    }
    client.expect("basic.consume-ok").await;
    client.send(1, basic::Ack { delivery_tag: 2, multiple: false }).await;
    let ack = own.expect("basic.ack").await;
    assert_eq!(ack.method(), Method::BasicAck(basic::Ack { delivery_tag: 1, multiple: false }));
    until("the other one to be alone there", || pool.metrics().dedicated_connections == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_declarer_of_auto_delete_queues_consumes_on_its_own_connection_at_once() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker).await;
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(1).await;
    let declare = queue::Declare { queue: "q", auto_delete: true, ..Default::default() };
    // A passive declaration does not create the queue, so its consumer may still share.
    client.send(1, queue::Declare { passive: true, ..declare }).await;
    client.expect("queue.declare-ok").await;
    consume(&mut client, "shared").await;
    for name in ["channel.open", "queue.declare", "basic.qos", "basic.consume"] {
        shared.expect(name).await;
    }
    client.open_channel(2).await;
    client.send(2, declare).await;
    client.expect("queue.declare-ok").await;
    client.send(2, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(2, basic::Consume { queue: "q", consumer_tag: "own", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.qos", "basic.consume"] {
        own.expect(name).await;
    }
    // However slow it is, its consumer is never moved, so that the queue always has one.
    assert_eq!(pool.metrics().channels_moved, 0);
}
