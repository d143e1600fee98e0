//! When as many upstream connections are open as there may be, whoever needs one waits for a while for one to become free.

use std::sync::Arc;
use std::time::Duration;

use amqp::method::{basic, channel, connection, queue};
use proxy::{Pool, PoolConfig, Refusal};

use crate::common::{Broker, Client, Manners, login, until};

const LONG: Duration = Duration::from_secs(600);

fn pool(broker: &Broker, max_connections: usize, arrival_max: Duration) -> Arc<Pool> {
    Pool::new(PoolConfig { max_connections, arrival_max, ..broker.config() })
}

async fn consume(client: &mut Client) {
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
}

#[tokio::test]
async fn a_connection_that_is_given_back_goes_to_who_waits_first() {
    let mut broker = Broker::start(Manners::default()).await;
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
        // The very same connection serves the next one.
        own.expect("channel.open").await;
        own.expect("basic.consume").await;
        holder = waiting.remove(0);
        holder.expect("basic.consume-ok").await;
    }
    assert!(!broker.has_new_connection());
}

#[tokio::test]
async fn a_connection_that_is_closed_makes_room_for_who_waits() {
    let mut broker = Broker::start(Manners::default()).await;
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

#[tokio::test]
async fn who_waits_in_vain_is_told_why() {
    let mut broker = Broker::start(Manners::default()).await;
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
    // Nobody else has noticed.
    neighbour.publish(1, b"more").await;
    shared.expect_message().await;
    assert_eq!(shared.expect_message().await.1, b"more");
}

#[tokio::test]
async fn connections_that_nobody_uses_make_room_for_other_credentials() {
    let mut broker = Broker::start(Manners::default()).await;
    let pool = pool(&broker, 2, LONG);
    let connect = async |user: &str| Client::over(&pool, login(&pool, user, "right").await.unwrap()).await;
    let first = connect("first").await;
    let mut idle_longest = broker.next_connection().await;
    let second = connect("second").await;
    let mut idle = broker.next_connection().await;
    // The third one needs the place of the first, which nobody has used at all.
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

#[tokio::test]
async fn the_last_warm_connection_is_better_than_none() {
    let mut broker = Broker::start(Manners::default()).await;
    let pool = pool(&broker, 1, LONG);
    let mut client = Client::connect(&pool).await;
    let mut only = broker.next_connection().await;
    consume(&mut client).await;
    client.expect("basic.consume-ok").await;
    only.expect("channel.open").await;
    only.expect("basic.consume").await;
    assert_eq!(pool.metrics().own_connections, 1);
}
