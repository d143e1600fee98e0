//! P10: a broker with a memory or disk alarm stops reading connections that publish. Clients that consume,
//! acknowledge, declare or have just arrived continue, and a channel that does both keeps its order over two
//! upstream channels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::frame::write_method;
use amqp::method::{basic, channel, confirm, connection, queue};
use amqp::{Capabilities, Method};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, message, until};

/// A client that publishes, and its upstream connection.
async fn publisher(broker: &mut Broker, pool: &Arc<Pool>) -> (Client, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    client.publish(1, b"first").await;
    let mut publishing = broker.next_connection().await;
    publishing.expect("channel.open").await;
    publishing.expect_message().await;
    (client, publishing)
}

/// Makes the client a bounded consumer on its channel 1.
async fn consume(client: &mut Client) {
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
}

/// A client that consumes and publishes on its channel 1; the upstream connection on which it consumes, with
/// its channel there, and the one on which it publishes. The broker has processed everything.
async fn worker(broker: &mut Broker, pool: &Arc<Pool>) -> (Client, BrokerEnd, u16, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    consume(&mut client).await;
    let mut general = broker.next_connection().await;
    let number = general.expect("channel.open").await.channel;
    general.expect("basic.qos").await;
    general.expect("basic.consume").await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.publish(1, b"reply 1").await;
    let mut publishing = broker.next_connection().await;
    let on = publishing.expect("channel.open").await.channel;
    publishing.expect("confirm.select").await;
    publishing.expect_message().await;
    publishing.send(on, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(client.expect_ack().await, (1, false));
    (client, general, number, publishing)
}

/// Silences the broker, which then receives a worker's second message; returns the channel there.
async fn unconfirmed(broker: &Broker, client: &mut Client, publishing: &mut BrokerEnd) -> u16 {
    broker.fall_silent();
    client.publish(1, b"2").await;
    publishing.expect_message().await.0
}

fn block(publishing: &BrokerEnd) {
    publishing.set_reading(false);
    publishing.send(0, connection::Blocked { reason: "low on memory" });
}

async fn expect_settled(general: &mut BrokerEnd, tag: u64) {
    let ack = general.expect("basic.ack").await;
    assert_eq!(ack.method(), Method::BasicAck(basic::Ack { delivery_tag: tag, multiple: false }));
}

/// Waits until the pool has requested `count` proofs in total.
async fn proofs(broker: &Broker, count: usize) {
    until("a proof", || broker.manners.proofs.load(Ordering::SeqCst) == count).await;
}

#[tokio::test(start_paused = true)]
async fn p10_consumers_continue_and_new_clients_are_served_during_an_alarm() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut publisher, publishing) = publisher(&mut broker, &pool).await;
    let mut consumer = Client::connect(&pool).await;
    consume(&mut consumer).await;
    let mut general = broker.next_connection().await;
    let number = general.expect("channel.open").await.channel;
    general.expect("basic.qos").await;
    general.expect("basic.consume").await;
    block(&publishing);
    publisher.expect("connection.blocked").await;
    publisher.publish(1, b"waits").await;

    for tag in 1..=3 {
        general.deliver(number, "c", tag, b"backlog");
        consumer.expect_delivery().await;
        consumer.send(1, basic::Ack { delivery_tag: tag, multiple: false }).await;
        expect_settled(&mut general, tag).await;
    }
    let mut latecomer = Client::connect(&pool).await;
    latecomer.open_channel(2).await;
    latecomer.send(2, queue::Declare { queue: "q", ..Default::default() }).await;
    latecomer.expect("queue.declare-ok").await;
    general.expect("channel.open").await;
    general.expect("queue.declare").await;
    consume(&mut latecomer).await;
    general.expect("channel.open").await;
    // A client that needs its own connection also gets one that the broker reads.
    latecomer.open_channel(3).await;
    latecomer.send(3, basic::Get { queue: "q", ..Default::default() }).await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("basic.get").await;
    assert_eq!(pool.metrics().blocked_connections, 1);
}

#[tokio::test(start_paused = true)]
async fn p10_an_unused_blocked_connection_is_given_to_publishers_only() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut publishing) = publisher(&mut broker, &pool).await;
    // The broker has answered everything before it stops reading.
    publishing.send(0, connection::Blocked { reason: "low on memory" });
    client.expect("connection.blocked").await;
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    drop(client);
    publishing.expect("basic.qos").await;
    until("nobody to be there", || pool.metrics().upstream_channels == 0).await;

    let mut declarer = Client::connect(&pool).await;
    declarer.open_channel(1).await;
    declarer.send(1, queue::Declare { queue: "q", ..Default::default() }).await;
    declarer.expect("queue.declare-ok").await;
    let mut general = broker.next_connection().await;
    general.expect("channel.open").await;
    let mut getter = Client::connect(&pool).await;
    getter.open_channel(1).await;
    getter.send(1, basic::Get { queue: "q", ..Default::default() }).await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    let mut other = Client::connect(&pool).await;
    other.open_channel(1).await;
    other.publish(1, b"x").await;
    other.expect("connection.blocked").await;
    publishing.expect_message().await;
}

#[tokio::test(start_paused = true)]
async fn p10_a_consuming_publisher_settles_during_an_alarm_and_is_notified_of_it() {
    let mut broker = Broker::start(Manners::default());
    // A small out-buffer, which is soon full.
    let pool = Pool::new(PoolConfig { outbox_limit: 1000, ..broker.config() });
    let (mut worker, mut general, number, publishing) = worker(&mut broker, &pool).await;
    let mut ignorant = Client::connect_with(&pool, 131_072, Capabilities::default()).await;
    block(&publishing);
    worker.expect("connection.blocked").await;
    ignorant.open_channel(1).await;
    let flood = message(1, &[7; 100_000], 131_072).repeat(400);
    let flooding = tokio::spawn(async move { ignorant.write(&flood).await });
    // A part of the last message may be in the socket.
    let is_full = || pool.connections().iter().any(|upstream| upstream.backlog > 1000);
    until("the connection to take no more", is_full).await;

    for tag in 1..=3 {
        general.deliver(number, "c", tag, b"request");
        worker.expect_delivery().await;
        worker.send(1, basic::Ack { delivery_tag: tag, multiple: false }).await;
        expect_settled(&mut general, tag).await;
    }
    flooding.abort();
    publishing.set_reading(true);
    publishing.send(0, connection::Unblocked {});
    worker.expect("connection.unblocked").await;
}

#[tokio::test(start_paused = true)]
async fn p10_a_slow_consumer_moves_during_an_alarm_though_it_could_publish() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { consumer_budget: 20_000, ..broker.config() });
    let (mut worker, mut general, number, publishing) = worker(&mut broker, &pool).await;
    block(&publishing);
    worker.expect("connection.blocked").await;
    // More bytes than its budget and its stream can hold.
    for tag in 1..=200 {
        general.deliver(number, "c", tag, &[7; 20_000]);
    }
    general.expect("channel.close").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.qos", "basic.consume", "confirm.select"] {
        own.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p10_a_method_waits_for_the_messages_before_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut general, number, mut publishing) = worker(&mut broker, &pool).await;
    let on = unconfirmed(&broker, &mut client, &mut publishing).await;
    client.send(1, queue::Delete { queue: "q", ..Default::default() }).await;
    client.publish(1, b"3").await;
    client.send(1, basic::Ack { delivery_tag: 1, multiple: false }).await;
    proofs(&broker, 1).await;
    assert!(!general.has_more().await && !publishing.has_more().await);
    publishing.send(on, channel::FlowOk { active: true });
    general.expect("queue.delete").await;
    assert!(!publishing.has_more().await, "the delete is not answered");
    general.send(number, queue::DeleteOk { message_count: 1 });
    client.expect("queue.delete-ok").await;
    assert_eq!(publishing.expect_message().await.1, b"3");
    expect_settled(&mut general, 1).await;

    // A confirm also proves that earlier messages are processed.
    client.send(1, queue::Declare { queue: "q", ..Default::default() }).await;
    proofs(&broker, 2).await;
    publishing.send(on, basic::Ack { delivery_tag: 3, multiple: true });
    assert_eq!(client.expect_ack().await, (3, true));
    publishing.send(on, channel::FlowOk { active: true });
    general.expect("queue.declare").await;
}

#[tokio::test(start_paused = true)]
async fn p10_a_message_waits_for_the_methods_before_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut general, number, mut publishing) = worker(&mut broker, &pool).await;
    broker.fall_silent();
    // Acknowledgements do not wait.
    client.send(1, basic::Ack { delivery_tag: 1, multiple: false }).await;
    client.publish(1, b"2").await;
    expect_settled(&mut general, 1).await;
    let (on, body) = publishing.expect_message().await;
    assert_eq!(body, b"2");
    publishing.send(on, basic::Ack { delivery_tag: 2, multiple: false });
    client.expect_ack().await;

    client.send(1, queue::Declare { queue: "new", no_wait: true, ..Default::default() }).await;
    client.publish(1, b"3").await;
    general.expect("queue.declare").await;
    proofs(&broker, 1).await;
    assert!(!publishing.has_more().await);
    general.send(number, channel::FlowOk { active: true });
    assert_eq!(publishing.expect_message().await.1, b"3");
}

#[tokio::test(start_paused = true)]
async fn p10_get_and_purge_wait_for_the_confirms_of_earlier_messages() {
    for method in [
        Method::from(basic::Get { queue: "q", ..Default::default() }),
        queue::Purge { queue: "q", ..Default::default() }.into(),
    ] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let (mut client, mut general, _, mut publishing) = worker(&mut broker, &pool).await;
        client.publish(1, b"2").await;
        client.send(1, method).await;
        let (on, _) = publishing.expect_message().await;
        let mut own = broker.next_connection().await;
        general.expect("channel.close").await;
        assert!(!own.has_more().await, "the message is not confirmed");
        publishing.send(on, basic::Ack { delivery_tag: 2, multiple: false });
        assert_eq!(client.expect_ack().await, (2, false));
        publishing.expect("channel.close").await;
        for name in ["channel.open", "basic.qos", "basic.consume", "confirm.select"] {
            own.expect(name).await;
        }
        own.expect(method.name()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p10_p7_a_channel_that_moves_goes_on_when_its_publishing_connection_is_lost() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut general, number, mut publishing) = worker(&mut broker, &pool).await;
    let on = unconfirmed(&broker, &mut client, &mut publishing).await;
    client.send(1, basic::Get { queue: "q", ..Default::default() }).await;
    general.expect("channel.close").await;
    general.send(number, channel::CloseOk {});
    let mut own = broker.next_connection().await;
    publishing.send(on, basic::Ack { delivery_tag: 2, multiple: false });
    assert_eq!(client.expect_ack().await, (2, false));
    publishing.expect("channel.close").await;
    drop(publishing);
    for name in ["channel.open", "basic.qos", "basic.consume", "confirm.select", "basic.get"] {
        own.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p10_an_error_on_one_upstream_channel_closes_the_other() {
    for of_publishing in [true, false] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let (mut client, mut general, number, mut publishing) = worker(&mut broker, &pool).await;
        let close = channel::Close { reply_code: 404, reply_text: "NOT_FOUND - gone", ..Default::default() };
        client.publish(1, b"2").await;
        let (on, _) = publishing.expect_message().await;
        if of_publishing {
            publishing.send(on, close);
        } else {
            general.send(number, close);
        }
        client.expect_channel_close(404, "NOT_FOUND - gone").await;
        if of_publishing {
            publishing.expect("channel.close-ok").await;
            // It had a consumer, so it is closed.
            general.expect("channel.close").await;
        } else {
            general.expect("channel.close-ok").await;
            publishing.send(on, basic::Ack { delivery_tag: 2, multiple: false });
        }
        until("both to be given back", || pool.metrics().upstream_channels == 0).await;
        client.send(1, channel::CloseOk {}).await;
        client.open_channel(1).await;
        client.publish(1, b"again").await;
        loop {
            match publishing.next().await {
                body if body.name() == "body" => break assert_eq!(body.payload, b"again"),
                _ => {}
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p10_a_close_waits_for_messages_and_closes_both_upstream_channels() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut general, number, mut publishing) = worker(&mut broker, &pool).await;
    let on = unconfirmed(&broker, &mut client, &mut publishing).await;
    client.send(1, channel::Close::default()).await;
    proofs(&broker, 1).await;
    assert!(!general.has_more().await, "its consumer may be the last of the queue");
    publishing.send(on, channel::FlowOk { active: true });
    general.expect("channel.close").await;
    general.send(number, channel::CloseOk {});
    client.expect("channel.close-ok").await;
    publishing.send(on, basic::Ack { delivery_tag: 2, multiple: false });
    until("both to be given back", || pool.metrics().upstream_channels == 0).await;
}

#[tokio::test(start_paused = true)]
async fn p10_p7_both_upstream_channels_go_on_after_an_outage() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, general, number, mut publishing) = worker(&mut broker, &pool).await;
    general.deliver(number, "c", 1, b"request");
    client.expect_delivery().await;
    client.publish(1, b"2").await;
    publishing.expect_message().await;
    drop((general, publishing));

    let mut ends = [broker.next_connection().await, broker.next_connection().await];
    ends[0].expect("channel.open").await;
    ends[1].expect("channel.open").await;
    let (first, second) = (ends[0].next().await, ends[1].next().await);
    let [one, other] = ends;
    let (mut general, mut publishing) = match (first.name(), second.name()) {
        ("basic.qos", "confirm.select") => (one, other),
        ("confirm.select", "basic.qos") => (other, one),
        _ => panic!("{first:?} {second:?}"),
    };
    let number = general.expect("basic.consume").await.channel;
    let (on, body) = publishing.expect_message().await;
    assert_eq!(body, b"2");
    // Acknowledgements of earlier deliveries are swallowed, and both sides continue their numbering.
    client.send(1, basic::Ack { delivery_tag: 1, multiple: false }).await;
    general.deliver(number, "c", 1, b"request");
    assert_eq!(client.expect_delivery().await.0, 2);
    client.send(1, basic::Ack { delivery_tag: 2, multiple: false }).await;
    expect_settled(&mut general, 1).await;
    publishing.send(on, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn p6_a_client_that_declares_then_only_publishes_needs_one_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, queue::Declare::default()).await;
    client.expect("queue.declare-ok").await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.publish(1, b"x").await;
    for name in ["channel.open", "queue.declare", "confirm.select"] {
        upstream.expect(name).await;
    }
    let (on, _) = upstream.expect_message().await;
    upstream.send(on, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(client.expect_ack().await, (1, false));
    assert!(!broker.has_new_connection().await);

    // From then on the connection is for publishing; the name of the queue is remembered.
    client.send(1, queue::Bind { exchange: "amq.topic", ..Default::default() }).await;
    let mut general = broker.next_connection().await;
    general.expect("channel.open").await;
    let bind = general.expect("queue.bind").await;
    let Method::QueueBind(bind) = bind.method() else { unreachable!() };
    assert_eq!(bind.queue, "amq.gen-1");
}

/// A client's data, sent at once on its channel 2: a binding with no-wait, a message, and the close.
fn bind_publish_close() -> Vec<u8> {
    let mut bytes = Vec::new();
    write_method(
        &mut bytes,
        2,
        queue::Bind { queue: "q", exchange: "e", no_wait: true, ..Default::default() },
    );
    bytes.extend(message(2, b"last", 131_072));
    write_method(&mut bytes, 2, channel::Close::default());
    bytes
}

#[tokio::test(start_paused = true)]
async fn waiting_messages_are_sent_before_the_channel_is_closed() {
    for consumes in [false, true] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let (mut client, mut publishing) = publisher(&mut broker, &pool).await;
        client.open_channel(2).await;
        if consumes {
            client.send(2, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
            client.expect("basic.qos-ok").await;
            client.send(2, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
            client.expect("basic.consume-ok").await;
        }
        client.write(&bind_publish_close()).await;
        client.expect("channel.close-ok").await;
        publishing.expect("channel.open").await;
        assert_eq!(publishing.expect_message().await.1, b"last");
    }
}

#[tokio::test(start_paused = true)]
async fn confirm_mode_and_its_numbers_outlive_a_connection_of_the_clients_own_that_ends_idle() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    let mut shared = broker.next_connection().await;
    client.send(1, basic::Get { queue: "q", ..Default::default() }).await;
    let mut own = broker.next_connection().await;
    while own.next().await.name() != "basic.get" {}
    own.send(1, basic::GetEmpty::default());
    client.expect("basic.get-empty").await;
    client.publish(1, b"one").await;
    own.expect_message().await;
    own.send(1, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(client.expect_ack().await, (1, false));
    drop(own);
    until("the loss", || pool.metrics().connections_lost == 1).await;

    client.publish(1, b"two").await;
    let number = loop {
        let frame = shared.next().await;
        if frame.name() == "body" {
            break frame.channel;
        }
    };
    shared.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(client.expect_ack().await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn no_proof_is_sent_between_the_frames_of_a_slow_message() {
    const FRAME: usize = 131_072;
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    let large = message(1, &vec![7; 4 << 20], FRAME);
    let (begun, rest) = large.split_at(large.len() / 2);
    client.write(begun).await;
    let _shared = broker.next_connection().await;
    let mut own = broker.next_connection().await;
    while own.next().await.name() != "body" {}
    // Longer than the interval after which a proof is requested.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(broker.manners.proofs.load(Ordering::SeqCst), 0);
    client.write(rest).await;
    let mut bodies = 1;
    while bodies * (FRAME - 8) < 4 << 20 {
        assert_eq!(own.next().await.name(), "body", "after {bodies}");
        bodies += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn p10_publishers_that_find_no_channel_wait_for_the_end_of_an_alarm() {
    let mut broker = Broker::start(Manners::default());
    let outage_max = Duration::from_secs(5);
    let limits = PoolConfig { max_shared_connections: 1, max_channels_per_connection: 1, ..broker.config() };
    let pool = Pool::new(PoolConfig { outage_max, ..limits });
    let (mut holder, mut publishing) = publisher(&mut broker, &pool).await;
    block(&publishing);
    holder.expect("connection.blocked").await;
    let (mut waiting, mut leaving) = (Client::connect(&pool).await, Client::connect(&pool).await);
    for (client, body) in [(&mut waiting, &b"waits"[..]), (&mut leaving, b"departed")] {
        client.open_channel(1).await;
        client.publish(1, body).await;
        client.expect("connection.blocked").await;
    }
    drop(leaving);
    until("the client to leave", || pool.metrics().clients == 2).await;
    tokio::time::sleep(outage_max * 4).await;
    assert_eq!(pool.metrics().messages_departed_lost, 0);

    publishing.set_reading(true);
    publishing.send(0, connection::Unblocked {});
    holder.expect("connection.unblocked").await;
    holder.send(1, channel::Close::default()).await;
    holder.expect("channel.close-ok").await;
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        let frame = publishing.next().await;
        if frame.name() == "body" {
            if frame.payload == b"waits" {
                // The other message needs a channel, too.
                waiting.expect("connection.unblocked").await;
                waiting.send(1, channel::Close::default()).await;
                waiting.expect("channel.close-ok").await;
            }
            bodies.push(frame.payload);
        }
    }
    bodies.sort();
    assert_eq!(bodies, [&b"departed"[..], b"waits"]);
}
