//! P8.

use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::{basic, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::{Capabilities, FieldTable, FieldValue, FrameKind, Method, RawTable};
use proxy::Pool;

use crate::common::{Broker, Client, Manners, message};

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn p8_bodies_are_split_for_a_broker_with_smaller_frames() {
    let mut broker = Broker::start(Manners { frame_max: 4096, ..Default::default() });
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    let sent = body(100_000);
    client.publish(1, &sent).await;
    upstream.expect("channel.open").await;
    upstream.expect("basic.publish").await;
    upstream.expect("header").await;
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let piece = upstream.expect("body").await.payload;
        assert!(piece.len() <= 4088);
        received.extend(piece);
    }
    assert!(received == sent);
}

#[tokio::test(start_paused = true)]
async fn p8_bodies_are_split_for_a_client_with_smaller_frames() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect_with(&pool, 4096, Capabilities::ALL).await;
    let _warm = broker.next_connection().await;
    client.open_channel(7).await;
    client.send(7, basic::Consume { queue: "q", no_ack: true, ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut upstream = broker.next_connection().await;
    let number = upstream.expect("channel.open").await.channel;
    let sent = body(200_000);
    let mut out = Vec::new();
    write_method(&mut out, number, basic::Deliver { delivery_tag: 1, ..Default::default() });
    write_content_header(&mut out, number, sent.len() as u64, NO_PROPERTIES);
    for piece in sent.chunks(131_064) {
        write_frame(&mut out, FrameKind::Body, number, |out| out.extend_from_slice(piece));
    }
    upstream.to.send(out).unwrap();
    assert_eq!(client.expect("basic.deliver").await.channel, 7);
    client.expect("header").await;
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let piece = client.expect("body").await;
        assert_eq!(piece.channel, 7);
        assert!(piece.payload.len() <= 4088);
        received.extend(piece.payload);
    }
    assert!(received == sent);
}

#[tokio::test(start_paused = true)]
async fn p8_smaller_frames_than_the_brokers_pass_as_they_are() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    let sent = body(10_000);
    client.write(&message(1, &sent, 4096)).await;
    for name in ["channel.open", "basic.publish", "header", "body", "body", "body"] {
        upstream.expect(name).await;
    }
}

/// A method that the pool completes with the queue's name is longer than the client's.
#[tokio::test(start_paused = true)]
async fn p8_a_method_that_exceeds_frame_max_with_its_queue_name_is_refused() {
    let mut broker = Broker::start(Manners { frame_max: 4096, declares: true, ..Default::default() });
    let pool = Pool::new(broker.config());
    let (mut client, mut neighbour) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    let queue = "q".repeat(100);
    client.send(1, queue::Declare { queue: &queue, ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    let padding = |length| FieldTable::from_iter([("a", FieldValue::text("x".repeat(length)))]).encode();
    let bind = |arguments: &[u8]| {
        let arguments = RawTable::check(arguments).unwrap();
        let mut payload = Vec::new();
        let bind = queue::Bind { exchange: "e", routing_key: "k", arguments, ..Default::default() };
        Method::from(bind).encode(&mut payload);
        payload
    };
    let payload = bind(&padding(4088 - bind(&padding(0)).len()));
    let mut bytes = Vec::new();
    write_frame(&mut bytes, FrameKind::Method, 1, |out| out.extend_from_slice(&payload));
    assert_eq!(bytes.len(), 4096, "as it is, it fits");
    client.write(&bytes).await;
    let text = "FRAME_ERROR - frame of 4196 bytes is larger than the upstream's frame_max 4096";
    client.expect_close(501, text).await;
    // Behind it, on the same connection.
    neighbour.open_channel(1).await;
    neighbour.send(1, queue::Declare { queue: "marker", ..Default::default() }).await;
    neighbour.expect("queue.declare-ok").await;
    for name in ["channel.open", "queue.declare"] {
        upstream.expect(name).await;
    }
    while upstream.next().await.name() != "queue.declare" {}
    assert!(!upstream.has_more().await);
}
