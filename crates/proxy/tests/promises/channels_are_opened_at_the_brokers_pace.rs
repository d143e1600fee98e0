//! Clients that publish and leave do not make the broker open channels faster than it can.

use std::sync::Arc;
use std::time::Duration;

use amqp::method::{basic, channel, connection};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, until};

const LONG: Duration = Duration::from_secs(600);
/// Channels that a broker may have pending to open before other clients wait.
const MAX_OPENING: u16 = 128;

/// A pool in front of a broker that has been silent since it was asked to open channels 1 to `opening`, and
/// the client that published a message on each.
async fn slow_broker(opening: u16, opening_patience: Duration) -> (Broker, Arc<Pool>, BrokerEnd, Client) {
    let mut broker = Broker::start(Manners { channel_max: 2000, ..Manners::default() });
    let pool = Pool::new(PoolConfig { max_shared_connections: 1, opening_patience, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    broker.fall_silent();
    // A client that is already on a connection does not wait for more channels.
    for number in 1..=opening {
        client.open_channel(number).await;
        client.publish(number, b"x").await;
        assert_eq!(upstream.expect("channel.open").await.channel, number);
        upstream.expect_message().await;
    }
    (broker, pool, upstream, client)
}

/// The same after that client has left, so that its channels have to be proven clean.
async fn slow_broker_and_no_client(opening: u16) -> (Broker, Arc<Pool>, BrokerEnd) {
    let (broker, pool, mut upstream, mut client) = slow_broker(opening, LONG).await;
    client.send(0, connection::Close::default()).await;
    client.expect("connection.close-ok").await;
    for _ in 0..opening {
        upstream.expect("basic.qos").await;
    }
    (broker, pool, upstream)
}

async fn publish(pool: &Arc<Pool>) -> Client {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    client.publish(1, b"late").await;
    client.send(1, channel::Close::default()).await;
    until("the message to be held", || pool.metrics().bytes_queued > 0).await;
    client
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_a_channel_that_rests_and_its_close_for_the_message() {
    let (_broker, pool, mut upstream) = slow_broker_and_no_client(MAX_OPENING + 2).await;
    let mut client = publish(&pool).await;
    upstream.send(7, channel::OpenOk::default());
    upstream.send(7, basic::QosOk {});
    assert_eq!(upstream.expect_message().await, (7, b"late".to_vec()));
    client.expect("channel.close-ok").await;
    upstream.expect("basic.qos").await;
    assert_eq!(pool.metrics().leases_reused, 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_prove_a_channel_clean_is_not_enough() {
    let (_broker, pool, mut upstream) = slow_broker_and_no_client(MAX_OPENING).await;
    let _client = publish(&pool).await;
    for number in 1..=MAX_OPENING {
        upstream.send(number, channel::OpenOk::default());
    }
    upstream.send(7, basic::QosOk {});
    assert_eq!(upstream.expect_message().await, (7, b"late".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_opens_a_channel_when_the_broker_has_fewer_to_open() {
    let (_broker, pool, mut upstream, _holder) = slow_broker(MAX_OPENING, LONG).await;
    let mut client = publish(&pool).await;
    upstream.send(7, channel::OpenOk::default());
    assert_eq!(upstream.expect("channel.open").await.channel, MAX_OPENING + 1);
    assert_eq!(upstream.expect_message().await, (MAX_OPENING + 1, b"late".to_vec()));
    client.expect("channel.close-ok").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_vanishes_while_it_waits_has_published() {
    let (_broker, pool, mut upstream) = slow_broker_and_no_client(MAX_OPENING + 2).await;
    drop(publish(&pool).await);
    until("it to be gone", || pool.metrics().clients == 0).await;
    upstream.send(7, channel::OpenOk::default());
    upstream.send(7, basic::QosOk {});
    assert_eq!(upstream.expect_message().await, (7, b"late".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn no_client_waits_for_longer_than_its_patience() {
    let (_broker, pool, mut upstream, _holder) = slow_broker(MAX_OPENING, Duration::from_millis(1)).await;
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    client.publish(1, b"late").await;
    assert_eq!(upstream.expect("channel.open").await.channel, MAX_OPENING + 1);
    assert_eq!(upstream.expect_message().await, (MAX_OPENING + 1, b"late".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn clients_do_not_wait_for_channels_opening_on_others_own_connections() {
    let mut broker = Broker::start(Manners::default());
    let config = PoolConfig { max_channels_per_connection: 1, opening_patience: LONG, ..broker.config() };
    let pool = Pool::new(config);
    let mut neighbour = Client::connect(&pool).await;
    neighbour.open_channel(1).await;
    neighbour.publish(1, b"shared").await;
    let mut full = broker.next_connection().await;
    full.expect("channel.open").await;
    let mut holder = Client::connect(&pool).await;
    holder.open_channel(1).await;
    broker.fall_silent();
    holder.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    client.publish(1, b"at once").await;
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    assert_eq!(next.expect_message().await.1, b"at once");
}
