//! Replies of the proxy itself do not overtake the broker's replies to earlier frames of the client.

use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::{basic, channel, confirm, connection, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::{FrameKind, Method};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners};

async fn publish_mandatory(client: &mut Client, number: u16) {
    let mut message = Vec::new();
    let publish = basic::Publish { routing_key: "nobody", mandatory: true, ..Default::default() };
    write_method(&mut message, number, publish);
    write_content_header(&mut message, number, 1, NO_PROPERTIES);
    write_frame(&mut message, FrameKind::Body, number, |out| out.push(b'x'));
    client.write(&message).await;
}

fn send_back(upstream: &BrokerEnd, number: u16) {
    let mut returned = Vec::new();
    write_method(&mut returned, number, basic::Return { reply_code: 312, ..Default::default() });
    write_content_header(&mut returned, number, 1, NO_PROPERTIES);
    write_frame(&mut returned, FrameKind::Body, number, |out| out.push(b'x'));
    upstream.to.send(returned).unwrap();
}

#[tokio::test(start_paused = true)]
async fn confirm_select_ok_does_not_overtake_returned_messages() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    client.open_channel(1).await;
    // The first waits for placement, the second goes out directly from the read buffer.
    for _ in 0..2 {
        publish_mandatory(&mut client, 1).await;
    }
    client.send(1, confirm::Select::default()).await;
    upstream.expect("channel.open").await;
    for _ in 0..2 {
        upstream.expect_message().await;
    }
    let select = upstream.expect("confirm.select").await;
    assert_eq!(select.method(), Method::from(confirm::Select { no_wait: false }));
    upstream.send(1, channel::OpenOk::default());
    for _ in 0..2 {
        send_back(&upstream, 1);
    }
    upstream.send(1, confirm::SelectOk {});
    for _ in 0..2 {
        client.expect("basic.return").await;
        client.expect("header").await;
        client.expect("body").await;
    }
    client.expect("confirm.select-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p6_confirm_select_needs_no_round_trip_once_a_later_method_is_answered() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    publish_mandatory(&mut client, 1).await;
    // It is sent on another connection once the broker has processed the message.
    client.send(1, queue::Declare { queue: "q", ..Default::default() }).await;
    client.expect("queue.declare-ok").await;
    broker.fall_silent();
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    let select = upstream.expect("confirm.select").await;
    assert_eq!(select.method(), Method::from(confirm::Select { no_wait: true }));
}

#[tokio::test(start_paused = true)]
async fn close_ok_does_not_overtake_returned_messages() {
    for confirms in [false, true] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let mut client = Client::connect(&pool).await;
        let mut upstream = broker.next_connection().await;
        broker.fall_silent();
        for number in [1, 2] {
            client.open_channel(number).await;
            if confirms {
                client.send(number, confirm::Select::default()).await;
                client.expect("confirm.select-ok").await;
            }
            publish_mandatory(&mut client, number).await;
        }
        // One channel is closed by itself, and the other one with the connection.
        for close in [Method::from(channel::Close::default()), connection::Close::default().into()] {
            let is_channel = matches!(close, Method::ChannelClose(_));
            client.send(u16::from(is_channel), close).await;
            let mut frame = upstream.next().await;
            while frame.name() != "channel.close" {
                frame = upstream.next().await;
            }
            send_back(&upstream, frame.channel);
            upstream.send(frame.channel, channel::CloseOk {});
            for name in ["basic.return", "header", "body"] {
                client.expect(name).await;
            }
            client.expect(if is_channel { "channel.close-ok" } else { "connection.close-ok" }).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p6_a_close_waits_for_no_mandatory_message_that_is_confirmed() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    publish_mandatory(&mut client, 1).await;
    for name in ["channel.open", "confirm.select"] {
        upstream.expect(name).await;
    }
    let (number, _) = upstream.expect_message().await;
    broker.fall_silent();
    upstream.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    client.expect_ack().await;
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p6_a_close_waits_for_no_plain_message_behind_a_mandatory_one_that_is_confirmed() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    publish_mandatory(&mut client, 1).await;
    for name in ["channel.open", "confirm.select"] {
        upstream.expect(name).await;
    }
    let (number, _) = upstream.expect_message().await;
    upstream.send(number, channel::OpenOk::default());
    upstream.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    client.expect_ack().await;
    client.publish(1, b"plain").await;
    upstream.expect_message().await;
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    assert!(!upstream.has_more().await, "the channel was not closed");
}
