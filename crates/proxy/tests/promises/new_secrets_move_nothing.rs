//! P1 and `connection.update-secret`: a new secret takes effect once the broker has accepted it, without loss or redelivery
//! of what the client has in flight.

use std::sync::Arc;
use std::time::Duration;

use amqp::Method;
use amqp::method::{basic, channel, connection, queue};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, login, until};

async fn update_secret(client: &mut Client, new_secret: &[u8]) {
    client.send(0, connection::UpdateSecret { new_secret, reason: "" }).await;
}

/// Renews the secret of a client, with one that the broker accepts.
async fn renew(broker: &Broker, client: &mut Client, secret: &str) {
    *broker.manners.password.lock() = secret.to_owned();
    update_secret(client, secret.as_bytes()).await;
    client.expect("connection.update-secret-ok").await;
}

/// Expects that the connection gets this secret next.
async fn expect_secret(upstream: &mut BrokerEnd, secret: &[u8]) {
    let passed_on = upstream.expect("connection.update-secret").await;
    let Method::ConnectionUpdateSecret(update) = passed_on.method() else { unreachable!() };
    assert_eq!(update.new_secret, secret);
}

/// Has a client consume on its channel 1, and returns its upstream channel.
async fn consume(client: &mut Client, shared: &mut BrokerEnd) -> u16 {
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let number = shared.expect("channel.open").await.channel;
    shared.expect("basic.qos").await;
    shared.expect("basic.consume").await;
    number
}

/// Asserts that a delivery arrives, and that its acknowledgement is sent on the same upstream channel.
async fn is_served(client: &mut Client, shared: &mut BrokerEnd, number: u16, delivery_tag: u64) {
    shared.deliver(number, "c", delivery_tag, b"x");
    assert_eq!(client.expect_delivery().await.0, delivery_tag);
    client.send(1, basic::Ack { delivery_tag, multiple: false }).await;
    let ack = shared.expect("basic.ack").await;
    assert_eq!(ack.method(), basic::Ack { delivery_tag, multiple: false }.into());
    assert_eq!(ack.channel, number);
}

#[tokio::test(start_paused = true)]
async fn p1_a_new_secret_of_a_connections_only_client_is_passed_on_and_nothing_moves() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut old = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"before").await;
    old.expect("channel.open").await;
    old.expect_message().await;

    update_secret(&mut client, b"right").await;
    client.expect("connection.update-secret-ok").await;
    assert_eq!(broker.logins(), 1, "that one is verified");

    renew(&broker, &mut client, "rotated").await;
    client.publish(1, b"after").await;
    expect_secret(&mut old, b"rotated").await;
    assert_eq!(old.expect_message().await.1, b"after");
    assert!(login(&pool, "user", "right").await.is_err(), "the connection no longer vouches for that one");
    assert!(login(&pool, "user", "rotated").await.is_ok());
}

/// Two clients that share a connection and consume there, with the connection and their upstream channels.
async fn two_consumers(broker: &mut Broker) -> (Arc<Pool>, BrokerEnd, [(Client, u16); 2]) {
    let pool = Pool::new(broker.config());
    let (mut one, mut other) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut shared = broker.next_connection().await;
    let on_one = consume(&mut one, &mut shared).await;
    let on_other = consume(&mut other, &mut shared).await;
    (pool, shared, [(one, on_one), (other, on_other)])
}

#[tokio::test(start_paused = true)]
async fn p1_consumers_go_on_where_they_are_and_the_connection_has_the_new_secret_once_all_have_it() {
    let mut broker = Broker::start(Manners::default());
    let (_pool, mut shared, [(mut one, on_one), (mut other, on_other)]) = two_consumers(&mut broker).await;
    for (client, number) in [(&mut one, on_one), (&mut other, on_other)] {
        shared.deliver(number, "c", 1, b"x");
        client.expect_delivery().await;
    }
    renew(&broker, &mut one, "rotated").await;
    assert!(!shared.has_more().await, "the other client has not sent it");
    is_served(&mut one, &mut shared, on_one, 2).await;
    is_served(&mut other, &mut shared, on_other, 2).await;
    renew(&broker, &mut other, "rotated").await;
    expect_secret(&mut shared, b"rotated").await;
    // Deliveries from before the new secret are acknowledged as well.
    for (client, number) in [(&mut one, on_one), (&mut other, on_other)] {
        client.send(1, basic::Ack { delivery_tag: 1, multiple: false }).await;
        assert_eq!(shared.expect("basic.ack").await.channel, number);
        is_served(client, &mut shared, number, 3).await;
        // Methods have the new secret's permissions.
        client.send(1, queue::Declare { queue: "q", passive: true, ..Default::default() }).await;
        client.expect("queue.declare-ok").await;
        assert_eq!(shared.expect("queue.declare").await.channel, number);
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_connection_has_the_new_secret_when_those_with_the_former_one_are_gone() {
    let mut broker = Broker::start(Manners::default());
    let (_pool, mut shared, [(mut one, on_one), (other, on_other)]) = two_consumers(&mut broker).await;
    renew(&broker, &mut one, "rotated").await;
    drop(other);
    assert_eq!(shared.expect("channel.close").await.channel, on_other);
    expect_secret(&mut shared, b"rotated").await;
    is_served(&mut one, &mut shared, on_one, 1).await;
}

#[tokio::test(start_paused = true)]
async fn p1_a_client_that_has_moved_away_does_not_hold_back_a_new_secret() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut moving, mut staying) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut shared = broker.next_connection().await;
    moving.use_channel(1).await;
    let left = shared.expect("channel.open").await.channel;
    shared.expect("basic.qos").await;
    let number = consume(&mut staying, &mut shared).await;
    renew(&broker, &mut moving, "second").await;
    assert_eq!(shared.expect("channel.close").await.channel, left);
    renew(&broker, &mut staying, "third").await;
    expect_secret(&mut shared, b"third").await;
    is_served(&mut staying, &mut shared, number, 1).await;
}

/// The other client must not get the new secret's permissions, and this one must.
#[tokio::test(start_paused = true)]
async fn p1_methods_that_need_a_new_secrets_rights_leave_the_old_connection() {
    let mut broker = Broker::start(Manners::default());
    let (pool, mut shared, [(mut one, on_one), (mut other, on_other)]) = two_consumers(&mut broker).await;
    renew(&broker, &mut one, "rotated").await;
    let mut new = broker.next_connection().await;
    // A channel that only acknowledges stays, a new one does not.
    is_served(&mut one, &mut shared, on_one, 1).await;
    one.use_channel(2).await;
    for name in ["channel.open", "basic.qos"] {
        new.expect(name).await;
    }
    one.send(1, queue::Declare { queue: "new", ..Default::default() }).await;
    let close = shared.expect("channel.close").await;
    assert_eq!(close.channel, on_one);
    for name in ["channel.open", "basic.qos", "basic.consume", "queue.declare"] {
        new.expect(name).await;
    }
    one.expect("queue.declare-ok").await;
    is_served(&mut other, &mut shared, on_other, 1).await;
    // New clients with the former secret are still placed there.
    let mut late = Client::over(&pool, login(&pool, "user", "right").await.unwrap()).await;
    late.use_channel(1).await;
    shared.expect("channel.open").await;
}

#[tokio::test(start_paused = true)]
async fn p1_a_channel_that_waits_for_a_number_gets_one_with_the_new_secret() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { max_channels_per_connection: 1, ..broker.config() });
    let (mut client, mut neighbour) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let mut leaving = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    // The neighbour has used the connection, which therefore keeps the old secret.
    neighbour.use_channel(1).await;
    neighbour.send(1, channel::Close::default()).await;
    neighbour.expect("channel.close-ok").await;
    for name in ["channel.open", "basic.qos"] {
        shared.expect(name).await;
    }
    leaving.open_channel(1).await;
    leaving.send(1, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    leaving.expect("basic.qos-ok").await;
    leaving.send(1, basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() }).await;
    leaving.expect("basic.consume-ok").await;
    for name in ["basic.qos", "basic.consume"] {
        shared.expect(name).await;
    }
    // The broker does not answer the close of the only channel there may be.
    broker.fall_silent();
    drop(leaving);
    shared.expect("channel.close").await;
    client.open_channel(1).await;
    client.send(1, basic::Qos::default()).await;
    assert!(!broker.has_new_connection().await && !shared.has_more().await, "it waits for the number");
    renew(&broker, &mut client, "rotated").await;
    let mut new = broker.next_connection().await;
    for name in ["channel.open", "basic.qos"] {
        new.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_new_secret_that_the_broker_refuses_ends_its_client_alone() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut neighbour) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let _upstream = broker.next_connection().await;
    update_secret(&mut client, b"wrong").await;
    client.expect_close(530, "NOT_ALLOWED - New secret was refused by one of the backends").await;
    neighbour.use_channel(1).await;
}

#[tokio::test(start_paused = true)]
async fn p1_a_new_secret_waits_for_a_broker_that_can_be_asked_and_its_client_stays() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { arrival_max: Duration::from_millis(10), ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    broker.go_away().await;
    drop(upstream);
    until("the connection to be lost", || pool.metrics().upstream_connections == 0).await;
    update_secret(&mut client, b"rotated").await;
    // Later logins have timed out, and the client's verification was pending even longer.
    for _ in 0..2 {
        assert!(login(&pool, "user", "unheard-of").await.is_err());
    }
    client.open_channel(1).await;

    *broker.manners.password.lock() = "rotated".to_owned();
    broker.come_back().await;
    client.expect("connection.update-secret-ok").await;
    client.publish(1, b"with the new one").await;
    let mut upstream = broker.next_connection().await;
    upstream.expect("channel.open").await;
    assert_eq!(upstream.expect_message().await.1, b"with the new one");
}

#[tokio::test(start_paused = true)]
async fn p1_a_new_secret_is_passed_on_to_a_clients_own_connection_which_nobody_gets_afterwards() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.consume"] {
        own.expect(name).await;
    }
    *broker.manners.password.lock() = "rotated".to_owned();
    update_secret(&mut client, b"rotated").await;
    client.expect("connection.update-secret-ok").await;
    let passed_on = own.expect("connection.update-secret").await;
    let Method::ConnectionUpdateSecret(update) = passed_on.method() else { unreachable!() };
    assert_eq!(update.new_secret, b"rotated");
    client.send(0, connection::Close::default()).await;
    for name in ["channel.close", "connection.close"] {
        own.expect(name).await;
    }
    client.expect("connection.close-ok").await;
}
