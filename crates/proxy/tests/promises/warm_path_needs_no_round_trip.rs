//! P6.

use amqp::Method;
use amqp::method::{channel, connection, exchange, queue};
use proxy::Pool;

use crate::common::{Broker, Client, Manners};

#[tokio::test(start_paused = true)]
async fn p6_connect_open_publish_close_works_while_the_broker_says_nothing() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();

    for _ in 0..3 {
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.publish(1, b"hello").await;
        client.send(1, channel::Close::default()).await;
        client.expect("channel.close-ok").await;
        client.send(0, connection::Close::default()).await;
        client.expect("connection.close-ok").await;
    }
    let mut numbers = Vec::new();
    for _ in 0..3 {
        numbers.push(upstream.expect("channel.open").await.channel);
        upstream.expect("basic.publish").await;
        upstream.expect("header").await;
        assert_eq!(upstream.expect("body").await.payload, b"hello");
        upstream.expect("basic.qos").await;
    }
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "a channel is not used again before the broker has proven it clean");
    assert_eq!(broker.logins(), 1);
}

#[tokio::test(start_paused = true)]
async fn p6_a_client_that_vanishes_after_publishing_has_published() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"kept").await;
    drop(client);
    upstream.expect("channel.open").await;
    upstream.expect("basic.publish").await;
    upstream.expect("header").await;
    upstream.expect("body").await;
    upstream.expect("basic.qos").await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_leaves_the_warm_connection_to_others() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut consumer = Client::connect(&pool).await;
    let mut warm = broker.next_connection().await;
    consumer.open_channel(1).await;
    consumer.send(1, amqp::method::basic::Consume { queue: "q", ..Default::default() }).await;
    consumer.expect("basic.consume-ok").await;
    let _own = broker.next_connection().await;
    broker.fall_silent();
    let mut publisher = Client::connect(&pool).await;
    publisher.open_channel(1).await;
    publisher.publish(1, b"x").await;
    warm.expect("channel.open").await;
    warm.expect("basic.publish").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_consumer_is_answered_only_when_the_broker_has_closed_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, amqp::method::basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    client.send(1, channel::Close::default()).await;
    upstream.expect("channel.open").await;
    let consume = upstream.expect("basic.consume").await;
    upstream.expect("channel.close").await;
    // A delivery that crosses the close still reaches the client, in front of close-ok.
    upstream.send(consume.channel, amqp::method::basic::Deliver { delivery_tag: 1, ..Default::default() });
    upstream.send(consume.channel, channel::CloseOk {});
    client.expect("basic.deliver").await;
    let close_ok = client.expect("channel.close-ok").await;
    assert!(matches!(close_ok.method(), Method::ChannelCloseOk(_)));
}

/// The next client must find done what this one has asked for: RabbitMQ 4 loses the bindings of an exchange that is declared
/// again on one channel while it is being deleted on another.
#[tokio::test(start_paused = true)]
async fn a_close_is_answered_once_changes_without_an_answer_are_done() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.open_channel(2).await;
    client.send(1, exchange::Delete { exchange: "x", no_wait: true, ..Default::default() }).await;
    upstream.expect("channel.open").await;
    let delete = upstream.expect("exchange.delete").await;
    // A later answer on the channel shows that this one is done.
    client.send(2, queue::Bind { queue: "q", exchange: "y", no_wait: true, ..Default::default() }).await;
    client.send(2, queue::Declare { queue: "q", ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    for name in ["channel.open", "queue.bind", "queue.declare"] {
        upstream.expect(name).await;
    }
    broker.fall_silent();
    client.send(2, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    upstream.expect("basic.qos").await;
    client.send(0, connection::Close::default()).await;
    let close = upstream.expect("channel.close").await;
    assert_eq!(close.channel, delete.channel);
    upstream.send(close.channel, channel::CloseOk {});
    client.expect("connection.close-ok").await;
}

/// A client need not wait for an answer before it closes: the answer comes, and close-ok behind it, as without a pool.
#[tokio::test(start_paused = true)]
async fn a_close_is_answered_behind_the_answers_that_are_due() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.open_channel(2).await;
    client.send(1, exchange::Delete { exchange: "x", ..Default::default() }).await;
    client.send(2, queue::Delete { queue: "q", ..Default::default() }).await;
    let mut numbers = Vec::new();
    for name in ["exchange.delete", "queue.delete"] {
        upstream.expect("channel.open").await;
        numbers.push(upstream.expect(name).await.channel);
    }
    broker.fall_silent();
    client.send(1, channel::Close::default()).await;
    upstream.expect("channel.close").await;
    upstream.send(numbers[0], exchange::DeleteOk {});
    client.expect("exchange.delete-ok").await;
    upstream.send(numbers[0], channel::CloseOk {});
    client.expect("channel.close-ok").await;
    client.send(0, connection::Close::default()).await;
    upstream.expect("channel.close").await;
    upstream.send(numbers[1], queue::DeleteOk { message_count: 0 });
    client.expect("queue.delete-ok").await;
    upstream.send(numbers[1], channel::CloseOk {});
    client.expect("connection.close-ok").await;
}
