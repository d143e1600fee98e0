//! A client whose process is replaced continues in the pool of the next one, as after the loss of an upstream connection: with
//! its channels, its numbers and its consumers, and without a duplicate of what was confirmed or acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amqp::Method;
use amqp::method::{basic, channel, confirm, connection, exchange, queue, tx};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, all_is_quiet, message};

/// Two processes in front of one broker.
fn two_pools() -> (Broker, Arc<Pool>, Arc<Pool>) {
    let broker = Broker::start(Manners { declares: true, ..Manners::default() });
    let (old, new) = (Pool::new(broker.config()), Pool::new(broker.config()));
    (broker, old, new)
}

fn ack(delivery_tag: u64, multiple: bool) -> basic::Ack {
    basic::Ack { delivery_tag, multiple }
}

/// A client with this many confirmed messages on channel 1, and the broker's end of its connection.
async fn publisher(broker: &mut Broker, pool: &Arc<Pool>, confirmed: u64) -> (Client, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    for _ in 0..confirmed {
        client.publish(1, b"before").await;
    }
    let mut upstream = broker.next_connection().await;
    upstream.expect("channel.open").await;
    upstream.expect("confirm.select").await;
    for _ in 0..confirmed {
        upstream.expect_message().await;
    }
    upstream.send(1, ack(confirmed, true));
    assert_eq!(client.expect_ack().await, (confirmed, true));
    (client, upstream)
}

#[tokio::test(start_paused = true)]
async fn confirms_go_on_counting_and_nothing_is_sent_twice() {
    let (mut broker, old, new) = two_pools();
    let (mut client, mut upstream) = publisher(&mut broker, &old, 3).await;
    client.publish(1, b"4").await;
    assert_eq!(upstream.expect_message().await.1, b"4");
    client.leave();
    all_is_quiet().await;
    // The session waits for the confirm, and does not read the client meanwhile.
    client.publish(1, b"5").await;
    assert!(!upstream.has_more().await);
    upstream.send(1, ack(4, false));
    assert_eq!(client.expect_ack().await, (4, false));
    upstream.expect("channel.close").await;

    let mut client = client.go_on_in(&new).await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    next.expect("confirm.select").await;
    assert_eq!(next.expect_message().await.1, b"5");
    next.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (5, false));
    assert_eq!((old.metrics().clients, new.metrics().clients), (0, 1));
    assert_eq!((old.metrics().replay_buffer_bytes, new.metrics().replay_buffer_bytes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_idle_channel_gets_no_upstream_channel_until_it_is_used_again() {
    let (mut broker, old, new) = two_pools();
    let (client, mut upstream) = publisher(&mut broker, &old, 1).await;
    client.leave();
    upstream.expect("channel.close").await;
    let mut client = client.go_on_in(&new).await;
    all_is_quiet().await;
    let mut login = broker.next_connection().await;
    assert!(!login.has_more().await, "only the login");
    client.publish(1, b"2").await;
    login.expect("channel.open").await;
    login.expect("confirm.select").await;
    assert_eq!(login.expect_message().await.1, b"2");
    login.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn consumers_are_recreated_after_their_limits_and_stale_acks_are_swallowed() {
    let (mut broker, old, new) = two_pools();
    let mut client = Client::connect(&old).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(7).await;
    client.send(7, basic::Qos { prefetch_count: 5, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(7, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let number = upstream.expect("channel.open").await.channel;
    upstream.expect("basic.qos").await;
    upstream.expect("basic.consume").await;
    upstream.deliver(number, "c", 1, b"one");
    upstream.deliver(number, "c", 2, b"two");
    client.expect_delivery().await;
    client.expect_delivery().await;
    client.send(7, ack(1, false)).await;
    upstream.expect("basic.ack").await;
    client.leave();
    upstream.expect("channel.close").await;

    let mut client = client.go_on_in(&new).await;
    let mut next = broker.next_connection().await;
    let number = next.expect("channel.open").await.channel;
    let qos = next.expect("basic.qos").await;
    assert!(matches!(qos.method(), Method::BasicQos(basic::Qos { prefetch_count: 5, .. })));
    let consume = next.expect("basic.consume").await;
    let Method::BasicConsume(consume) = consume.method() else { unreachable!() };
    assert_eq!((consume.queue, consume.consumer_tag, consume.no_wait), ("q", "c", true));
    // An ack of the delivery that was requeued.
    client.send(7, ack(2, false)).await;
    next.deliver(number, "c", 1, b"two again");
    assert_eq!(client.expect_delivery().await, (3, b"two again".to_vec()));
    client.send(7, ack(3, false)).await;
    let settled = next.expect("basic.ack").await;
    assert_eq!(settled.method(), Method::BasicAck(ack(1, false)));
}

#[tokio::test(start_paused = true)]
async fn a_message_of_which_half_has_come_arrives_whole() {
    let (mut broker, old, new) = two_pools();
    let (mut client, mut upstream) = publisher(&mut broker, &old, 1).await;
    let body = vec![7; 300_000];
    let whole = message(1, &body, 131_072);
    // Whole frames, and a part of one.
    let (half, rest) = whole.split_at(140_000);
    client.write(half).await;
    all_is_quiet().await;
    client.leave();
    upstream.expect("channel.close").await;
    let mut client = client.go_on_in(&new).await;
    client.write(rest).await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    next.expect("confirm.select").await;
    next.expect("basic.publish").await;
    next.expect("header").await;
    let mut seen = Vec::new();
    while seen.len() < body.len() {
        seen.extend(next.expect("body").await.payload);
    }
    assert!(seen == body);
    next.send(1, ack(1, false));
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_the_broker_has_closed_is_confirmed_in_the_next_process() {
    let (mut broker, old, new) = two_pools();
    let (mut client, upstream) = publisher(&mut broker, &old, 1).await;
    let close = channel::Close { reply_code: 404, reply_text: "no queue", class_id: 50, method_id: 10 };
    upstream.send(1, close);
    client.expect_channel_close(404, "no queue").await;
    let mut client = client.go_on_in(&new).await;
    // Sent before the client received the close.
    client.publish(1, b"discarded").await;
    client.send(1, channel::CloseOk {}).await;
    client.open_channel(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_on_a_clients_own_connection_moves_to_the_next_process_too() {
    let (mut broker, old, new) = two_pools();
    let mut client = Client::connect(&old).await;
    let _login = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client
        .send(1, basic::Consume { queue: "q", consumer_tag: "c", no_ack: true, ..Default::default() })
        .await;
    client.expect("basic.consume-ok").await;
    client.publish(1, b"1").await;
    let mut own = broker.next_connection().await;
    let number = own.expect("channel.open").await.channel;
    own.expect("confirm.select").await;
    own.expect("basic.consume").await;
    own.expect_message().await;
    own.send(number, ack(1, false));
    client.expect("basic.ack").await;
    client.leave();
    own.expect("channel.close").await;

    let mut client = client.go_on_in(&new).await;
    let _login = broker.next_connection().await;
    let mut next = broker.next_connection().await;
    let number = next.expect("channel.open").await.channel;
    next.expect("basic.consume").await;
    next.expect("confirm.select").await;
    client.publish(1, b"2").await;
    next.expect_message().await;
    next.send(number, ack(1, false));
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn transient_topology_is_restored_when_the_next_process_loses_its_broker() {
    let (mut broker, old, new) = two_pools();
    let mut client = Client::connect(&old).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, exchange::Declare { exchange: "e", kind: "fanout", ..Default::default() }).await;
    client.expect("exchange.declare-ok").await;
    client.send(1, queue::Declare { queue: "q", ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    client.send(1, queue::Bind { queue: "q", exchange: "e", ..Default::default() }).await;
    client.expect("queue.bind-ok").await;
    for name in ["channel.open", "exchange.declare", "queue.declare", "queue.bind"] {
        upstream.expect(name).await;
    }
    client.leave();
    upstream.expect("channel.close").await;

    let mut client = client.go_on_in(&new).await;
    let login = broker.next_connection().await;
    client.send(1, queue::Declare { queue: "q", passive: true, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    drop(login);
    let mut declaring = broker.next_connection().await;
    for name in ["channel.open", "exchange.declare", "queue.declare", "queue.bind"] {
        declaring.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_depends_on_its_connection_stays() {
    let (_broker, old, _) = two_pools();
    let cases: [(Method<'_>, &str); 4] = [
        (tx::Select {}.into(), "has a transaction, direct reply-to, or an auto-delete queue"),
        (
            queue::Declare { queue: "q", exclusive: true, ..Default::default() }.into(),
            "has an exclusive queue",
        ),
        (
            queue::Declare { queue: "q", auto_delete: true, ..Default::default() }.into(),
            "has a transaction, direct reply-to, or an auto-delete queue",
        ),
        (
            basic::Consume { queue: "amq.rabbitmq.reply-to", no_ack: true, ..Default::default() }.into(),
            "has a transaction, direct reply-to, or an auto-delete queue",
        ),
    ];
    for (what, why) in cases {
        let mut client = Client::connect(&old).await;
        client.open_channel(1).await;
        let is_answered = !matches!(what, Method::TxSelect(_));
        client.send(1, what).await;
        if is_answered {
            client.next().await;
        } else {
            all_is_quiet().await;
        }
        client.leave();
        client.expect_close(320, &format!("CONNECTION_FORCED - {why}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn topology_undone_by_a_broker_restart_is_restored_by_the_next_process() {
    let (mut broker, old, new) = two_pools();
    let mut client = Client::connect(&old).await;
    let login = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, exchange::Declare { exchange: "e", kind: "fanout", ..Default::default() }).await;
    client.expect("exchange.declare-ok").await;
    // The last connection to the broker, which has restarted.
    drop(login);
    all_is_quiet().await;
    let mut client = client.go_on_in(&new).await;
    let _login = broker.next_connection().await;
    client.send(1, exchange::Declare { exchange: "e", passive: true, ..Default::default() }).await;
    let mut declaring = broker.next_connection().await;
    for name in ["channel.open", "exchange.declare", "connection.close"] {
        declaring.expect(name).await;
    }
    client.expect("exchange.declare-ok").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_may_have_caused_a_fault_keeps_its_confirm_mode_and_a_connection_of_its_own() {
    let mut broker = Broker::start(Manners::default());
    let (old, new) = (Pool::new(broker.config()), Pool::new(broker.config()));
    let mut client = Client::connect(&old).await;
    let mut general = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 5, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    client.open_channel(2).await;
    client.send(2, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.publish(2, b"1").await;
    let mut publishing = broker.next_connection().await;
    let number = publishing.expect("channel.open").await.channel;
    publishing.expect("confirm.select").await;
    publishing.expect_message().await;
    publishing.send(number, ack(1, false));
    assert_eq!(client.expect_ack().await, (1, false));
    // Not answered, so that it may be the cause of the fault.
    client.send(1, exchange::Declare { exchange: "e", kind: "fanout", ..Default::default() }).await;
    for name in ["channel.open", "basic.qos", "basic.consume", "exchange.declare"] {
        general.expect(name).await;
    }
    let fault =
        connection::Close { reply_code: 541, reply_text: "INTERNAL_ERROR", class_id: 0, method_id: 0 };
    general.send(0, fault);
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.qos", "basic.consume", "exchange.declare"] {
        own.expect(name).await;
    }

    let mut client = client.go_on_in(&new).await;
    let _login = broker.next_connection().await;
    let mut next = broker.next_connection().await;
    for name in ["channel.open", "basic.qos", "basic.consume"] {
        next.expect(name).await;
    }
    client.publish(2, b"2").await;
    let number = next.expect("channel.open").await.channel;
    next.expect("confirm.select").await;
    next.expect_message().await;
    next.send(number, ack(1, false));
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_consumer_is_answered_before_its_client_leaves() {
    let (mut broker, old, _) = two_pools();
    let mut client = Client::connect(&old).await;
    let _login = broker.next_connection().await;
    client.open_channel(1).await;
    broker.manners.obedient.store(false, Ordering::SeqCst);
    client
        .send(1, basic::Consume { queue: "amq.rabbitmq.reply-to", no_ack: true, ..Default::default() })
        .await;
    let mut own = broker.next_connection().await;
    let number = own.expect("channel.open").await.channel;
    own.expect("basic.consume").await;
    client.leave();
    assert!(!own.has_more().await, "the channel is not closed yet");
    own.send(number, channel::OpenOk::default());
    own.send(number, basic::ConsumeOk { consumer_tag: "c" });
    client.expect("basic.consume-ok").await;
    client
        .expect_close(320, "CONNECTION_FORCED - has a transaction, direct reply-to, or an auto-delete queue")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_client_receives_unblocked_before_it_leaves() {
    let (mut broker, old, new) = two_pools();
    let (client, upstream) = publisher(&mut broker, &old, 1).await;
    upstream.send(0, connection::Blocked { reason: "low on memory" });
    let mut client = client;
    client.expect("connection.blocked").await;
    let mut client = client.go_on_in(&new).await;
    client.expect("connection.unblocked").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_the_end_of_an_alarm_receives_unblocked_when_it_moves() {
    let mut broker = Broker::start(Manners::default());
    let limits = PoolConfig { max_shared_connections: 1, max_channels_per_connection: 1, ..broker.config() };
    let (old, new) = (Pool::new(limits), Pool::new(broker.config()));
    let (mut holder, upstream) = publisher(&mut broker, &old, 1).await;
    upstream.send(0, connection::Blocked { reason: "low on memory" });
    holder.expect("connection.blocked").await;
    // It finds no channel on the connection, and waits for the end of the alarm.
    let mut client = Client::connect(&old).await;
    client.open_channel(1).await;
    client.publish(1, b"waits").await;
    client.expect("connection.blocked").await;

    let mut client = client.go_on_in(&new).await;
    client.expect("connection.unblocked").await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    assert_eq!(next.expect_message().await.1, b"waits");
}
