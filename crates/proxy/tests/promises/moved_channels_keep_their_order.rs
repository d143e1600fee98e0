//! A channel that moves to the client's own connection keeps its order, its settings and its numbers.

use amqp::Method;
use amqp::method::{basic, confirm, queue};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners};

async fn expect_publish(upstream: &mut BrokerEnd) {
    for name in ["basic.publish", "header", "body"] {
        upstream.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_moved_channel_keeps_its_order_and_its_confirm_numbers() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    // Another client keeps the warm connection from being taken over.
    let mut neighbour = Client::connect(&pool).await;
    neighbour.use_channel(1).await;
    shared.expect("channel.open").await;
    shared.expect("basic.qos").await;

    client.open_channel(3).await;
    client.send(3, basic::Qos { prefetch_count: 7, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(3, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.publish(3, b"1").await;
    client.publish(3, b"2").await;
    shared.expect("channel.open").await;
    shared.expect("basic.qos").await;
    // Messages go over a connection for publishing.
    let mut publishing = broker.next_connection().await;
    let old = publishing.expect("channel.open").await.channel;
    publishing.expect("confirm.select").await;
    expect_publish(&mut publishing).await;
    expect_publish(&mut publishing).await;
    publishing.send(old, basic::Ack { delivery_tag: 2, multiple: false });
    client.expect("basic.ack").await;

    client.send(3, basic::Consume { queue: "q", no_ack: true, ..Default::default() }).await;
    client.publish(3, b"3").await;
    let mut own = broker.next_connection().await;
    assert!(!own.has_more().await, "the first message is not confirmed yet");
    publishing.send(old, basic::Ack { delivery_tag: 1, multiple: false });
    client.expect("basic.ack").await;
    publishing.expect("channel.close").await;
    shared.expect("channel.close").await;

    let new = own.expect("channel.open").await.channel;
    let qos = own.expect("basic.qos").await;
    assert!(matches!(qos.method(), Method::BasicQos(basic::Qos { prefetch_count: 7, .. })));
    own.expect("confirm.select").await;
    own.expect("basic.consume").await;
    expect_publish(&mut own).await;
    own.send(new, basic::Ack { delivery_tag: 1, multiple: false });
    client.expect("basic.consume-ok").await;
    let ack = client.expect("basic.ack").await;
    assert_eq!(ack.method(), Method::BasicAck(basic::Ack { delivery_tag: 3, multiple: false }));
}

#[tokio::test(start_paused = true)]
async fn the_last_declared_queue_is_remembered() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, queue::Declare::default()).await;
    client.send(1, basic::Consume::default()).await;
    client.expect("queue.declare-ok").await;
    shared.expect("channel.open").await;
    shared.expect("queue.declare").await;
    shared.expect("channel.close").await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    let consume = own.expect("basic.consume").await;
    let Method::BasicConsume(consume) = consume.method() else { unreachable!() };
    assert_eq!(consume.queue, "amq.gen-1");
    client.expect("basic.consume-ok").await;
}

#[tokio::test(start_paused = true)]
async fn an_error_during_the_move_is_the_clients() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    broker.fall_silent();
    client.open_channel(1).await;
    client.publish(1, b"to nowhere").await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    let number = shared.expect("channel.open").await.channel;
    expect_publish(&mut shared).await;
    shared.expect("channel.close").await;
    shared.send(number, amqp::method::channel::Close { reply_code: 404, ..Default::default() });
    client.expect("channel.close").await;
    shared.expect("channel.close-ok").await;
}

/// The consumer may be recreated at any time, on a channel where an empty name means another client's queue.
#[tokio::test(start_paused = true)]
async fn no_wait_methods_with_an_empty_name_use_the_last_declared_queue() {
    for declared in ["", "named"] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.send(1, basic::Qos { prefetch_count: 7, ..Default::default() }).await;
        client.expect("basic.qos-ok").await;
        let mut upstream = broker.next_connection().await;
        // The rest follows before the declaration is answered.
        client.send(1, queue::Declare { queue: declared, durable: true, ..Default::default() }).await;
        client.send(1, queue::Bind { exchange: "amq.topic", no_wait: true, ..Default::default() }).await;
        client.send(1, basic::Consume { consumer_tag: "c", no_wait: true, ..Default::default() }).await;
        client.send(1, basic::Qos { prefetch_count: 9, ..Default::default() }).await;
        client.expect("queue.declare-ok").await;
        client.expect("basic.qos-ok").await;
        let queue = if declared.is_empty() { "amq.gen-1" } else { declared };
        for name in ["channel.open", "basic.qos", "queue.declare"] {
            upstream.expect(name).await;
        }
        let bind = upstream.expect("queue.bind").await;
        let Method::QueueBind(bind) = bind.method() else { unreachable!() };
        assert_eq!((bind.queue, bind.routing_key), (queue, queue));
        upstream.expect("basic.consume").await;
        drop(upstream);
        let mut next = broker.next_connection().await;
        let mut frame = next.next().await;
        while frame.name() != "basic.consume" {
            frame = next.next().await;
        }
        let Method::BasicConsume(consume) = frame.method() else { unreachable!() };
        assert_eq!((consume.queue, consume.consumer_tag), (queue, "c"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_name_stays_empty_if_only_the_broker_knows_the_queues_name() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, queue::Declare { queue: "", durable: true, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    client.send(1, queue::Declare { queue: "", durable: true, no_wait: true, ..Default::default() }).await;
    client.send(1, queue::Delete { no_wait: true, ..Default::default() }).await;
    for name in ["channel.open", "queue.declare", "queue.declare"] {
        upstream.expect(name).await;
    }
    let delete = upstream.expect("queue.delete").await;
    let Method::QueueDelete(delete) = delete.method() else { unreachable!() };
    assert_eq!(delete.queue, "", "not the queue that was declared before");
}
