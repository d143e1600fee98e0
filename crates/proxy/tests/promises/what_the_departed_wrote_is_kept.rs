//! P11: frames written by a departed client are kept until the broker has answered something behind them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::method::{basic, channel, confirm, connection, exchange, queue};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, all_is_quiet, message, until};

async fn close(client: &mut Client) {
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    client.send(0, connection::Close::default()).await;
    client.expect("connection.close-ok").await;
}

/// A client that publishes to a broker that does not answer, and the upstream connection.
async fn publisher(broker: &mut Broker, confirms: bool) -> (Arc<Pool>, Client, BrokerEnd) {
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    client.open_channel(1).await;
    if confirms {
        client.send(1, confirm::Select::default()).await;
        client.expect("confirm.select-ok").await;
    }
    client.publish(1, b"kept").await;
    upstream.expect("channel.open").await;
    if confirms {
        upstream.expect("confirm.select").await;
    }
    upstream.expect_message().await;
    (pool, client, upstream)
}

#[tokio::test(start_paused = true)]
async fn p11_it_goes_out_again_on_another_connection_when_that_one_dies() {
    let mut broker = Broker::start(Manners::default());
    for (confirms, vanishes) in [(false, false), (true, false), (false, true), (true, true)] {
        broker.manners.obedient.store(true, Ordering::SeqCst);
        let (pool, mut client, mut upstream) = publisher(&mut broker, confirms).await;
        if !vanishes {
            close(&mut client).await;
        }
        drop(client);
        until("the client to leave", || pool.metrics().clients == 0).await;
        assert!(pool.metrics().bytes_departed > 0);
        // Twice, because the second connection may die as well.
        for _ in 0..2 {
            drop(upstream);
            upstream = broker.next_connection().await;
            upstream.expect("channel.open").await;
            if confirms {
                upstream.expect("confirm.select").await;
            }
            assert_eq!(upstream.expect_message().await.1, b"kept");
        }
        upstream.send(1, channel::OpenOk::default());
        if confirms {
            upstream.send(1, basic::Ack { delivery_tag: 1, multiple: false });
        } else {
            upstream.expect("basic.qos").await;
            upstream.send(1, basic::QosOk {});
        }
        until("the answer", || pool.metrics().idle_channels == 1).await;
        let metrics = pool.metrics();
        assert_eq!((metrics.bytes_departed, metrics.replay_buffer_bytes), (0, 0));
        assert_eq!((metrics.messages_departed_resent, metrics.messages_departed_lost), (2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn p11_it_waits_for_an_outage_to_end() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, upstream) = publisher(&mut broker, false).await;
    close(&mut client).await;
    broker.go_away().await;
    drop(upstream);
    until("the loss", || pool.metrics().connect_failures > 0).await;
    broker.come_back().await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    assert_eq!(next.expect_message().await.1, b"kept");
}

#[tokio::test(start_paused = true)]
async fn p11_messages_covered_by_a_broker_answer_are_not_sent_twice() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"answered").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    // A method goes out on another connection, once the broker has answered something behind the message.
    client.send(1, queue::Declare { queue: "q", durable: true, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    assert_eq!(pool.metrics().replay_buffer_bytes, 0);
    let mut other = broker.next_connection().await;
    other.expect("channel.open").await;
    other.expect("queue.declare").await;
    broker.fall_silent();
    client.publish(1, b"kept").await;
    upstream.expect_message().await;
    close(&mut client).await;
    drop(upstream);
    // The other connection is no longer used, and its channel rests.
    assert_eq!(other.expect_message().await.1, b"kept");
    other.expect("basic.qos").await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_client_that_stays_has_it_proven_now_and_then_and_goes_on_after_a_loss() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"quiet").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    // A small message is proven after a while.
    until("a proof", || pool.metrics().replay_buffer_bytes == 0).await;
    assert_eq!(broker.manners.proofs.load(Ordering::SeqCst), 1);

    broker.fall_silent();
    client.write(&message(1, &[7; 100_000], 131_072)).await;
    upstream.expect_message().await;
    // A large message is proven at once.
    let proofs = || broker.manners.proofs.load(Ordering::SeqCst);
    until("a proof to be asked for", || proofs() == 2).await;
    drop(upstream);
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    assert_eq!(next.expect_message().await.1.len(), 100_000);
    assert_eq!(pool.metrics().messages_replayed, 1);
}

#[tokio::test(start_paused = true)]
async fn s2_when_too_much_is_kept_a_close_waits_for_the_broker() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { departed_total_max: 1, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    let mut publish = async |close_sent: bool| {
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.publish(1, b"kept").await;
        upstream.expect("channel.open").await;
        let number = upstream.expect_message().await.0;
        if close_sent {
            client.send(1, channel::Close::default()).await;
            upstream.expect("channel.close").await;
            upstream.send(number, channel::OpenOk::default());
            upstream.send(number, channel::CloseOk {});
            client.expect("channel.close-ok").await;
        } else {
            drop(client);
            upstream.expect("basic.qos").await;
        }
    };
    publish(false).await;
    until("the client to leave", || pool.metrics().bytes_departed > 0).await;
    publish(true).await;
    // A client that does not wait loses its message, which is counted.
    publish(false).await;
    until("it to be counted", || pool.metrics().messages_departed_lost == 1).await;
    client.open_channel(1).await;
}

#[tokio::test(start_paused = true)]
async fn p2_suspected_messages_are_resent_alone_and_dropped_if_they_fail_again() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut client, shared) = publisher(&mut broker, false).await;
    close(&mut client).await;
    let text = "INTERNAL_ERROR - something is wrong";
    let fault = connection::Close { reply_code: 541, reply_text: text, class_id: 0, method_id: 0 };
    shared.send(0, fault);
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect_message().await;
    assert_eq!(pool.metrics().dedicated_connections, 1);
    own.send(0, fault);
    until("it to be given up", || pool.metrics().messages_departed_lost == 1).await;
    assert_eq!(pool.metrics().bytes_departed, 0);
    assert!(!broker.has_new_connection().await);
}

/// The broker may have carried it out before it was lost, and by now another client relies on a queue of that name.
#[tokio::test(start_paused = true)]
async fn p2_deletes_and_unbinds_already_sent_are_not_sent_again() {
    for no_wait in [false, true] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let mut client = Client::connect(&pool).await;
        let mut upstream = broker.next_connection().await;
        broker.fall_silent();
        client.open_channel(1).await;
        client.send(1, queue::Declare { queue: "q", durable: true, no_wait, ..Default::default() }).await;
        client.send(1, queue::Unbind { queue: "q", exchange: "amq.topic", ..Default::default() }).await;
        client.send(1, exchange::Unbind { no_wait, ..Default::default() }).await;
        client.send(1, exchange::Delete { exchange: "e", no_wait, ..Default::default() }).await;
        client.send(1, queue::Delete { queue: "q", no_wait, ..Default::default() }).await;
        client
            .send(1, queue::Bind { queue: "r", exchange: "amq.topic", no_wait, ..Default::default() })
            .await;
        let mut frame = upstream.next().await;
        while frame.name() != "queue.bind" {
            frame = upstream.next().await;
        }
        drop(client);
        until("the client to leave", || pool.metrics().clients == 0).await;
        // Twice, because the second connection may be lost as well.
        for _ in 0..2 {
            drop(upstream);
            upstream = broker.next_connection().await;
            for name in ["channel.open", "queue.declare", "queue.bind"] {
                upstream.expect(name).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p11_a_delete_never_sent_is_carried_out_after_the_client_has_left() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    client.open_channel(1).await;
    broker.go_away().await;
    drop(upstream);
    all_is_quiet().await;
    client.send(1, queue::Delete { queue: "q", ..Default::default() }).await;
    all_is_quiet().await;
    drop(client);
    until("the client to leave", || pool.metrics().clients == 0).await;
    broker.come_back().await;
    let mut next = broker.next_connection().await;
    // The one that was being opened for the client is not needed any more.
    while next.next().await.name() != "channel.open" {
        next = broker.next_connection().await;
    }
    next.expect("queue.delete").await;
}

/// A pool with one channel for publishing, which the client uses, and the upstream connection.
async fn occupied(broker: &mut Broker) -> (Arc<Pool>, Client, BrokerEnd) {
    let pool = Pool::new(PoolConfig {
        max_shared_connections: 1,
        max_channels_per_connection: 1,
        outage_max: WAIT * 2,
        ..broker.config()
    });
    let mut holder = Client::connect(&pool).await;
    holder.open_channel(1).await;
    holder.publish(1, b"in use").await;
    let mut upstream = broker.next_connection().await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    (pool, holder, upstream)
}

/// Longer than a connected client waits for a channel, and shorter than the login counts.
const WAIT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn p11_it_waits_for_a_channel_to_become_free() {
    let mut broker = Broker::start(Manners::default());
    for becomes_free in [true, false] {
        let (pool, mut holder, mut upstream) = occupied(&mut broker).await;
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.publish(1, b"kept").await;
        until("the message to wait", || pool.metrics().bytes_queued > 0).await;
        drop(client);
        until("the client to leave", || pool.metrics().clients == 1).await;
        tokio::time::sleep(WAIT).await;
        let metrics = pool.metrics();
        assert!(metrics.bytes_departed > 0 && metrics.messages_departed_lost == 0);
        if becomes_free {
            close(&mut holder).await;
            upstream.expect("basic.qos").await;
            assert_eq!(upstream.expect_message().await.1, b"kept");
            until("the answer", || pool.metrics().bytes_departed == 0).await;
            assert_eq!(pool.metrics().messages_departed_lost, 0);
        } else {
            // No longer than an outage is waited out.
            until("it to be given up", || pool.metrics().messages_departed_lost == 1).await;
            assert_eq!(pool.metrics().bytes_departed, 0);
        }
    }
}
