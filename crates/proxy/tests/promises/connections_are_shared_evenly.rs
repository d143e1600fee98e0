//! P2: the number of upstream connections, and how clients are placed on them.

use std::time::Duration;

use amqp::method::basic;
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, Client, Manners, all_is_quiet, login, message, until};

#[tokio::test(start_paused = true)]
async fn p2_a_busy_connection_gets_a_companion_and_the_next_client_the_less_busy_one() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { max_shared_connections: 2, ..broker.config() });
    let mut flooder = Client::connect(&pool).await;
    let first = broker.next_connection().await;
    first.set_reading(false);
    flooder.open_channel(1).await;
    let flood = message(1, &[7; 100_000], 131_072).repeat(400);
    let flooding = tokio::spawn(async move { flooder.write(&flood).await });
    // Clients that arrive while the first connection is busy cause a second one to be opened.
    let mut second = None;
    let grown = async {
        while second.is_none() {
            let mut client = Client::connect(&pool).await;
            client.open_channel(1).await;
            client.publish(1, b"x").await;
            if pool.metrics().upstream_connections == 2 {
                second = Some(broker.next_connection().await);
            }
            all_is_quiet().await;
        }
    };
    Box::pin(crate::common::soon("a second connection", grown)).await;
    let mut second = second.unwrap();
    while second.next().await.name() != "body" {}
    for _ in 0..20 {
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.publish(1, b"y").await;
        while second.next().await.payload != b"y" {}
    }
    assert_eq!(pool.metrics().upstream_connections, 2, "there are no more than allowed");
    // Clients that do not publish get the same number of separate connections (P10).
    let mut client = Client::connect(&pool).await;
    client.use_channel(1).await;
    assert_eq!(pool.metrics().upstream_connections, 3);
    flooding.abort();
}

#[tokio::test(start_paused = true)]
async fn p3_many_channels_are_spread_over_connections() {
    let broker = Broker::start(Manners { channel_max: 1000, ..Manners::default() });
    let pool = Pool::new(PoolConfig { max_shared_connections: 2, ..broker.config() });
    let mut clients = Vec::new();
    let mut connect = async || {
        let mut client = Client::connect(&pool).await;
        client.use_channel(1).await;
        clients.push(client);
    };
    for _ in 0..=100 {
        connect().await;
    }
    until("a second connection", || pool.metrics().upstream_connections == 2).await;
    for _ in 0..200 {
        connect().await;
    }
    assert_eq!(pool.metrics().upstream_connections, 2, "there are no more than allowed");
}

#[tokio::test(start_paused = true)]
async fn p2_a_user_whose_next_connection_is_slow_to_open_holds_up_no_other_user() {
    let broker = Broker::start(Manners { channel_max: 1000, ..Manners::default() });
    let pool = Pool::new(broker.config());
    let mut clients = Vec::new();
    let mut connect = async |user: &str| {
        let mut client = Client::over(&pool, login(&pool, user, "right").await.unwrap()).await;
        client.use_channel(1).await;
        clients.push(client);
    };
    connect("slow").await;
    connect("quick").await;
    let (_greet, waits_for) = tokio::sync::oneshot::channel();
    *broker.manners.greeting_waits_for.lock() = Some(waits_for);
    for _ in 0..=100 {
        connect("slow").await;
    }
    until("its next connection to be opened", || broker.manners.greeting_waits_for.lock().is_none()).await;
    for _ in 0..=100 {
        connect("quick").await;
    }
    until("a connection of the other user", || pool.metrics().upstream_connections == 3).await;
}

#[tokio::test(start_paused = true)]
async fn p2_a_client_is_closed_with_506_when_all_shared_connections_are_full() {
    let broker = Broker::start(Manners::default());
    let config = PoolConfig { max_shared_connections: 2, max_channels_per_connection: 1, ..broker.config() };
    let pool = Pool::new(config);
    let mut client = Client::connect(&pool).await;
    for number in 1..=2 {
        client.use_channel(number).await;
    }
    // Publishers get the same number (P10).
    for number in 3..=4 {
        client.open_channel(number).await;
        client.publish(number, b"x").await;
    }
    until("all to be open", || pool.metrics().upstream_connections == 4).await;
    client.open_channel(5).await;
    client.send(5, basic::Qos::default()).await;
    let text = "RESOURCE_ERROR - all channels of the 2 upstream connections that clients share are in use";
    client.expect_close(506, text).await;
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_but_for_those_that_are_kept() {
    let mut broker = Broker::start(Manners::default());
    for kept in [1, 0] {
        let config = PoolConfig {
            min_shared_connections: kept,
            max_channels_per_connection: 1,
            idle_timeout: Duration::from_millis(30),
            ..broker.config()
        };
        let pool = Pool::new(config);
        let mut client = Client::connect(&pool).await;
        let mut ends = Vec::new();
        for number in 1..=3 {
            client.use_channel(number).await;
            ends.push(broker.next_connection().await);
        }
        assert_eq!(pool.metrics().upstream_connections, 3);
        drop(client);
        until("the idle ones to be closed", || pool.metrics().upstream_connections == kept).await;
        assert_eq!(pool.metrics().connections_lost, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_first_publish_simultaneously_open_one_connection() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(&pool).await;
        client.use_channel(1).await;
        clients.push(client);
    }
    for client in &mut clients {
        client.publish(1, b"x").await;
    }
    until("all to publish", || pool.metrics().messages_to_upstreams == 20).await;
    until("all to be placed", || pool.metrics().upstream_channels == 40).await;
    assert_eq!(pool.metrics().upstream_connections, 2);
}
