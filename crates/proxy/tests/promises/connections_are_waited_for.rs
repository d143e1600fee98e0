//! When the maximum number of upstream connections is open, a client that needs one waits for a while for one
//! to become free.

use std::sync::Arc;
use std::time::Duration;

use amqp::Credentials;
use amqp::method::{basic, channel, confirm, connection, queue};
use proxy::{ClientInfo, Pool, PoolConfig, Refusal};
use tokio::task::JoinSet;

use crate::common::{Broker, BrokerEnd, Client, Manners, login, message, soon, until};

const LONG: Duration = Duration::from_secs(600);

fn pool(broker: &Broker, max_connections: usize, arrival_max: Duration) -> Arc<Pool> {
    Pool::new(PoolConfig { max_connections, arrival_max, ..broker.config() })
}

async fn consume(client: &mut Client) {
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_returned_connection_goes_to_the_client_that_has_waited_longest() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 2, LONG);
    let mut neighbour = Client::connect(&pool).await;
    neighbour.open_channel(1).await;
    neighbour.publish(1, b"shared").await;
    let mut shared = broker.next_connection().await;
    shared.expect("channel.open").await;
    shared.expect_message().await;
    let mut holder = Client::connect(&pool).await;
    consume(&mut holder).await;
    holder.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("basic.consume").await;
    let mut waiting = Vec::new();
    for n in 1..=2 {
        let mut client = Client::connect(&pool).await;
        consume(&mut client).await;
        until("it to wait", || pool.metrics().connections_awaited == n).await;
        waiting.push(client);
    }
    for _ in 0..2 {
        holder.send(1, channel::Close::default()).await;
        holder.expect("channel.close-ok").await;
        holder.send(0, connection::Close::default()).await;
        holder.expect("connection.close-ok").await;
        own.expect("channel.close").await;
        // The very same connection serves the next client.
        own.expect("channel.open").await;
        own.expect("basic.consume").await;
        holder = waiting.remove(0);
        holder.expect("basic.consume-ok").await;
    }
    assert!(!broker.has_new_connection().await);
}

#[tokio::test(start_paused = true)]
async fn closing_a_connection_lets_a_waiting_client_open_one() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 2, LONG);
    let mut neighbour = Client::connect(&pool).await;
    neighbour.open_channel(1).await;
    neighbour.publish(1, b"shared").await;
    let _shared = broker.next_connection().await;
    let mut holder = Client::connect(&pool).await;
    holder.open_channel(1).await;
    holder.send(1, queue::Declare { exclusive: true, ..Default::default() }).await;
    holder.expect("queue.declare-ok").await;
    let mut own = broker.next_connection().await;
    let mut client = Client::connect(&pool).await;
    consume(&mut client).await;
    until("it to wait", || pool.metrics().connections_awaited == 1).await;
    drop(holder);
    for name in ["channel.open", "queue.declare", "connection.close"] {
        own.expect(name).await;
    }
    client.expect("basic.consume-ok").await;
    let _next = broker.next_connection().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_wait_times_out_gets_the_reason() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 1, Duration::from_millis(20));
    let mut neighbour = Client::connect(&pool).await;
    neighbour.open_channel(1).await;
    neighbour.publish(1, b"shared").await;
    let mut shared = broker.next_connection().await;
    shared.expect("channel.open").await;
    let text = "RESOURCE_ERROR - all 1 upstream connections are in use, and none became free in time";
    let mut client = Client::connect(&pool).await;
    consume(&mut client).await;
    client.expect_close(506, text).await;
    let refusal = login(&pool, "other", "right").await.unwrap_err();
    assert!(matches!(&refusal, Refusal::Fault(fault) if fault.reply_text() == text), "{refusal:?}");
    assert_eq!(pool.metrics().connections_awaited, 2);
    // Other clients are not affected.
    neighbour.publish(1, b"more").await;
    shared.expect_message().await;
    assert_eq!(shared.expect_message().await.1, b"more");
}

#[tokio::test(start_paused = true)]
async fn connections_that_nobody_uses_are_closed_for_other_credentials() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 2, LONG);
    let connect = async |user: &str| Client::over(&pool, login(&pool, user, "right").await.unwrap()).await;
    let first = connect("first").await;
    let mut idle_longest = broker.next_connection().await;
    let second = connect("second").await;
    let mut idle = broker.next_connection().await;
    // The third one needs the connection permit of the first, which has never been used.
    let mut third = connect("third").await;
    idle_longest.expect("connection.close").await;
    let _of_third = broker.next_connection().await;
    third.open_channel(1).await;
    third.publish(1, b"in use").await;
    until("it to be in use", || pool.metrics().upstream_channels == 1).await;
    let _fourth = connect("fourth").await;
    idle.expect("connection.close").await;
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn connections_of_clients_that_are_idle_are_closed_for_others_and_opened_again() {
    let mut broker = Broker::start(Manners::default());
    // Connections are closed before their idle timeout.
    let pool = pool(&broker, 2, Duration::from_secs(3));
    let (mut clients, mut connections) = (Vec::new(), Vec::new());
    for user in ["first", "second", "third"] {
        let mut client = Client::over(&pool, login(&pool, user, "right").await.unwrap()).await;
        if user == "third" {
            expect_end(connections.remove(0)).await;
        }
        client.use_channel(1).await;
        client.send(1, channel::Close::default()).await;
        client.expect("channel.close-ok").await;
        connections.push(broker.next_connection().await);
        // The client stays connected, without a channel.
        clients.push(client);
    }
    let first = &mut clients[0];
    first.use_channel(1).await;
    expect_end(connections.remove(0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_just_opened_is_left_to_its_client() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 1, LONG);
    let mut client = Client::over(&pool, login(&pool, "first", "right").await.unwrap()).await;
    let mut upstream = broker.next_connection().await;
    let mut arrivals = arrive(&pool, "second", std::iter::once("right".to_owned()));
    until("it to wait", || pool.metrics().connections_awaited == 1).await;
    assert!(!upstream.has_more().await, "it is not closed");
    client.open_channel(1).await;
    client.publish(1, b"x").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    // After its use, it is closed for the client that waits.
    drop(client);
    expect_end(upstream).await;
    assert!(soon("the other to be let in", arrivals.join_next()).await.unwrap().unwrap().is_some());
}

/// Expects that the pool closes a connection after its use.
async fn expect_end(mut connection: BrokerEnd) {
    while connection.next().await.name() != "connection.close" {}
}

#[tokio::test(start_paused = true)]
async fn the_last_warm_connection_is_better_than_none() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 1, LONG);
    let mut client = Client::connect(&pool).await;
    let mut only = broker.next_connection().await;
    consume(&mut client).await;
    client.expect("basic.consume-ok").await;
    only.expect("channel.open").await;
    only.expect("basic.consume").await;
    assert_eq!(pool.metrics().dedicated_connections, 1);
}

/// A client that uses the only connection allowed, and the broker's end of it.
async fn holder(broker: &mut Broker, pool: &Arc<Pool>) -> (Client, BrokerEnd) {
    let mut holder = Client::over(pool, login(pool, "holder", "right").await.unwrap()).await;
    holder.open_channel(1).await;
    holder.publish(1, b"in use").await;
    let mut end = broker.next_connection().await;
    end.expect("channel.open").await;
    end.expect_message().await;
    (holder, end)
}

/// Has one client log in with each of these passwords, and stay.
fn arrive(pool: &Arc<Pool>, user: &str, passwords: impl Iterator<Item = String>) -> JoinSet<Option<Client>> {
    let mut arrivals = JoinSet::new();
    for password in passwords {
        let (pool, credentials) = (pool.clone(), Credentials::plain(user, &*password));
        arrivals.spawn(async move {
            let info = ClientInfo { id: 1, peer: "127.0.0.1:1".to_owned() };
            let login = pool.authenticate(credentials, info).await.ok()?;
            Some(Client::over(&pool, login).await)
        });
    }
    arrivals
}

#[tokio::test(start_paused = true)]
async fn one_login_admits_all_clients_waiting_with_the_same_credentials() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 1, LONG);
    let (holder, _end) = holder(&mut broker, &pool).await;
    let mut arrivals = arrive(&pool, "user", (0..20).map(|_| "right".to_owned()));
    until("all to wait", || pool.metrics().connections_awaited == 20).await;
    drop(holder);
    // None of them leaves, because that would wake other waiters.
    let mut let_in = Vec::new();
    while let Some(arrived) = soon("the next one to be let in", arrivals.join_next()).await {
        let_in.push(arrived.unwrap().expect("it is let in"));
    }
    assert_eq!(broker.logins(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_client_gets_a_channel_that_becomes_idle_beside_busy_ones() {
    let mut broker = Broker::start(Manners::default());
    let config = PoolConfig { max_connections: 1, max_channels_per_connection: 2, ..broker.config() };
    let pool = Pool::new(PoolConfig { arrival_max: LONG, ..config });
    let mut neighbour = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    for number in 1..=2 {
        neighbour.open_channel(number).await;
        neighbour.publish(number, b"in use").await;
        shared.expect("channel.open").await;
        shared.expect_message().await;
    }
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    client.publish(1, b"late").await;
    until("it to wait", || pool.metrics().connections_awaited == 1).await;
    neighbour.send(2, channel::Close::default()).await;
    shared.expect("basic.qos").await;
    assert_eq!(shared.expect_message().await.1, b"late");
}

#[tokio::test(start_paused = true)]
async fn p1_only_a_few_unverified_logins_are_in_front_of_a_verified_one() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, 1, LONG);
    // Its connection is closed to free a permit for the holder's.
    let known = Client::over(&pool, login(&pool, "known", "right").await.unwrap()).await;
    let _closed = broker.next_connection().await;
    let (holder, _end) = holder(&mut broker, &pool).await;
    let before = (broker.logins(), pool.metrics().connections_awaited);
    let _guesses = arrive(&pool, "known", (0..100).map(|n| n.to_string()));
    until("some to wait", || pool.metrics().connections_awaited == before.1 + UNVERIFIED).await;
    let mut arrivals = arrive(&pool, "known", std::iter::once("right".to_owned()));
    until("it to wait", || pool.metrics().connections_awaited == before.1 + UNVERIFIED + 1).await;
    drop((known, holder));
    let arrived = soon("it to be let in", arrivals.join_next()).await.unwrap();
    assert!(arrived.unwrap().is_some());
    // Other clients may have arrived after it.
    assert!(broker.logins() < before.0 + 2 * UNVERIFIED as usize);
}

/// Concurrent handshakes with unproven passwords.
const UNVERIFIED: u64 = 32;

#[tokio::test(start_paused = true)]
async fn s2_a_client_without_staging_capacity_or_connection_waits_for_capacity() {
    let mut broker = Broker::start(Manners::default());
    let config = PoolConfig { max_connections: 1, staging_patience: LONG, ..broker.config() };
    let arrival_max = Duration::from_millis(1);
    let pool = Pool::new(PoolConfig { arrival_max, staging_total_max: SIZE, ..config });
    let whole = message(1, &[7; SIZE], FRAME);
    let (all_but_the_end, end) = whole.split_at(whole.len() - FRAME);
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.write(all_but_the_end).await;
        until("the first to hold room", || pool.metrics().bytes_staged > SIZE - 2 * FRAME).await;
        clients.push(client);
    }
    until("the other to wait", || pool.metrics().staging_waiting_clients == 1).await;
    let mut shared = broker.next_connection().await;
    for client in &mut clients {
        client.write(end).await;
        shared.expect("channel.open").await;
        shared.expect("basic.publish").await;
        shared.expect("header").await;
        let mut came = 0;
        while came < SIZE {
            came += shared.expect("body").await.payload.len();
        }
    }
}

/// Bytes of a message's body, in whole frames of [`FRAME`].
const SIZE: usize = 24 * (FRAME - 8);
const FRAME: usize = 4096;

/// Resting channels in confirm mode, or that are too old for another client, are closed to free numbers.
#[tokio::test(start_paused = true)]
async fn idle_channels_are_closed_for_clients_that_cannot_use_them() {
    for is_old in [false, true] {
        let mut broker = Broker::start(Manners::default());
        let config = PoolConfig { max_connections: 1, max_channels_per_connection: 2, ..broker.config() };
        let pool = Pool::new(PoolConfig { idle_timeout: LONG, ..config });
        let mut client = Client::connect(&pool).await;
        let mut upstream = broker.next_connection().await;
        for number in 1..=2 {
            client.open_channel(number).await;
            client.send(number, confirm::Select::default()).await;
            client.expect("confirm.select-ok").await;
            client.publish(number, b"confirmed").await;
            upstream.expect("channel.open").await;
            upstream.expect("confirm.select").await;
            let (number, _) = upstream.expect_message().await;
            upstream.send(number, basic::Ack { delivery_tag: 1, multiple: false });
            client.expect("basic.ack").await;
        }
        for number in 1..=2 {
            client.send(number, channel::Close::default()).await;
            client.expect("channel.close-ok").await;
        }
        if is_old {
            tokio::time::sleep(broker.config().auth_ttl).await;
        }
        for number in 3..=4 {
            client.open_channel(number).await;
            if is_old {
                client.send(number, confirm::Select::default()).await;
                client.expect("confirm.select-ok").await;
            }
            client.publish(number, b"next").await;
        }
        let mut bodies = 0;
        while bodies < 2 {
            bodies += usize::from(upstream.next().await.payload == b"next");
        }
        assert_eq!(broker.logins(), 1);
    }
}
