//! P4.

use amqp::method::{basic, channel, connection, queue};
use proxy::Pool;

use crate::common::{Broker, Client, Manners};

const EXCLUSIVE: queue::Declare<'static> = queue::Declare {
    reserved_1: 0,
    queue: "mine",
    passive: false,
    durable: false,
    exclusive: true,
    auto_delete: false,
    no_wait: false,
    arguments: amqp::RawTable::EMPTY,
};

#[tokio::test(start_paused = true)]
async fn p4_an_exclusive_queue_is_declared_on_a_connection_nobody_else_gets() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, EXCLUSIVE).await;
    client.expect("queue.declare-ok").await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("queue.declare").await;

    let mut other = Client::connect(&pool).await;
    other.open_channel(1).await;
    other.send(1, queue::Declare { passive: true, ..EXCLUSIVE }).await;
    other.expect("queue.declare-ok").await;
    warm.expect("channel.open").await;
    warm.expect("queue.declare").await;
}

#[tokio::test(start_paused = true)]
async fn p4_an_exclusive_queue_is_gone_before_its_client_gets_close_ok() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, EXCLUSIVE).await;
    client.expect("queue.declare-ok").await;
    let mut own = broker.next_connection().await;
    client.send(0, connection::Close::default()).await;
    for name in ["channel.open", "queue.declare", "channel.close", "connection.close"] {
        own.expect(name).await;
    }
    client.expect("connection.close-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p4_an_exclusive_queue_vanishes_when_its_client_does() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, EXCLUSIVE).await;
    client.expect("queue.declare-ok").await;
    let mut own = broker.next_connection().await;
    drop(client);
    for name in ["channel.open", "queue.declare", "connection.close"] {
        own.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn other_channels_that_name_queues_join_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"x").await;
    for name in ["channel.open", "basic.publish", "header", "body"] {
        shared.expect(name).await;
    }
    client.open_channel(2).await;
    client.send(2, EXCLUSIVE).await;
    client.expect("queue.declare-ok").await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("queue.declare").await;
    client.send(1, queue::Bind { queue: "mine", exchange: "amq.topic", ..Default::default() }).await;
    shared.expect("channel.close").await;
    own.expect("channel.open").await;
    own.expect("queue.bind").await;
}

#[tokio::test(start_paused = true)]
async fn a_consumers_connection_serves_others_when_it_is_clean() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut connection = broker.next_connection().await;
    assert_eq!(pool.metrics().dedicated_connections, 1);
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    client.send(0, connection::Close::default()).await;
    client.expect("connection.close-ok").await;
    assert_eq!(pool.metrics().dedicated_connections, 0);
    for name in ["channel.open", "basic.consume", "channel.close"] {
        connection.expect(name).await;
    }
    let mut next = Client::connect(&pool).await;
    next.open_channel(1).await;
    next.publish(1, b"x").await;
    connection.expect("channel.open").await;
    connection.expect("basic.publish").await;
    assert!(!broker.has_new_connection().await);
}
