//! P7: clients keep their connections when their upstream connection is lost, and no unconfirmed message is lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::Method;
use amqp::method::{basic, channel, confirm, connection, queue, tx};
use proxy::{Pool, PoolConfig};

use crate::common::{
    Broker, BrokerEnd, Client, Manners, all_is_quiet, delivery, login, message, soon, until,
};

/// A client with a channel in confirm mode that has published these bodies, and the connection on which they
/// arrived.
async fn publisher(broker: &mut Broker, pool: &std::sync::Arc<Pool>, bodies: &[&str]) -> (Client, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    for body in bodies {
        client.publish(1, body.as_bytes()).await;
    }
    let mut upstream = broker.next_connection().await;
    if !bodies.is_empty() {
        expect_start(&mut upstream).await;
    }
    for body in bodies {
        assert_eq!(upstream.expect_message().await.1, body.as_bytes());
    }
    (client, upstream)
}

async fn expect_start(upstream: &mut BrokerEnd) {
    upstream.expect("channel.open").await;
    upstream.expect("confirm.select").await;
}

fn ack(delivery_tag: u64, multiple: bool) -> basic::Ack {
    basic::Ack { delivery_tag, multiple }
}

/// A client that consumes, and the broker's end of its connection.
async fn consumer(broker: &mut Broker, pool: &std::sync::Arc<Pool>) -> (Client, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 7, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    upstream.expect("channel.open").await;
    upstream.expect("basic.qos").await;
    upstream.expect("basic.consume").await;
    (client, upstream)
}

#[tokio::test(start_paused = true)]
async fn p7_unconfirmed_publishes_are_replayed_in_order_and_their_confirms_keep_their_numbers() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = publisher(&mut broker, &pool, &["1", "2", "3", "4"]).await;
    upstream.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (1, false));
    upstream.send(1, ack(3, false));
    assert_eq!(client.expect_ack().await, (3, false));
    drop(upstream);

    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"2");
    assert_eq!(next.expect_message().await.1, b"4");
    client.publish(1, b"5").await;
    assert_eq!(next.expect_message().await.1, b"5");
    next.send(1, ack(2, false));
    assert_eq!(client.expect_ack().await, (4, false));
    drop(next);

    let mut third = broker.next_connection().await;
    expect_start(&mut third).await;
    assert_eq!(third.expect_message().await.1, b"2");
    assert_eq!(third.expect_message().await.1, b"5");
    third.send(1, ack(2, true));
    assert_eq!(client.expect_ack().await, (5, true));
    let metrics = pool.metrics();
    assert_eq!((metrics.messages_replayed, metrics.channels_recovered), (4, 2));
    assert_eq!(metrics.replay_buffer_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn p7_a_broker_that_forces_its_connections_closed_moves_clients() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut upstream) = publisher(&mut broker, &pool, &["1"]).await;
    let text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    upstream.send(0, connection::Close { reply_code: 320, reply_text: text, class_id: 0, method_id: 0 });
    upstream.expect("connection.close-ok").await;
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"1");
    next.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (1, false));
}

#[tokio::test(start_paused = true)]
async fn p7_a_partly_received_message_is_sent_whole_after_the_replay() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = publisher(&mut broker, &pool, &["1"]).await;
    let body = [7; 9000];
    let whole = message(1, &body, 4096);
    client.write(&whole[..6000]).await;
    drop(upstream);
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"1");
    client.write(&whole[6000..]).await;
    next.expect("basic.publish").await;
    next.expect("header").await;
    let mut seen = Vec::new();
    while seen.len() < body.len() {
        seen.extend(next.expect("body").await.payload);
    }
    assert_eq!(seen, body);
}

#[tokio::test(start_paused = true)]
async fn p7_consumers_are_recreated_and_acks_of_stale_tags_are_swallowed() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, own) = consumer(&mut broker, &pool).await;
    own.deliver(1, "c", 1, b"one");
    own.deliver(1, "c", 2, b"two");
    assert_eq!(client.expect_delivery().await, (1, b"one".to_vec()));
    assert_eq!(client.expect_delivery().await, (2, b"two".to_vec()));
    drop(own);

    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    let qos = next.expect("basic.qos").await;
    assert!(matches!(qos.method(), Method::BasicQos(basic::Qos { prefetch_count: 7, .. })));
    let consume = next.expect("basic.consume").await;
    let Method::BasicConsume(consume) = consume.method() else { unreachable!() };
    assert_eq!((consume.queue, consume.consumer_tag, consume.no_wait), ("q", "c", true));
    for stale in [ack(1, false), ack(2, true)] {
        client.send(1, stale).await;
    }
    client.send(1, basic::Reject { delivery_tag: 2, requeue: true }).await;
    next.deliver(1, "c", 1, b"one again");
    assert_eq!(client.expect_delivery().await, (3, b"one again".to_vec()));
    client.send(1, ack(3, true)).await;
    assert_eq!(next.next().await.method(), ack(1, true).into());
}

#[tokio::test(start_paused = true)]
async fn p7_prefetch_limits_are_restored_in_order_with_the_consumers() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = consumer(&mut broker, &pool).await;
    client.send(1, basic::Qos { prefetch_count: 9, global: true, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "d", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    broker.fall_silent();
    // Neither is answered, so both are sent again after the limits that were in force.
    client.send(1, basic::Qos { prefetch_count: 5, ..Default::default() }).await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "e", ..Default::default() }).await;
    all_is_quiet().await;
    drop(upstream);
    // The client's own connection, to which it had moved by then.
    broker.next_connection().await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    let mut seen = Vec::new();
    while next.has_more().await {
        let frame = next.next().await;
        seen.push(match frame.method() {
            Method::BasicQos(qos) => format!("{} {}", qos.prefetch_count, qos.global),
            Method::BasicConsume(consume) => consume.consumer_tag.to_owned(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(seen, ["9 true", "7 false", "c", "9 true", "d", "5 false", "e"]);
}

#[tokio::test(start_paused = true)]
async fn p7_a_cancelled_consumer_is_not_recreated() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, own) = consumer(&mut broker, &pool).await;
    client.send(1, basic::Consume { queue: "q2", consumer_tag: "d", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    own.send(1, basic::Cancel { consumer_tag: "c", no_wait: true });
    client.expect("basic.cancel").await;
    drop(own);
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    next.expect("basic.qos").await;
    let consume = next.expect("basic.consume").await;
    assert!(matches!(consume.method(), Method::BasicConsume(basic::Consume { consumer_tag: "d", .. })));
    client.send(1, basic::Recover { requeue: true }).await;
    next.expect("basic.recover").await;
}

#[tokio::test(start_paused = true)]
async fn p7_unanswered_methods_are_sent_again_after_a_connection_loss() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, queue::Declare { queue: "answered", ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    broker.fall_silent();
    client.send(1, queue::Declare { queue: "asked", ..Default::default() }).await;
    for name in ["channel.open", "queue.declare", "queue.declare"] {
        upstream.expect(name).await;
    }
    broker.manners.obedient.store(true, std::sync::atomic::Ordering::SeqCst);
    drop(upstream);
    let declared = client.expect("queue.declare-ok").await;
    let Method::QueueDeclareOk(ok) = declared.method() else { unreachable!() };
    assert_eq!(ok.queue, "asked");
}

#[tokio::test(start_paused = true)]
async fn p7_the_last_declared_queue_is_remembered() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, queue::Declare { queue: "mine", durable: true, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    drop(upstream);
    until("the connection to be lost", || pool.metrics().connections_lost == 1).await;
    client.send(1, queue::Bind { exchange: "e", routing_key: "k", ..Default::default() }).await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    let bind = next.expect("queue.bind").await;
    assert!(matches!(bind.method(), Method::QueueBind(queue::Bind { queue: "mine", .. })));
}

#[tokio::test(start_paused = true)]
async fn p7_state_that_cannot_be_carried_over_is_reported_in_the_close() {
    let why = "cannot be carried over to another upstream connection: upstream connection lost: closed by the broker";
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.open_channel(2).await;
    client.send(1, tx::Select {}).await;
    let reply_to = basic::Consume { queue: "amq.rabbitmq.reply-to", no_ack: true, ..Default::default() };
    client.send(2, reply_to).await;
    client.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "tx.select", "channel.open", "basic.consume"] {
        own.expect(name).await;
    }
    drop(own);
    client.expect_channel_close(406, &format!("PRECONDITION_FAILED - a transaction {why}")).await;
    client.expect_channel_close(406, &format!("PRECONDITION_FAILED - direct reply-to {why}")).await;

    client.open_channel(3).await;
    client.send(3, queue::Declare { exclusive: true, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    drop(broker.next_connection().await);
    client.expect_close(320, &format!("CONNECTION_FORCED - an exclusive queue {why}")).await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_client_never_gets_half_a_message() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, own) = consumer(&mut broker, &pool).await;
    let whole = delivery(1, "c", 1, b"message");
    own.to.send(whole[..whole.len() - 3].to_vec()).unwrap();
    drop(own);
    let next = broker.next_connection().await;
    next.deliver(1, "c", 1, b"message");
    assert_eq!(client.expect_delivery().await, (1, b"message".to_vec()));

    // A large message is streamed, so its client cannot be recovered in the middle of it.
    let whole = delivery(1, "c", 2, &[7; 500_000]);
    next.to.send(whole[..whole.len() - 3].to_vec()).unwrap();
    client.expect("basic.deliver").await;
    drop(next);
    while client.next().await.name() != "connection.close" {}
}

#[tokio::test(start_paused = true)]
async fn p7_an_outage_is_waited_out_up_to_a_limit() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let hasty = Pool::new(PoolConfig { outage_max: Duration::from_millis(200), ..broker.config() });
    let (mut client, upstream) = publisher(&mut broker, &pool, &["kept"]).await;
    let (mut other, others) = publisher(&mut broker, &hasty, &["kept"]).await;
    broker.go_away().await;
    drop((upstream, others));
    until("the lost connection", || pool.metrics().upstream_connections == 0).await;
    client.publish(1, b"behind").await;
    let closed = other.expect("connection.close").await;
    let Method::ConnectionClose(close) = closed.method() else { unreachable!() };
    assert_eq!(close.reply_code, 320);
    assert!(close.reply_text.starts_with("CONNECTION_FORCED - waited 200ms in vain: "), "{close:?}");
    assert_eq!(pool.metrics().addresses_down, 1);

    broker.come_back().await;
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"kept");
    assert_eq!(next.expect_message().await.1, b"behind");
    next.send(1, ack(2, true));
    assert_eq!(client.expect_ack().await, (2, true));
}

#[tokio::test(start_paused = true)]
async fn p7_logins_during_an_outage_wait_for_its_end_and_the_brokers_verdict() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { arrival_max: Duration::from_secs(60), ..broker.config() });
    broker.go_away().await;
    let mut arriving = Vec::new();
    for _ in 0..50 {
        let pool = pool.clone();
        arriving.push(tokio::spawn(async move { Client::connect(&pool).await }));
    }
    let wrong = tokio::spawn({
        let pool = pool.clone();
        async move { login(&pool, "user", "wrong").await }
    });
    until("an attempt", || pool.metrics().connect_failures > 0).await;
    assert!(arriving.iter().all(|client| !client.is_finished()));
    broker.come_back().await;
    for client in arriving {
        soon("a client to be let in", client).await.unwrap();
    }
    assert!(matches!(soon("a refusal", wrong).await.unwrap(), Err(proxy::Refusal::Login(_))));
}

#[tokio::test(start_paused = true)]
async fn p7_logins_during_an_outage_wait_for_the_configured_time_only() {
    let mut broker = Broker::start(Manners::default());
    for arrival_max in [0, 50].map(Duration::from_secs) {
        let began = tokio::time::Instant::now();
        let pool = Pool::new(PoolConfig { arrival_max, ..broker.config() });
        broker.go_away().await;
        let refusal = login(&pool, "user", "right").await.unwrap_err();
        let proxy::Refusal::Fault(fault) = refusal else { panic!("{refusal}") };
        assert_eq!(fault.code, amqp::ReplyCode::ConnectionForced);
        assert!(fault.text.starts_with("upstream unreachable"), "{fault}");
        let waited = began.elapsed();
        assert!(waited.abs_diff(arrival_max) < Duration::from_millis(10), "{waited:?}");
        broker.come_back().await;
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_broker_that_loses_clients_again_and_again_is_an_outage_too() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { outage_max: Duration::ZERO, ..broker.config() });
    let (mut client, upstream) = publisher(&mut broker, &pool, &["1"]).await;
    drop(upstream);
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    all_is_quiet().await;
    drop(next);
    client.expect_close(320, "CONNECTION_FORCED - upstream connection lost: closed by the broker").await;
}

/// Hours may lie between two restarts.
#[tokio::test(start_paused = true)]
async fn p7_a_loss_is_not_added_to_an_earlier_loss_that_was_recovered() {
    let outage_max = Duration::from_secs(5);
    let mut broker = Broker::start(Manners::default());
    for has_under_way in [true, false] {
        let pool = Pool::new(PoolConfig { outage_max, ..broker.config() });
        let (mut client, mut upstream) = publisher(&mut broker, &pool, &["1"]).await;
        if has_under_way {
            drop(upstream);
            upstream = broker.next_connection().await;
            expect_start(&mut upstream).await;
            assert_eq!(upstream.expect_message().await.1, b"1");
        }
        upstream.send(1, ack(1, false));
        assert_eq!(client.expect_ack().await, (1, false));
        let mut number = 1;
        if has_under_way {
            // The client closes that channel and opens further ones, of which one is in use at the second loss.
            for tag in 2..5 {
                client.send(number, channel::Close::default()).await;
                client.expect("channel.close-ok").await;
                number += 1;
                client.open_channel(number).await;
                client.send(number, confirm::Select::default()).await;
                client.expect("confirm.select-ok").await;
                if tag < 4 {
                    client.publish(number, b"between").await;
                    assert_eq!(upstream.expect_message().await.1, b"between");
                    upstream.send(1, ack(tag, false));
                    assert_eq!(client.expect_ack().await, (1, false));
                }
            }
            tokio::time::sleep(outage_max * 2).await;
            client.publish(number, b"last").await;
        } else {
            drop(upstream);
            until("the lost connection", || pool.metrics().upstream_connections == 0).await;
            tokio::time::sleep(outage_max * 2).await;
            client.publish(number, b"last").await;
            upstream = broker.next_connection().await;
            expect_start(&mut upstream).await;
        }
        assert_eq!(upstream.expect_message().await.1, b"last");
        drop(upstream);
        let mut next = broker.next_connection().await;
        expect_start(&mut next).await;
        assert_eq!(next.expect_message().await.1, b"last");
        next.send(1, ack(1, false));
        assert_eq!(client.expect_ack().await, (if has_under_way { 1 } else { 2 }, false));
    }
}

async fn expect_only(upstream: &mut BrokerEnd) {
    upstream.expect("channel.open").await;
    assert_eq!(upstream.expect_message().await.1, b"only once");
    all_is_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn p7_messages_without_confirms_are_resent_after_an_outage_ends_the_client() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { outage_max: Duration::ZERO, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"only once").await;
    for _ in 0..2 {
        expect_only(&mut upstream).await;
        // The second loss ends the client.
        drop(upstream);
        upstream = broker.next_connection().await;
    }
    expect_only(&mut upstream).await;
    client.expect_close(320, "CONNECTION_FORCED - upstream connection lost: closed by the broker").await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_consumer_that_waits_for_messages_lives_through_one_outage_after_another() {
    let mut broker = Broker::start(Manners::default());
    let outage_max = Duration::from_millis(100);
    let pool = Pool::new(PoolConfig { outage_max, ..broker.config() });
    let (mut client, mut upstream) = consumer(&mut broker, &pool).await;
    for _ in 0..3 {
        drop(upstream);
        upstream = broker.next_connection().await;
        expect_consumer(&mut upstream).await;
        // Longer than an outage may last, while the client is idle.
        tokio::time::sleep(outage_max * 2).await;
    }
    upstream.deliver(1, "c", 1, b"at last");
    assert_eq!(client.expect_delivery().await, (1, b"at last".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn p7_restoring_a_consumer_is_retried_if_the_broker_fails() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = consumer(&mut broker, &pool).await;
    drop(upstream);
    let text = "INTERNAL_ERROR";
    for _ in 0..3 {
        let mut failing = broker.next_connection().await;
        expect_consumer(&mut failing).await;
        failing.send(0, connection::Close { reply_code: 541, reply_text: text, class_id: 0, method_id: 0 });
        failing.expect("connection.close-ok").await;
    }
    let mut next = broker.next_connection().await;
    expect_consumer(&mut next).await;
    next.deliver(1, "c", 1, b"at last");
    assert_eq!(client.expect_delivery().await, (1, b"at last".to_vec()));
}

async fn expect_consumer(upstream: &mut BrokerEnd) {
    for name in ["channel.open", "basic.qos", "basic.consume"] {
        upstream.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_frozen_broker_is_detected_by_missing_heartbeats() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { heartbeat_secs: 1, ..broker.config() });
    let (mut client, frozen) = publisher(&mut broker, &pool, &["1"]).await;
    frozen.set_reading(false);
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"1");
    next.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (1, false));
}

#[tokio::test(start_paused = true)]
async fn p7_a_client_with_nothing_in_flight_does_not_notice_an_outage() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { outage_max: Duration::ZERO, ..broker.config() });
    let (mut client, upstream) = publisher(&mut broker, &pool, &["1"]).await;
    upstream.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (1, false));
    broker.go_away().await;
    drop(upstream);
    until("the lost connection", || pool.metrics().upstream_connections == 0).await;
    broker.come_back().await;
    client.publish(1, b"2").await;
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"2");
    next.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn p7_replay_bytes_are_bounded_and_a_client_over_the_limit_is_not_read() {
    const MAX_BYTES: usize = 100_000;
    const MESSAGES: u64 = 5_000;
    let mut broker = Broker::start(Manners::default());
    for all in [false, true] {
        let mut config = broker.config();
        let limit = if all { &mut config.replay_total_max } else { &mut config.replay_client_max };
        *limit = MAX_BYTES;
        let pool = Pool::new(config);
        let (mut client, mut upstream) = publisher(&mut broker, &pool, &[]).await;
        let flooding = tokio::spawn(async move {
            client.write(&message(1, &[7; 1000], 131_072).repeat(MESSAGES as usize)).await;
            client
        });
        expect_start(&mut upstream).await;
        for confirmed in 1..=MESSAGES {
            upstream.expect_message().await;
            // One batch of reads may come on top.
            assert!(pool.metrics().replay_buffer_bytes < MAX_BYTES + 600_000);
            upstream.send(1, ack(confirmed, true));
        }
        let mut client = soon("everything to be read", flooding).await.unwrap();
        while client.expect_ack().await.0 < MESSAGES {}
        assert_eq!(pool.metrics().replay_buffer_bytes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_message_too_large_to_be_kept_is_refused_not_lost() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.write(&message(1, &[7; 1_100_000], 131_072)).await;
    client.publish(1, b"small").await;
    let mut own = broker.next_connection().await;
    expect_start(&mut own).await;
    while own.next().await.payload != b"small" {}
    drop(own);
    let nack = basic::Nack { delivery_tag: 1, multiple: false, requeue: false };
    assert_eq!(client.expect("basic.nack").await.method(), nack.into());
    let mut next = broker.next_connection().await;
    expect_start(&mut next).await;
    assert_eq!(next.expect_message().await.1, b"small");
    next.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (2, false));
}

/// If it were sent again after a later loss, it might override what another client has done since.
#[tokio::test(start_paused = true)]
async fn p7_a_no_wait_method_is_proven_soon_and_not_replayed_after_that() {
    let mut broker = Broker::start(Manners { declares: true, ..Manners::default() });
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client
        .send(1, queue::Bind { queue: "q", exchange: "amq.topic", no_wait: true, ..Default::default() })
        .await;
    for name in ["channel.open", "queue.bind"] {
        upstream.expect(name).await;
    }
    assert!(pool.metrics().replay_buffer_bytes > 0);
    until("a proof", || pool.metrics().replay_buffer_bytes == 0).await;
    assert_eq!(broker.manners.proofs.load(Ordering::SeqCst), 1);
    drop(upstream);
    client.send(1, queue::Declare { queue: "r", durable: true, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    // One connection restores declarations that a restart may have lost; the client's method follows on the next one.
    let mut restoring = broker.next_connection().await;
    for name in ["channel.open", "queue.bind"] {
        restoring.expect(name).await;
    }
    let mut next = broker.next_connection().await;
    for name in ["channel.open", "queue.declare"] {
        next.expect(name).await;
    }
}
