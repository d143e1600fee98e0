//! P7: several upstreams share the connections; one that fails is left alone until it answers again.

use std::sync::Arc;
use std::time::Duration;

use amqp::method::basic;
use proxy::{Pool, PoolConfig, UpstreamAddress};
use tokio::net::TcpListener;

use crate::common::{Broker, Client, Manners, login, until};

async fn two() -> (Broker, Broker, PoolConfig) {
    let (one, other) = (Broker::start(Manners::default()).await, Broker::start(Manners::default()).await);
    let config = PoolConfig::new(vec![one.address.clone(), other.address.clone()]);
    (one, other, config)
}

/// A client with a connection of its own.
async fn consumer(pool: &Arc<Pool>) -> Client {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    client
}

#[tokio::test]
async fn p7_new_connections_go_where_the_fewest_are() {
    let (one, other, config) = two().await;
    let pool = Pool::new(config);
    let mut clients = Vec::new();
    for _ in 0..7 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!((one.logins(), other.logins()), (4, 4), "seven of their own, and the shared one");
    assert_eq!(pool.metrics().addresses, 2);
}

#[tokio::test]
async fn p7_an_upstream_that_is_gone_is_left_alone_until_it_is_back() {
    let (mut one, mut other, config) = two().await;
    let pool = Pool::new(config);
    one.go_away().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!(other.logins(), 4);
    assert_eq!(pool.metrics().addresses_down, 1);
    assert_eq!(pool.metrics().connect_failures, 1, "nobody else was sent there");
    one.come_back().await;
    until("its return", || pool.metrics().addresses_down == 0).await;
    clients.push(consumer(&pool).await);
    assert_eq!(one.logins(), 1);

    // And clients of one that goes are taken over by the other.
    one.go_away().await;
    drop(one.next_connection().await);
    let mut last = clients.pop().unwrap();
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(other.next_connection().await);
    }
    let mut moved = other.next_connection().await;
    moved.expect("channel.open").await;
    moved.expect("basic.consume").await;
    moved.deliver(1, "", 1, b"x");
    assert_eq!(last.expect_delivery().await, (1, b"x".to_vec()));
}

#[tokio::test]
async fn p7_an_upstream_that_says_nothing_holds_up_only_whoever_finds_out() {
    let broker = Broker::start(Manners::default()).await;
    // The kernel takes connections; nobody else does.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let address = UpstreamAddress { host: "127.0.0.1".to_owned(), port, tls: false };
    let config = PoolConfig {
        upstreams: vec![address.clone(), broker.address.clone()],
        connect_timeout: Duration::from_millis(300),
        ..broker.config()
    };
    let pool = Pool::new(config.clone());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!(pool.metrics().connect_failures, 1);

    let alone = Pool::new(PoolConfig { upstreams: vec![address], arrival_max: Duration::ZERO, ..config });
    let refusal = login(&alone, "user", "right").await.unwrap_err();
    let text = format!("upstream unreachable: 127.0.0.1:{port}: no answer in time");
    assert!(refusal.to_string().contains(&text), "{refusal}");
}
