//! P2: RabbitMQ closes the connection on which a user exceeds its channel limit. Only the client that opened the excess channel
//! is refused.

use std::sync::atomic::Ordering;

use amqp::method::{basic, channel, confirm, connection};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners};

fn text(most: usize) -> String {
    format!(
        "NOT_ALLOWED - number of channels opened for user 'user' has reached the maximum allowed user limit of ({most})"
    )
}

/// Makes the client open its channel 1, and the broker refuse it because it exceeds the user's limit.
async fn open_one_too_many(broker: &Broker, client: &mut Client, mut shared: BrokerEnd, most: usize) {
    broker.fall_silent();
    client.open_channel(1).await;
    client.send(1, basic::Qos::default()).await;
    shared.expect("channel.open").await;
    shared.expect("basic.qos").await;
    broker.manners.obedient.store(true, Ordering::SeqCst);
    let reply_text = &text(most);
    shared.send(0, connection::Close { reply_code: 530, reply_text, ..Default::default() });
    shared.expect("connection.close-ok").await;
}

/// Has a client consume on its channel 1, and returns its upstream channel.
async fn consume(client: &mut Client, shared: &mut BrokerEnd) -> u16 {
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    expect_consumer(shared).await
}

async fn expect_consumer(shared: &mut BrokerEnd) -> u16 {
    let number = shared.expect("channel.open").await.channel;
    shared.expect("basic.qos").await;
    shared.expect("basic.consume").await;
    number
}

async fn is_served(client: &mut Client, shared: &BrokerEnd, number: u16, delivery_tag: u64) {
    shared.deliver(number, "c", delivery_tag, b"x");
    assert_eq!(client.expect_delivery().await.0, delivery_tag);
}

#[tokio::test(start_paused = true)]
async fn p2_exceeding_the_channel_limit_ends_only_the_client_that_did() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut neighbour, mut offender) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut shared = broker.next_connection().await;
    consume(&mut neighbour, &mut shared).await;
    open_one_too_many(&broker, &mut offender, shared, 1).await;
    offender.expect_close(530, &text(1)).await;
    let mut next = broker.next_connection().await;
    let number = expect_consumer(&mut next).await;
    is_served(&mut neighbour, &next, number, 1).await;
    assert_eq!(pool.metrics().dedicated_connections, 0, "it is not a suspect");

    // The broker is not asked again at once.
    let mut late = Client::connect(&pool).await;
    late.open_channel(1).await;
    late.send(1, basic::Qos::default()).await;
    late.expect_close(530, &text(1)).await;
    is_served(&mut neighbour, &next, number, 2).await;
    assert!(!next.has_more().await);

    // A closed channel frees a number.
    neighbour.send(1, channel::Close::default()).await;
    neighbour.expect("channel.close-ok").await;
    let mut patient = Client::connect(&pool).await;
    patient.use_channel(1).await;
    for name in ["channel.close", "channel.open", "basic.qos"] {
        next.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p2_a_limit_that_was_raised_is_noticed() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut neighbour, mut offender) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut shared = broker.next_connection().await;
    consume(&mut neighbour, &mut shared).await;
    open_one_too_many(&broker, &mut offender, shared, 1).await;
    offender.expect_close(530, &text(1)).await;
    let mut next = broker.next_connection().await;
    expect_consumer(&mut next).await;
    tokio::time::sleep(std::time::Duration::from_secs(31)).await;
    let mut client = Client::connect(&pool).await;
    client.use_channel(1).await;
}

/// Publishes in confirm mode on channel 1, and closes it.
async fn publish_and_close(client: &mut Client, upstream: &mut BrokerEnd) {
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client.publish(1, b"x").await;
    let number = loop {
        let frame = upstream.next().await;
        match frame.name() {
            "body" => break frame.channel,
            "channel.open" | "basic.qos" | "confirm.select" | "basic.publish" | "header" => {}
            other => panic!("{other}"),
        }
    };
    upstream.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    client.expect("basic.ack").await;
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p2_resting_channels_do_not_use_up_the_channel_limit() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    // The channel rests in confirm mode, so clients outside confirm mode cannot use it.
    publish_and_close(&mut client, &mut shared).await;
    open_one_too_many(&broker, &mut client, shared, 1).await;
    client.expect("basic.qos-ok").await;
    let mut next = broker.next_connection().await;
    for name in ["channel.open", "basic.qos"] {
        next.expect(name).await;
    }
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    // From now on the pool closes one first.
    publish_and_close(&mut client, &mut next).await;
    client.use_channel(1).await;
    for name in ["channel.close", "channel.open", "basic.qos"] {
        next.expect(name).await;
    }
}

/// Messages on the client's other channels are not lost.
#[tokio::test(start_paused = true)]
async fn p2_p11_the_offenders_other_messages_are_sent_again() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(2).await;
    client.publish(2, b"unproven").await;
    shared.expect("channel.open").await;
    shared.expect_message().await;
    broker.fall_silent();
    client.open_channel(1).await;
    client.publish(1, b"refused").await;
    shared.expect("channel.open").await;
    shared.expect_message().await;
    broker.manners.obedient.store(true, Ordering::SeqCst);
    let reply_text = &text(1);
    shared.send(0, connection::Close { reply_code: 530, reply_text, ..Default::default() });
    client.expect_close(530, reply_text).await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    assert_eq!(next.expect_message().await.1, b"unproven");
    // The next reply proves that the broker has the message.
    next.expect("basic.qos").await;
    assert!(!next.has_more().await);
}

#[tokio::test(start_paused = true)]
async fn p2_a_channel_with_overdue_confirms_is_closed_for_a_client_at_the_limit() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut publisher, mut offender) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut shared = broker.next_connection().await;
    consume(&mut publisher, &mut shared).await;
    open_one_too_many(&broker, &mut offender, shared, 1).await;
    offender.expect_close(530, &text(1)).await;
    let mut next = broker.next_connection().await;
    expect_consumer(&mut next).await;
    publisher.send(1, channel::Close::default()).await;
    publisher.expect("channel.close-ok").await;
    next.expect("channel.close").await;
    publisher.open_channel(1).await;
    publisher.send(1, confirm::Select::default()).await;
    publisher.expect("confirm.select-ok").await;
    publisher.publish(1, b"never confirmed").await;
    for name in ["channel.open", "confirm.select", "basic.publish", "header", "body"] {
        next.expect(name).await;
    }
    publisher.send(1, channel::Close::default()).await;
    publisher.expect("channel.close-ok").await;
    let mut patient = Client::connect(&pool).await;
    patient.use_channel(1).await;
    next.expect("channel.close").await;
}
