//! P2.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::{basic, channel, connection, exchange, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::{FrameKind, Method, RawTable};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners, Stalled, message};

fn method<'m>(number: u16, method: impl Into<Method<'m>>) -> Vec<u8> {
    let mut out = Vec::new();
    write_method(&mut out, number, method);
    out
}

fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, kind, 1, |out| out.extend_from_slice(payload));
    out
}

fn publish_then(rest: &[u8]) -> Vec<u8> {
    [&method(1, basic::Publish::default()), rest].concat()
}

fn header(size: u64, properties: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_content_header(&mut out, 1, size, properties);
    out
}

/// `{"k": NaN}`.
fn not_a_number() -> RawTable<'static> {
    RawTable::check(&[1, b'k', b'd', 0x7f, 0xf8, 0, 0, 0, 0, 0, 0]).unwrap()
}

/// Each of these makes RabbitMQ close the connection.
fn offences() -> Vec<(Vec<u8>, u16, &'static str)> {
    vec![
        (method(2, basic::Qos::default()), 504, "CHANNEL_ERROR - expected 'channel.open'"),
        (method(1, channel::Open::default()), 504, "CHANNEL_ERROR - second 'channel.open' seen"),
        (
            frame(FrameKind::Body, b"x"),
            505,
            "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        ),
        (
            publish_then(&frame(FrameKind::Body, b"x")),
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        ),
        (
            publish_then(&[header(5, NO_PROPERTIES), method(1, channel::Close::default())].concat()),
            505,
            "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        ),
        (
            publish_then(&[header(1, NO_PROPERTIES), frame(FrameKind::Body, b"xx")].concat()),
            501,
            "FRAME_ERROR - content body frame exceeds remaining content size",
        ),
        (publish_then(&header(0, &[0x80, 0])), 502, "SYNTAX_ERROR - data ends inside a field"),
        (
            frame(FrameKind::Method, &[0, 60, 0, 99]),
            503,
            "COMMAND_INVALID - unknown method, class 60 method 99",
        ),
        (method(1, connection::Tune::default()), 503, "COMMAND_INVALID - unimplemented method"),
        (method(1, queue::DeclareOk::default()), 503, "COMMAND_INVALID - unimplemented method"),
        (
            method(1, basic::Publish { immediate: true, ..Default::default() }),
            540,
            "NOT_IMPLEMENTED - immediate=true",
        ),
        (
            method(1, basic::Qos { prefetch_size: 1, ..Default::default() }),
            540,
            "NOT_IMPLEMENTED - prefetch_size!=0 (1)",
        ),
        (method(1, basic::Recover { requeue: false }), 540, "NOT_IMPLEMENTED - requeue=false"),
        (method(1, channel::Flow { active: false }), 540, "NOT_IMPLEMENTED - active=false"),
        (method(1, channel::FlowOk { active: true }), 503, "COMMAND_INVALID - unimplemented method"),
        (
            // Class, a weight, the body size, no properties.
            publish_then(&frame(FrameKind::Header, &[0, 60, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0])),
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        ),
        (
            method(1, queue::Bind { arguments: not_a_number(), ..Default::default() }),
            541,
            "INTERNAL_ERROR - number in a table is infinite or not a number",
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_offence_ends_its_client_and_never_reaches_the_broker() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut neighbour = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    neighbour.open_channel(1).await;
    for (offence, code, text) in offences() {
        let mut offender = Client::connect(&pool).await;
        offender.open_channel(1).await;
        offender.write(&offence).await;
        offender.expect_close(code, text).await;

        neighbour.publish(1, text.as_bytes()).await;
        loop {
            let frame = upstream.next().await;
            match frame.name() {
                "body" if frame.payload == text.as_bytes() => break,
                "channel.open" | "basic.publish" | "header" | "body" => {}
                other => panic!("{other} reached the broker"),
            }
        }
    }
    assert_eq!(broker.logins(), 1);
}

#[tokio::test(start_paused = true)]
async fn messages_before_an_offence_in_the_same_read_are_passed_on() {
    for (offence, code, text) in offences() {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let mut client = Client::connect(&pool).await;
        let mut upstream = broker.next_connection().await;
        for number in [1, 9] {
            client.open_channel(number).await;
        }
        // Placed on an upstream channel with another number.
        client.publish(9, b"first").await;
        upstream.expect("channel.open").await;
        assert_eq!(upstream.expect_message().await, (1, b"first".to_vec()));
        let messages =
            [message(9, b"second", 131_072), message(9, b"", 131_072), message(9, b"third", 131_072)];
        client.write(&[&messages.concat(), &offence[..]].concat()).await;
        client.expect_close(code, text).await;
        assert_eq!(upstream.expect_message().await, (1, b"second".to_vec()));
        for name in ["basic.publish", "header"] {
            assert_eq!(upstream.expect(name).await.channel, 1);
        }
        assert_eq!(upstream.expect_message().await, (1, b"third".to_vec()));
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_message_never_reaches_a_shared_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut neighbour = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    client.publish(1, b"whole").await;
    let half = message(1, b"half a message", 131_072);
    client.write(&half[..half.len() - 3]).await;
    client.write(&method(2, channel::Open::default())).await;
    drop(client);
    for name in ["channel.open", "basic.publish", "header", "body", "basic.qos"] {
        upstream.expect(name).await;
    }
    neighbour.open_channel(1).await;
    neighbour.publish(1, b"after").await;
    // On the same channel, or on another if that one is not clean yet.
    let mut frame = upstream.next().await;
    if frame.name() == "channel.open" {
        frame = upstream.next().await;
    }
    assert_eq!(frame.name(), "basic.publish");
    upstream.expect("header").await;
    assert_eq!(upstream.expect("body").await.payload, b"after");
}

#[tokio::test(start_paused = true)]
async fn a_large_message_takes_a_connection_of_its_own_which_dies_with_half_of_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"small").await;
    for name in ["channel.open", "basic.publish", "header", "body"] {
        shared.expect(name).await;
    }
    let large = message(1, &vec![7; 2 * 1024 * 1024], 131_072);
    client.write(&large[..large.len() / 2]).await;
    // The small message's channel is closed, then the large one streams elsewhere.
    shared.expect("channel.close").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.publish", "header", "body"] {
        own.expect(name).await;
    }
    drop(client);
    loop {
        let frame = own.next().await;
        match frame.name() {
            "body" => {}
            "connection.close" => break,
            other => panic!("{other} in the middle of a message"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn methods_depending_on_plugins_or_queue_types_use_a_dedicated_connection() {
    let delete = queue::Delete { queue: "q", if_empty: true, ..Default::default() };
    // Lengths in front of key and value; the locator is one that RabbitMQ neither knows nor expects.
    let odd = b"\x16x-queue-master-locatorS\0\0\0\x04none";
    let odd = queue::Declare { arguments: RawTable::check(odd).unwrap(), ..Default::default() };
    let risky: [Method<'_>; 6] = [
        odd.into(),
        queue::Declare { queue: "amq.rabbitmq.reply-to.xx.yy", passive: true, ..Default::default() }.into(),
        exchange::Declare { exchange: "x", kind: "x-delayed-message", ..Default::default() }.into(),
        basic::Get { queue: "q", ..Default::default() }.into(),
        queue::Purge { queue: "q", ..Default::default() }.into(),
        delete.into(),
    ];
    for risk in risky {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let mut neighbour = Client::connect(&pool).await;
        neighbour.use_channel(1).await;
        let _shared = broker.next_connection().await;

        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        broker.fall_silent();
        client.send(1, risk).await;
        let mut own = broker.next_connection().await;
        own.expect("channel.open").await;
        own.expect(risk.name()).await;
        let text = "NOT_IMPLEMENTED - queue.purge not supported by stream queues";
        let (class_id, method_id) = risk.ids();
        own.send(0, connection::Close { reply_code: 540, reply_text: text, class_id, method_id });
        client.expect_close(540, text).await;

        broker.manners.obedient.store(true, Ordering::SeqCst);
        neighbour.send(1, basic::Qos::default()).await;
        neighbour.expect("basic.qos-ok").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_broker_may_fail_over_ends_its_client_alone() {
    let to = |routing_key| method(1, basic::Publish { routing_key, ..Default::default() });
    let with = |headers: &[u8]| {
        let mut properties = vec![0x20, 0];
        properties.extend_from_slice(&u32::to_be_bytes(headers.len() as u32));
        header(0, &[&properties[..], headers].concat())
    };
    let copy = b"\x02CCA\0\0\0\x20S\0\0\0\x1bamq.rabbitmq.reply-to.xx.yy";
    for risk in [
        [to("amq.rabbitmq.reply-to.xx.yy"), header(0, NO_PROPERTIES)].concat(),
        [to("queue"), with(copy)].concat(),
        [to("queue"), with(not_a_number().bytes())].concat(),
    ] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let (mut neighbour, _shared) = neighbour(&mut broker, &pool).await;

        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.publish(1, b"harmless").await;
        let mut publishing = broker.next_connection().await;
        publishing.expect("channel.open").await;
        publishing.expect_message().await;
        // Twice: the first waits for the connection, the second may go out directly from the read buffer.
        client.write(&[&risk[..], &risk].concat()).await;
        publishing.expect("channel.close").await;
        let mut own = broker.next_connection().await;
        own.expect("channel.open").await;
        for _ in 0..2 {
            own.expect("basic.publish").await;
            own.expect("header").await;
        }
        own.send(
            0,
            connection::Close { reply_code: 541, reply_text: "INTERNAL_ERROR", ..Default::default() },
        );
        client.expect_close(541, "INTERNAL_ERROR").await;

        neighbour.send(1, basic::Qos::default()).await;
        neighbour.expect("basic.qos-ok").await;
    }
}

/// A client on a shared connection, and the broker's end of that.
async fn neighbour(broker: &mut Broker, pool: &Arc<Pool>) -> (Client, BrokerEnd) {
    let mut neighbour = Client::connect(pool).await;
    neighbour.use_channel(1).await;
    let mut shared = broker.next_connection().await;
    shared.expect("channel.open").await;
    shared.expect("basic.qos").await;
    (neighbour, shared)
}

/// The text of RabbitMQ 4 if it may not have queues that are neither durable nor exclusive.
const NOT_PERMITTED: &str = "INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated.";

#[tokio::test(start_paused = true)]
async fn after_a_broker_has_denied_a_transient_queue_others_are_asked_for_on_connections_of_their_own() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let denied = |end: &BrokerEnd| {
        let (class_id, method_id) = Method::from(queue::Declare::default()).ids();
        end.send(0, connection::Close { reply_code: 541, reply_text: NOT_PERMITTED, class_id, method_id });
    };
    let mut first = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    broker.fall_silent();
    first.open_channel(1).await;
    first.send(1, queue::Declare { queue: "t", ..Default::default() }).await;
    shared.expect("channel.open").await;
    shared.expect("queue.declare").await;
    denied(&shared);
    // It may not be the culprit, and is asked for once more.
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("queue.declare").await;
    denied(&own);
    first.expect_close(541, NOT_PERMITTED).await;

    broker.manners.obedient.store(true, Ordering::SeqCst);
    let _neighbour = neighbour(&mut broker, &pool).await;
    broker.fall_silent();
    let mut second = Client::connect(&pool).await;
    second.open_channel(1).await;
    second.send(1, queue::Declare { queue: "t", ..Default::default() }).await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("queue.declare").await;
    denied(&own);
    second.expect_close(541, NOT_PERMITTED).await;
}

#[tokio::test(start_paused = true)]
async fn a_text_that_the_broker_has_cut_in_the_middle_of_a_letter_is_passed_on() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    client.open_channel(1).await;
    client.send(1, queue::Declare { queue: "q", passive: true, ..Default::default() }).await;
    upstream.expect("channel.open").await;
    upstream.expect("queue.declare").await;
    // 404, a text of two bytes ending in half a character, and the method at fault.
    let close = [0, 20, 0, 40, 1, 148, 2, b'q', 0xc3, 0, 50, 0, 10];
    upstream.to.send(frame(FrameKind::Method, &close)).unwrap();
    let closed = client.next().await;
    assert_eq!((closed.channel, &closed.payload[..]), (1, &close[..]));
    client.send(1, channel::CloseOk {}).await;
    upstream.expect("channel.close-ok").await;
    assert_eq!(pool.metrics().connections_lost, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_allowed_closes_its_channel_only() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(proxy::PoolConfig { max_message_size: Some(10), ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"short").await;
    client.publish(1, b"eleven more").await;
    let closed = client.expect("channel.close").await;
    let Method::ChannelClose(close) = closed.method() else { unreachable!() };
    assert_eq!(
        close.reply_text,
        "PRECONDITION_FAILED - message size 11 is larger than configured max size 10"
    );
    for name in ["channel.open", "basic.publish", "header", "body", "basic.qos"] {
        upstream.expect(name).await;
    }
    client.send(1, channel::CloseOk {}).await;
    client.open_channel(1).await;
}

/// A warm connection with a neighbour that publishes on it, and a client whose own connection is never established.
async fn stalled_client(broker: &mut Broker, pool: &Arc<Pool>) -> (Client, BrokerEnd, Client) {
    let mut neighbour = Client::connect(pool).await;
    let mut upstream = broker.next_connection().await;
    neighbour.open_channel(1).await;
    neighbour.publish(1, b"x").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    let mut client = Client::connect(pool).await;
    broker.stall(Stalled::All);
    for number in [1, 2] {
        client.open_channel(number).await;
    }
    (neighbour, upstream, client)
}

#[tokio::test(start_paused = true)]
async fn risky_methods_of_a_vanished_client_never_reach_a_shared_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut neighbour, mut upstream, mut client) = stalled_client(&mut broker, &pool).await;
    client.send(1, exchange::Declare { exchange: "x", kind: "bogus", ..Default::default() }).await;
    client.publish(1, b"first").await;
    client.send(2, basic::Consume { queue: "q", no_ack: true, ..Default::default() }).await;
    client.send(2, basic::Get { queue: "q", no_ack: true, ..Default::default() }).await;
    client.publish(2, b"second").await;
    let half = message(2, b"half a message", 131_072);
    client.write(&half[..half.len() - 20]).await;
    drop(client);
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        let frame = upstream.next().await;
        match frame.name() {
            "body" => bodies.push(frame.payload),
            // The second may get the channel of the first, if that is clean in time.
            "channel.open" | "basic.publish" | "header" | "basic.qos" => {}
            other => panic!("{other} reached the shared connection"),
        }
    }
    assert_eq!(bodies, [b"first".as_slice(), b"second"]);
    upstream.expect("basic.qos").await;
    neighbour.publish(1, b"y").await;
    upstream.expect_message().await;
}

#[tokio::test(start_paused = true)]
async fn risky_methods_held_on_a_failed_channel_never_reach_a_shared_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(proxy::PoolConfig { max_message_size: Some(10), ..broker.config() });
    let (mut neighbour, mut upstream, mut client) = stalled_client(&mut broker, &pool).await;
    client.send(1, exchange::Declare { exchange: "x", kind: "bogus", ..Default::default() }).await;
    client.publish(1, b"small").await;
    client.publish(1, b"larger than allowed").await;
    client.expect("channel.close").await;
    upstream.expect("channel.open").await;
    assert_eq!(upstream.expect_message().await.1, b"small");
    upstream.expect("basic.qos").await;
    neighbour.publish(1, b"y").await;
    upstream.expect_message().await;
}

/// A broker that closes one connection for what was sent there is not taken for one that is gone.
#[tokio::test(start_paused = true)]
async fn an_offence_that_only_the_broker_sees_leaves_its_address_up() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    for reply_code in [503, 540, 541] {
        let mut offender = Client::connect(&pool).await;
        offender.open_channel(1).await;
        offender.send(1, queue::Declare { exclusive: true, ..Default::default() }).await;
        offender.expect("queue.declare-ok").await;
        let own = broker.next_connection().await;
        let close = connection::Close { reply_code, reply_text: "no", class_id: 0, method_id: 0 };
        own.send(0, close);
        offender.expect("connection.close").await;
        assert_eq!(pool.metrics().addresses_down, 0, "after a {reply_code}");
    }
    assert_eq!(pool.metrics().connections_lost, 3);
}

#[tokio::test(start_paused = true)]
async fn a_virtual_host_that_is_down_leaves_the_address_up_and_is_tried_again_now_and_then() {
    const SECONDS: usize = 10;
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    client.open_channel(1).await;
    broker.manners.vhost_is_down.store(true, Ordering::SeqCst);
    let before = broker.logins();
    client.send(1, queue::Declare { exclusive: true, ..Default::default() }).await;
    tokio::time::sleep(Duration::from_secs(SECONDS as u64)).await;
    let tried = broker.logins() - before;
    assert!((2..=SECONDS + 1).contains(&tried), "{tried} attempts");
    assert_eq!(pool.metrics().addresses_down, 0);
    broker.manners.vhost_is_down.store(false, Ordering::SeqCst);
    client.expect("queue.declare-ok").await;
}
