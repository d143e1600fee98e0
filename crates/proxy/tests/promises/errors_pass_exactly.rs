//! The broker's errors reach the client they concern unchanged, and no other client.

use amqp::Method;
use amqp::method::{basic, channel, confirm, connection, queue};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners, message, until};

#[tokio::test(start_paused = true)]
async fn a_channel_closed_by_the_broker_is_closed_with_its_words_and_can_be_opened_again() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(5).await;
    client.publish(5, b"to nowhere").await;
    let number = upstream.expect("channel.open").await.channel;
    for name in ["basic.publish", "header", "body"] {
        upstream.expect(name).await;
    }
    upstream.send(number, NO_EXCHANGE);
    let heard = client.expect("channel.close").await;
    assert_eq!((heard.channel, heard.method()), (5, Method::ChannelClose(NO_EXCHANGE)));
    upstream.expect("channel.close-ok").await;

    // Frames that the client sent before it knew are discarded.
    client.publish(5, b"too late").await;
    client.send(5, channel::CloseOk {}).await;
    client.open_channel(5).await;
    client.publish(5, b"again").await;
    upstream.expect("channel.open").await;
    upstream.expect("basic.publish").await;
    upstream.expect("header").await;
    assert_eq!(upstream.expect("body").await.payload, b"again");
}

#[tokio::test(start_paused = true)]
async fn both_sides_closing_a_channel_at_once_leaves_it_clean() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut upstream = broker.next_connection().await;
    let number = upstream.expect("channel.open").await.channel;
    upstream.expect("basic.consume").await;
    broker.fall_silent();
    client.send(1, channel::Close::default()).await;
    upstream.expect("channel.close").await;
    upstream.send(number, channel::Close { reply_code: 404, ..Default::default() });
    upstream.expect("channel.close-ok").await;
    client.expect("channel.close-ok").await;
    upstream.send(number, channel::CloseOk {});
    upstream.send(0, connection::Blocked { reason: "fence" });
    client.open_channel(1).await;
    // The connection took the close-ok before it passed on blocked: the number is free again.
    client.expect("connection.blocked").await;
    client.publish(1, b"y").await;
    assert_eq!(upstream.expect("channel.open").await.channel, number);
}

#[tokio::test(start_paused = true)]
async fn p2_a_broker_connection_error_ends_only_the_client_that_repeats_it_alone() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut offender, mut innocent) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut bystander = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    for client in [&mut offender, &mut innocent, &mut bystander] {
        client.open_channel(1).await;
        client.send(1, confirm::Select::default()).await;
        client.expect("confirm.select-ok").await;
    }
    bystander.publish(1, b"x").await;
    for name in ["channel.open", "confirm.select"] {
        shared.expect(name).await;
    }
    let (number, _) = shared.expect_message().await;
    shared.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(bystander.expect_ack().await, (1, false));
    innocent.publish(1, b"good").await;
    for name in ["channel.open", "confirm.select"] {
        shared.expect(name).await;
    }
    shared.expect_message().await;
    offender.publish(1, b"bad").await;
    for name in ["channel.open", "confirm.select"] {
        shared.expect(name).await;
    }
    shared.expect_message().await;
    let text = "INTERNAL_ERROR - something is wrong";
    let close = connection::Close { reply_code: 541, reply_text: text, class_id: 0, method_id: 0 };
    shared.send(0, close);

    // Both clients with something in flight continue with it, each on a connection of its own.
    let mut owns = Vec::new();
    for _ in 0..2 {
        let mut own = broker.next_connection().await;
        own.expect("channel.open").await;
        own.expect("confirm.select").await;
        match own.expect_message().await {
            (_, body) if body == b"bad" => own.send(0, close),
            (number, _) => own.send(number, basic::Ack { delivery_tag: 1, multiple: false }),
        }
        owns.push(own);
    }
    offender.expect_close(541, text).await;
    assert_eq!(innocent.expect_ack().await, (1, false));

    // The bystander had nothing in flight: it notices nothing, and still shares.
    bystander.publish(1, b"y").await;
    let mut next = broker.next_connection().await;
    for name in ["channel.open", "confirm.select"] {
        next.expect(name).await;
    }
    next.expect_message().await;
    assert_eq!(pool.metrics().dedicated_connections, 1);
}

#[tokio::test(start_paused = true)]
async fn replies_and_server_named_queues_pass_on_the_clients_channel() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _upstream = broker.next_connection().await;
    client.open_channel(9).await;
    client.send(9, queue::Declare::default()).await;
    let declared = client.expect("queue.declare-ok").await;
    let Method::QueueDeclareOk(ok) = declared.method() else { unreachable!() };
    assert_eq!((declared.channel, ok.queue), (9, "amq.gen-1"));
}

#[tokio::test(start_paused = true)]
async fn cancel_reaches_only_clients_that_know_it() {
    for knows in [true, false] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let capabilities = amqp::Capabilities { consumer_cancel_notify: knows, ..Default::default() };
        let mut client = Client::connect_with(&pool, 131_072, capabilities).await;
        let _warm = broker.next_connection().await;
        client.open_channel(1).await;
        client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
        client.expect("basic.consume-ok").await;
        let mut upstream = broker.next_connection().await;
        let number = upstream.expect("channel.open").await.channel;
        upstream.send(number, basic::Cancel { consumer_tag: "c", no_wait: true });
        upstream.send(number, basic::GetEmpty::default());
        if knows {
            client.expect("basic.cancel").await;
        }
        client.expect("basic.get-empty").await;
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_placed_on_a_connection_that_the_broker_has_closed() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut early = Client::connect(&pool).await;
    let mut closed = broker.next_connection().await;
    early.open_channel(1).await;
    // It reads the close-ok, which it is already waiting for, and leaves the socket open.
    closed.set_reading(false);
    closed.send(0, connection::Close { reply_code: 320, ..Default::default() });
    closed.expect("connection.close-ok").await;
    early.publish(1, b"x").await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    next.expect_message().await;
    assert!(!closed.has_more().await);
}

#[tokio::test(start_paused = true)]
async fn large_messages_without_confirms_that_may_be_lost_are_counted_and_their_client_goes_on() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(1).await;
    broker.fall_silent();
    // Larger than the limit of messages kept for replay.
    client.write(&message(1, &[7; 2 * 1024 * 1024], 131_072)).await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.publish", "header"] {
        own.expect(name).await;
    }
    let mut size = 0;
    while size < 2 * 1024 * 1024 {
        size += own.expect("body").await.payload.len();
    }
    let text = "CONNECTION_FORCED - restart";
    own.send(0, connection::Close { reply_code: 320, reply_text: text, class_id: 0, method_id: 0 });
    until("the loss to be counted", || pool.metrics().channels_unconfirmed == 1).await;
    client.publish(1, b"good").await;
    shared.expect("channel.open").await;
    assert_eq!(shared.expect_message().await.1, b"good");
}

/// RabbitMQ answers a close-ok between the frames of a message with 505 on the connection.
#[tokio::test(start_paused = true)]
async fn p2_a_channel_that_is_closed_in_the_middle_of_a_large_message_is_closed_behind_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    let large = message(1, &[7; LARGE], 131_072);
    let (number, mut own, mut size) = stream_half(&mut client, &mut broker, &large).await;
    own.send(number, NO_EXCHANGE);
    assert!(!own.has_more().await);
    client.write(&large[large.len() / 2..]).await;
    while size < LARGE {
        size += own.expect("body").await.payload.len();
    }
    own.expect("channel.close-ok").await;
    let close = client.expect("channel.close").await;
    assert_eq!((close.channel, close.method()), (1, Method::ChannelClose(NO_EXCHANGE)));

    client.send(1, channel::CloseOk {}).await;
    client.open_channel(1).await;
    client.publish(1, b"again").await;
    own.expect("channel.open").await;
    assert_eq!(own.expect_message().await.1, b"again");
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_is_closed_in_the_middle_of_a_large_message_is_closed_if_its_connection_is_lost() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    let large = message(1, &[7; LARGE], 131_072);
    let (number, mut own, _) = stream_half(&mut client, &mut broker, &large).await;
    own.send(number, NO_EXCHANGE);
    assert!(!own.has_more().await);
    drop(own);
    client.expect_channel_close(404, NO_EXCHANGE.reply_text).await;
}

/// Sends the first half of a large message. Returns the upstream channel and connection that it is streamed on, and the bytes
/// of its body that have come there.
async fn stream_half(client: &mut Client, broker: &mut Broker, large: &[u8]) -> (u16, BrokerEnd, usize) {
    client.open_channel(1).await;
    client.write(&large[..large.len() / 2]).await;
    let mut own = broker.next_connection().await;
    let number = own.expect("channel.open").await.channel;
    own.expect("basic.publish").await;
    own.expect("header").await;
    let mut size = 0;
    while own.has_more().await {
        size += own.expect("body").await.payload.len();
    }
    (number, own, size)
}

/// The size of a message that is streamed.
const LARGE: usize = 2 * 1024 * 1024;
const NO_EXCHANGE: channel::Close<'static> = channel::Close {
    reply_code: 404,
    reply_text: "NOT_FOUND - no exchange 'e' in vhost '/'",
    class_id: 60,
    method_id: 40,
};
