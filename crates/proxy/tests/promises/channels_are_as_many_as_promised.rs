//! P8: as many channels as were negotiated, on shared connections and on a client's own.

use amqp::method::{basic, channel};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, Client, Manners};

const CHANNELS: u16 = 5;

async fn broker() -> Broker {
    Broker::start(Manners { channel_max: CHANNELS, ..Manners::default() })
}

#[tokio::test(start_paused = true)]
async fn a_clients_own_connection_carries_as_many_channels_as_the_broker_allows() {
    let broker = broker().await;
    let pool = Pool::new(PoolConfig { max_channels_per_connection: 2, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    for number in 1..=CHANNELS {
        client.open_channel(number).await;
        client.send(number, basic::Consume { queue: "q", ..Default::default() }).await;
        assert_eq!(client.expect("basic.consume-ok").await.channel, number);
    }
    client.open_channel(CHANNELS + 1).await;
    client.send(CHANNELS + 1, basic::Consume { queue: "q", ..Default::default() }).await;
    let text = "NOT_ALLOWED - number of channels opened (5) has reached the upstream's channel_max (5)";
    client.expect_close(530, text).await;
}

#[tokio::test(start_paused = true)]
async fn shared_channels_spread_over_connections() {
    let mut broker = broker().await;
    let pool = Pool::new(PoolConfig { max_channels_per_connection: 2, ..broker.config() });
    let mut client = Client::connect(&pool).await;
    for number in 1..=2 * CHANNELS {
        client.open_channel(number).await;
        client.send(number, basic::Qos::default()).await;
        assert_eq!(client.expect("basic.qos-ok").await.channel, number);
    }
    for _ in 0..CHANNELS {
        broker.next_connection().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_waits_for_one_that_is_being_cleaned() {
    let mut broker = broker().await;
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("basic.consume").await;
    broker.fall_silent();
    for number in 2..=CHANNELS {
        client.open_channel(number).await;
        client.publish(number, b"x").await;
        own.expect("channel.open").await;
        own.expect_message().await;
    }
    client.send(2, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    client.open_channel(2).await;
    client.publish(2, b"patient").await;
    let left = own.expect("basic.qos").await.channel;
    own.send(left, channel::OpenOk::default());
    own.send(left, basic::QosOk {});
    assert_eq!(own.expect_message().await, (left, b"patient".to_vec()));
}
