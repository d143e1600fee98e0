//! P7: several upstreams share the connections; one that fails is left alone until it answers again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use amqp::method::basic;
use parking_lot::Mutex;
use proxy::{Pool, PoolConfig, Resolver, Resolving, UpstreamAddress};

use crate::common::{Broker, Client, Manners, PORT_WITHOUT_VHOST, SILENT_PORT, login, until};

async fn two() -> (Broker, Broker, PoolConfig) {
    let (one, other) = (Broker::on_port(Manners::default()).await, Broker::on_port(Manners::default()).await);
    let config = PoolConfig::new(vec![one.address.clone(), other.address.clone()]);
    (one, other, config)
}

/// One name for several brokers, which resolves to the sockets it is given.
#[derive(Debug)]
struct Name(Mutex<Vec<SocketAddr>>);

impl Name {
    fn of(brokers: &[&Broker]) -> Arc<Self> {
        Arc::new(Self(Mutex::new(sockets(brokers))))
    }

    fn config(self: &Arc<Self>) -> PoolConfig {
        let address = UpstreamAddress { host: "brokers.test".to_owned(), port: 5672, tls: false };
        PoolConfig { resolver: self.clone(), ..PoolConfig::new(vec![address]) }
    }
}

impl Resolver for Name {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolving<'r> {
        assert_eq!((host, port), ("brokers.test", 5672));
        Box::pin(async { Ok(self.0.lock().clone()) })
    }

    fn holds(&self) -> Duration {
        Duration::ZERO
    }
}

fn sockets(brokers: &[&Broker]) -> Vec<SocketAddr> {
    brokers.iter().map(|broker| ([127, 0, 0, 1], broker.address.port).into()).collect()
}

/// A client with a connection of its own.
async fn consumer(pool: &Arc<Pool>) -> Client {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    client
}

/// Expects a consumer to continue at a broker, and to receive a delivery there.
async fn comes_to(client: &mut Client, broker: &mut Broker) {
    let mut connection = broker.next_connection().await;
    connection.expect("channel.open").await;
    connection.expect("basic.consume").await;
    connection.deliver(1, "", 1, b"x");
    assert_eq!(client.expect_delivery().await, (1, b"x".to_vec()));
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

    // Clients of a broker that goes away are taken over by the other.
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

#[tokio::test(start_paused = true)]
async fn p7_a_silent_upstream_delays_only_the_client_that_discovers_it() {
    let broker = Broker::start(Manners::default());
    let address = UpstreamAddress { port: SILENT_PORT, ..broker.address.clone() };
    let upstreams = vec![address.clone(), broker.address.clone()];
    let config = PoolConfig { upstreams, ..broker.config() };
    let pool = Pool::new(config.clone());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!(pool.metrics().connect_failures, 1);

    let alone =
        Pool::new(PoolConfig { upstreams: vec![address.clone()], arrival_max: Duration::ZERO, ..config });
    let refusal = login(&alone, "user", "right").await.unwrap_err();
    let text = format!("upstream unreachable: {address}: handshake timed out");
    assert!(refusal.to_string().contains(&text), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn p7_an_upstream_where_the_virtual_host_is_down_is_tried_last() {
    let broker = Broker::start(Manners::default());
    let lacking = UpstreamAddress { port: PORT_WITHOUT_VHOST, ..broker.address.clone() };
    let pool = Pool::new(PoolConfig { upstreams: vec![lacking, broker.address.clone()], ..broker.config() });
    // All are let in at the other one, although the first one has fewer connections.
    let mut clients = Vec::new();
    for user in ["first", "second", "third"] {
        let mut client = Client::over(&pool, login(&pool, user, "right").await.unwrap()).await;
        client.open_channel(1).await;
        client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
        client.expect("basic.consume-ok").await;
        clients.push(client);
    }
    assert_eq!(broker.logins(), 6, "two connections of each");
    let elsewhere = pool.metrics().handshakes - 6;
    assert!(elsewhere <= 1, "{elsewhere} handshakes went where the virtual host is down");
    assert_eq!(pool.metrics().addresses_down, 0, "it answers");
}

#[tokio::test]
async fn p7_a_name_with_several_addresses_is_as_many_upstreams() {
    let (mut one, other, _) = two().await;
    let pool = Pool::new(Name::of(&[&one, &other]).config());
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!((one.logins(), other.logins()), (3, 3), "five of their own, and the shared one");

    // One of them is gone: new clients go to the other one, and only one of them had to find out.
    one.go_away().await;
    for _ in 0..6 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!((one.logins(), other.logins()), (3, 9));
    assert_eq!((pool.metrics().addresses, pool.metrics().addresses_down), (2, 1));
    assert_eq!(pool.metrics().connect_failures, 1);

    // It is back, and gets the new clients, because it has the fewest.
    one.come_back().await;
    until("its return", || pool.metrics().addresses_down == 0).await;
    for _ in 0..6 {
        clients.push(consumer(&pool).await);
    }
    assert_eq!((one.logins(), other.logins()), (9, 9));
}

#[tokio::test]
async fn p7_clients_follow_a_name_to_addresses_that_are_all_new() {
    let (mut one, mut other, _) = two().await;
    let name = Name::of(&[&one]);
    let pool = Pool::new(name.config());
    let mut client = consumer(&pool).await;
    one.go_away().await;
    *name.0.lock() = sockets(&[&other]);
    for _ in 0..2 {
        drop(one.next_connection().await);
    }
    comes_to(&mut client, &mut other).await;
}

#[tokio::test]
async fn p7_clients_in_an_outage_follow_a_name_that_changes_meanwhile() {
    let (mut one, mut other, _) = two().await;
    let name = Name::of(&[&one]);
    let pool = Pool::new(name.config());
    let mut client = consumer(&pool).await;
    one.go_away().await;
    for _ in 0..2 {
        drop(one.next_connection().await);
    }
    until("its absence", || pool.metrics().connect_failures > 0).await;
    *name.0.lock() = sockets(&[&other]);
    comes_to(&mut client, &mut other).await;
}
