//! P5.

use amqp::Method;
use amqp::method::{basic, channel, confirm, connection, exchange, queue};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, until};

/// A client with one open channel, and the warm connection.
async fn client_and_upstream(broker: &mut Broker) -> (std::sync::Arc<Pool>, Client, BrokerEnd) {
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    client.open_channel(1).await;
    (pool, client, upstream)
}

async fn close_channel(client: &mut Client) {
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
}

async fn publish_mandatory(client: &mut Client, number: u16) {
    let mut bytes = Vec::new();
    let publish = basic::Publish { routing_key: "nobody", mandatory: true, ..Default::default() };
    amqp::frame::write_method(&mut bytes, number, publish);
    amqp::frame::write_content_header(&mut bytes, number, 0, amqp::properties::NO_PROPERTIES);
    client.write(&bytes).await;
}

#[tokio::test(start_paused = true)]
async fn p5_p6_a_warm_connect_open_publish_close_sends_nothing_but_the_message_and_its_proof() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, mut upstream) = client_and_upstream(&mut broker).await;
    client.publish(1, b"cold").await;
    close_channel(&mut client).await;
    for name in ["channel.open", "basic.publish", "header", "body", "basic.qos"] {
        upstream.expect(name).await;
    }
    for _ in 0..10 {
        until("the channel to rest", || pool.metrics().idle_channels == 1).await;
        let mut client = Client::connect(&pool).await;
        client.open_channel(7).await;
        client.publish(7, b"warm").await;
        client.send(7, channel::Close::default()).await;
        client.expect("channel.close-ok").await;
        client.send(0, connection::Close::default()).await;
        client.expect("connection.close-ok").await;
        assert_eq!(upstream.expect_message().await, (1, b"warm".to_vec()));
        upstream.expect("basic.qos").await;
    }
    let metrics = pool.metrics();
    assert_eq!((metrics.leases, metrics.leases_reused, metrics.upstream_connections), (11, 10, 1));
}

#[tokio::test(start_paused = true)]
async fn p5_p6_with_confirms_the_only_round_trip_is_from_publish_to_confirm() {
    let mut broker = Broker::start(Manners::default());
    let (pool, client, mut upstream) = client_and_upstream(&mut broker).await;
    drop(client);
    // From now on any request to the broker would be a round trip that hangs.
    broker.fall_silent();
    for turn in 1..=5 {
        let mut client = Client::connect(&pool).await;
        client.open_channel(3).await;
        client.send(3, confirm::Select::default()).await;
        client.expect("confirm.select-ok").await;
        client.publish(3, b"x").await;
        if turn == 1 {
            upstream.expect("channel.open").await;
            let select = upstream.expect("confirm.select").await;
            assert!(matches!(select.method(), Method::ConfirmSelect(confirm::Select { no_wait: true })));
            upstream.send(1, channel::OpenOk::default());
        }
        assert_eq!(upstream.expect_message().await, (1, b"x".to_vec()));
        upstream.send(1, basic::Ack { delivery_tag: turn, multiple: true });
        let ack = client.expect("basic.ack").await;
        assert_eq!(ack.method(), Method::BasicAck(basic::Ack { delivery_tag: 1, multiple: true }));
        client.send(3, channel::Close::default()).await;
        client.expect("channel.close-ok").await;
        client.send(0, connection::Close::default()).await;
        client.expect("connection.close-ok").await;
        assert_eq!(pool.metrics().idle_channels, 1, "its confirms prove the channel clean");
    }
    assert!(!upstream.has_more().await);
}

#[tokio::test(start_paused = true)]
async fn p5_a_channel_with_confirms_outstanding_waits_for_them_and_its_next_client_counts_from_one() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, mut upstream) = client_and_upstream(&mut broker).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    for body in [b"1", b"2", b"3"] {
        client.publish(1, body).await;
    }
    upstream.expect("channel.open").await;
    upstream.expect("confirm.select").await;
    for _ in 0..3 {
        assert_eq!(upstream.expect_message().await.0, 1);
    }
    drop(client);
    until("the client to leave", || pool.metrics().clients == 0).await;

    let mut next = Client::connect(&pool).await;
    next.open_channel(1).await;
    next.send(1, confirm::Select::default()).await;
    next.expect("confirm.select-ok").await;
    next.publish(1, b"elsewhere").await;
    assert_eq!(upstream.expect("channel.open").await.channel, 2, "the first is not proven clean");
    upstream.expect("confirm.select").await;
    upstream.expect_message().await;

    upstream.send(1, basic::Nack { delivery_tag: 3, multiple: false, requeue: false });
    upstream.send(1, basic::Ack { delivery_tag: 2, multiple: true });
    until("the channel to rest", || pool.metrics().idle_channels == 1).await;
    next.open_channel(2).await;
    next.send(2, confirm::Select::default()).await;
    next.expect("confirm.select-ok").await;
    next.publish(2, b"here").await;
    assert_eq!(upstream.expect_message().await, (1, b"here".to_vec()));
    upstream.send(1, basic::Ack { delivery_tag: 4, multiple: false });
    let ack = next.expect("basic.ack").await;
    assert_eq!((ack.channel, ack.method()), (2, basic::Ack { delivery_tag: 1, multiple: false }.into()));
}

#[tokio::test(start_paused = true)]
async fn p5_late_returns_and_closes_do_not_reach_other_clients() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, mut upstream) = client_and_upstream(&mut broker).await;
    broker.fall_silent();
    publish_mandatory(&mut client, 1).await;
    for name in ["channel.open", "basic.publish", "header"] {
        upstream.expect(name).await;
    }
    upstream.send(1, channel::OpenOk::default());
    // A close would wait for the return; a client that disconnects does not.
    drop(client);
    upstream.expect("basic.qos").await;
    // The next client uses the same number, and still gets a channel of its own.
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    client.publish(1, b"next").await;
    assert_eq!(upstream.expect("channel.open").await.channel, 2);
    upstream.expect_message().await;

    let mut returned = Vec::new();
    amqp::frame::write_method(&mut returned, 1, basic::Return { reply_code: 312, ..Default::default() });
    amqp::frame::write_content_header(&mut returned, 1, 0, amqp::properties::NO_PROPERTIES);
    upstream.to.send(returned).unwrap();
    upstream.send(1, basic::QosOk {});
    until("the channel to rest", || pool.metrics().idle_channels == 1).await;

    // The next channel is closed by the broker for its message, after it was given back: no client reuses it.
    let mut second = Client::connect(&pool).await;
    second.open_channel(1).await;
    second.publish(1, b"to nowhere").await;
    assert_eq!(upstream.expect_message().await.0, 1);
    close_channel(&mut second).await;
    upstream.expect("basic.qos").await;
    upstream.send(1, channel::Close { reply_code: 404, ..Default::default() });
    upstream.expect("channel.close-ok").await;
    assert_eq!(pool.metrics().idle_channels, 0);
    upstream.send(2, basic::QosOk {});
    client.expect("basic.qos-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p5_a_channel_is_reused_only_after_its_prefetch_is_reset_and_answered() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, mut upstream) = client_and_upstream(&mut broker).await;
    broker.fall_silent();
    client.send(1, basic::Qos { prefetch_count: 5, global: true, ..Default::default() }).await;
    client.send(1, exchange::Declare { exchange: "e", kind: "topic", ..Default::default() }).await;
    for name in ["channel.open", "basic.qos", "exchange.declare"] {
        upstream.expect(name).await;
    }
    // A close would wait for the answers; a client that disconnects does not.
    drop(client);
    for expected in [true, false] {
        let frame = upstream.expect("basic.qos").await;
        let Method::BasicQos(qos) = frame.method() else { unreachable!() };
        assert_eq!((qos.global, qos.prefetch_count), (expected, 0));
    }
    let answers: [Method<'_>; 5] = [
        channel::OpenOk::default().into(),
        basic::QosOk {}.into(),
        exchange::DeclareOk {}.into(),
        basic::QosOk {}.into(),
        basic::QosOk {}.into(),
    ];
    for answer in answers {
        assert_eq!(pool.metrics().idle_channels, 0);
        upstream.send(1, answer);
    }
    until("the channel to rest", || pool.metrics().idle_channels == 1).await;
}

#[tokio::test(start_paused = true)]
async fn p5_an_empty_queue_name_never_means_another_clients_queue() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, mut upstream) = client_and_upstream(&mut broker).await;
    client.send(1, queue::Declare { queue: "theirs", ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    upstream.expect("channel.open").await;
    upstream.expect("queue.declare").await;
    close_channel(&mut client).await;
    assert_eq!(pool.metrics().idle_channels, 1, "every answer has come");

    let mut next = Client::connect(&pool).await;
    next.open_channel(1).await;
    next.send(1, queue::Bind { exchange: "amq.topic", ..Default::default() }).await;
    let closed = next.expect("channel.close").await;
    let Method::ChannelClose(close) = closed.method() else { unreachable!() };
    assert_eq!((close.reply_code, close.reply_text), (404, "NOT_FOUND - no previously declared queue"));
    assert_eq!((close.class_id, close.method_id), (50, 20));
}

#[tokio::test(start_paused = true)]
async fn p5_a_channel_that_consumed_is_closed() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, _warm) = client_and_upstream(&mut broker).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.consume"] {
        own.expect(name).await;
    }
    close_channel(&mut client).await;
    own.expect("channel.close").await;
    assert_eq!(pool.metrics().idle_channels, 0);
}

#[tokio::test(start_paused = true)]
async fn p5_idle_channels_are_closed_while_others_are_used() {
    let mut broker = Broker::start(Manners::default());
    let timeout = std::time::Duration::from_millis(500);
    let pool = Pool::new(proxy::PoolConfig { idle_timeout: timeout, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.open_channel(2).await;
    for number in [1, 2] {
        client.publish(number, b"x").await;
        upstream.expect("channel.open").await;
        upstream.expect_message().await;
    }
    close_channel(&mut client).await;
    upstream.expect("basic.qos").await;
    assert_eq!(upstream.expect("channel.close").await.channel, 1);
    client.publish(2, b"still here").await;
    assert_eq!(upstream.expect_message().await, (2, b"still here".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn p1_a_channel_older_than_auth_ttl_is_not_leased_to_another_client() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { auth_ttl: std::time::Duration::ZERO, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"x").await;
    close_channel(&mut client).await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    for name in ["basic.qos", "channel.close"] {
        upstream.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p2_a_channel_with_overdue_confirms_is_closed_for_a_client_that_finds_none() {
    for is_confirmed_late in [false, true] {
        let mut broker = Broker::start(Manners::default());
        let limits =
            PoolConfig { max_shared_connections: 1, max_channels_per_connection: 1, ..broker.config() };
        let pool = Pool::new(limits);
        let mut client = Client::connect(&pool).await;
        let mut upstream = broker.next_connection().await;
        client.open_channel(1).await;
        client.send(1, confirm::Select::default()).await;
        client.expect("confirm.select-ok").await;
        client.publish(1, b"never confirmed").await;
        for name in ["channel.open", "confirm.select", "basic.publish", "header", "body"] {
            upstream.expect(name).await;
        }
        close_channel(&mut client).await;
        broker.fall_silent();
        let mut next = Client::connect(&pool).await;
        next.open_channel(1).await;
        next.publish(1, b"x").await;
        let number = upstream.expect("channel.close").await.channel;
        assert!(pool.metrics().bytes_departed + pool.metrics().replay_buffer_bytes > 0);
        if is_confirmed_late {
            upstream.send(number, basic::Ack { delivery_tag: 1, multiple: false });
        }
        upstream.send(number, channel::CloseOk {});
        upstream.expect("channel.open").await;
        assert_eq!(upstream.expect_message().await.1, b"x");
        // The message may be lost, because the broker has not confirmed it.
        assert_eq!(pool.metrics().messages_departed_lost, u64::from(!is_confirmed_late));
    }
}

#[tokio::test(start_paused = true)]
async fn p11_a_channel_with_overdue_confirms_is_kept_while_another_connection_may_be_opened() {
    let mut broker = Broker::start(Manners::default());
    let limits = PoolConfig { max_shared_connections: 2, max_channels_per_connection: 1, ..broker.config() };
    let pool = Pool::new(limits);
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.publish(1, b"unconfirmed").await;
    close_channel(&mut client).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    client.open_channel(2).await;
    client.publish(2, b"x").await;
    let mut second = broker.next_connection().await;
    second.expect("channel.open").await;
    second.expect_message().await;
    let mut overdue = 0;
    for name in ["channel.open", "confirm.select", "basic.publish", "header", "body"] {
        overdue = upstream.expect(name).await.channel;
    }
    while upstream.has_more().await {
        let frame = upstream.next().await;
        assert_ne!(frame.channel, overdue, "only a probe of the connection comes after: {frame:?}");
    }
}
