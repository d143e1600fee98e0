//! P2: a broker that stops reading a shared connection because of one client's queue delays the others for a few seconds
//! only; a slow queue, an alarm and a frozen broker are no reason to give up a connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::method::{basic, channel, confirm, connection};
use amqp::{Fault, Method, ReplyCode};
use proxy::{Pool, PoolConfig, is_stall};
use tokio::time::{Instant, sleep};

use crate::common::{Broker, BrokerEnd, Client, Manners, Stalled, message, until};

/// As many messages as stop RabbitMQ from reading.
const FLOOD: usize = 300;
/// Within this time a stalled connection is given up.
const GIVEN_UP: Duration = Duration::from_secs(13);

/// A client with a channel in confirm mode.
async fn confirming(pool: &Arc<Pool>) -> Client {
    let mut client = Client::connect(pool).await;
    select(&mut client, 1).await;
    client
}

async fn select(client: &mut Client, number: u16) {
    client.open_channel(number).await;
    client.send(number, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
}

/// Publishes a message and confirms it with this delivery tag. Returns the upstream channel.
async fn publish_confirmed(client: &mut Client, broker: &mut BrokerEnd, body: &[u8], tag: u64) -> u16 {
    client.publish(1, body).await;
    let number = next_message(broker, body).await;
    broker.send(number, basic::Ack { delivery_tag: tag, multiple: false });
    assert_eq!(client.expect_ack().await, (tag, false));
    number
}

/// Skips frames up to a message; returns its channel.
async fn next_message(broker: &mut BrokerEnd, body: &[u8]) -> u16 {
    loop {
        let frame = broker.next().await;
        if frame.payload == body {
            return frame.channel;
        }
    }
}

/// Two clients of a user on one connection, which the broker has just stopped reading because of the second client's
/// messages. Both have had a message confirmed.
async fn stalled(broker: &mut Broker, pool: &Arc<Pool>) -> (Client, Client, BrokerEnd) {
    let (mut innocent, mut culprit) = (confirming(pool).await, confirming(pool).await);
    innocent.publish(1, b"a1").await;
    let mut shared = broker.next_connection().await;
    let number = next_message(&mut shared, b"a1").await;
    shared.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    innocent.expect_ack().await;
    publish_confirmed(&mut culprit, &mut shared, b"b1", 1).await;
    shared.set_reading(false);
    culprit.write(&message(1, b"stuck", 131_072).repeat(FLOOD)).await;
    (innocent, culprit, shared)
}

/// Expects all messages of the culprit on a connection, and no other.
async fn expect_flood(broker: &mut BrokerEnd) {
    for _ in 0..FLOOD {
        while broker.next().await.name() != "header" {}
        assert_eq!(broker.next().await.payload, b"stuck");
    }
}

/// Waits until everything sent on a connection has arrived, by a message of a new client; returns the bodies.
async fn has_come(pool: &Arc<Pool>, broker: &mut BrokerEnd) -> Vec<Vec<u8>> {
    let mut marker = Client::connect(pool).await;
    marker.open_channel(1).await;
    marker.publish(1, b"marker").await;
    let mut before = Vec::new();
    loop {
        let frame = broker.next().await;
        if frame.payload == b"marker" {
            return before;
        }
        before.push(frame.payload);
    }
}

#[tokio::test(start_paused = true)]
async fn p2_a_queue_that_stops_delays_other_publishers_for_seconds_and_later_ones_not_at_all() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, mut culprit, _shared) = stalled(&mut broker, &pool).await;
    let began = Instant::now();
    innocent.publish(1, b"a2").await;

    let mut second = broker.next_connection().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut late = confirming(&pool).await;
    publish_confirmed(&mut late, &mut second, b"c1", 1).await;
    // A new channel of an existing client is placed there as well.
    select(&mut innocent, 2).await;
    innocent.publish(2, b"a channel 2").await;
    next_message(&mut second, b"a channel 2").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    let number = next_message(&mut second, b"a2").await;
    second.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(innocent.expect_ack().await, (2, false));
    assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
    let mut own = broker.next_connection().await;
    expect_flood(&mut own).await;
    let metrics = pool.metrics();
    assert_eq!((metrics.connections_stalled, metrics.connections_lost), (1, 1));
    assert_eq!((metrics.upstream_connections, metrics.dedicated_connections), (2, 1));

    // On its own connection the culprit waits without a limit, and is answered in the end.
    own.set_reading(false);
    culprit.write(&message(1, b"stuck", 131_072)).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!((pool.metrics().connections_stalled, pool.metrics().connections_lost), (1, 1));
    own.set_reading(true);
    let number = next_message(&mut own, b"stuck").await;
    own.send(number, basic::Ack { delivery_tag: FLOOD as u64 + 1, multiple: true });
    assert_eq!(culprit.expect_ack().await, (FLOOD as u64 + 2, true));
}

#[tokio::test(start_paused = true)]
async fn p2_messages_of_a_departed_client_that_stall_a_connection_continue_on_one_of_their_own() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, mut culprit, _shared) = stalled(&mut broker, &pool).await;
    culprit.send(1, channel::Close::default()).await;
    culprit.expect("channel.close-ok").await;
    drop(culprit);
    innocent.publish(1, b"a2").await;
    let mut second = broker.next_connection().await;
    next_message(&mut second, b"a2").await;
    let mut own = broker.next_connection().await;
    expect_flood(&mut own).await;
    assert!(!has_come(&pool, &mut second).await.contains(&b"stuck".to_vec()));
}

/// Two culprits that have left, whose queues never confirm.
#[tokio::test(start_paused = true)]
async fn p2_departed_clients_that_stall_a_connection_do_not_wait_for_each_other() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, culprit, _shared) = stalled(&mut broker, &pool).await;
    let mut second_culprit = confirming(&pool).await;
    second_culprit.write(&message(1, b"stuck", 131_072).repeat(FLOOD)).await;
    for mut culprit in [culprit, second_culprit] {
        culprit.send(1, channel::Close::default()).await;
        culprit.expect("channel.close-ok").await;
    }
    innocent.publish(1, b"a2").await;
    let mut second = broker.next_connection().await;
    next_message(&mut second, b"a2").await;
    let mut owns = Vec::new();
    let began = Instant::now();
    for _ in 0..2 {
        let mut own = broker.next_connection().await;
        expect_flood(&mut own).await;
        owns.push(own);
    }
    // The second does not wait for the first connection's loss by a heartbeat timeout.
    assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
}

/// The broker is slow to open the culprit's own connection, and the culprit leaves meanwhile.
#[tokio::test(start_paused = true)]
async fn p2_a_client_that_has_stalled_a_connection_and_leaves_does_not_stall_another_one() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, culprit, _shared) = stalled(&mut broker, &pool).await;
    innocent.publish(1, b"a2").await;
    let mut second = broker.next_connection().await;
    broker.stall(Stalled::All);
    next_message(&mut second, b"a2").await;
    drop(culprit);
    until("the client to leave", || pool.metrics().clients == 1).await;
    broker.stall(Stalled::Nobodys);
    let mut own = broker.next_connection().await;
    if !own.has_more().await {
        // The connection that was being opened for the client is not needed any more.
        own = broker.next_connection().await;
    }
    expect_flood(&mut own).await;
    assert!(!has_come(&pool, &mut second).await.contains(&b"stuck".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn p2_a_slow_queue_costs_no_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut fast, mut slow) = (confirming(&pool).await, confirming(&pool).await);
    fast.publish(1, b"1").await;
    let mut shared = broker.next_connection().await;
    let number = next_message(&mut shared, b"1").await;
    shared.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    fast.expect_ack().await;
    slow.write(&message(1, b"slow", 131_072).repeat(FLOOD)).await;
    expect_flood_named(&mut shared, b"slow").await;
    // The broker answers probes, although it confirms nothing on the slow queue.
    for round in 0..2 {
        sleep(Duration::from_secs(20)).await;
        publish_confirmed(&mut fast, &mut shared, b"still", round + 2).await;
    }
    assert_eq!((pool.metrics().connections_stalled, pool.metrics().upstream_connections), (0, 1));
    assert!(!broker.has_new_connection().await);
}

/// A user has reached its channel limit, so no channel may be opened for a probe.
#[tokio::test(start_paused = true)]
async fn p2_a_stall_is_detected_although_the_users_channel_limit_is_reached() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut offender = confirming(&pool).await;
    offender.publish(1, b"one too many").await;
    let mut shared = broker.next_connection().await;
    next_message(&mut shared, b"one too many").await;
    let reply_text = "NOT_ALLOWED - number of channels opened for user 'user' has reached the maximum allowed user limit of (6)";
    shared.send(0, connection::Close { reply_code: 530, reply_text, ..Default::default() });
    shared.expect("connection.close-ok").await;
    drop(offender);
    let mut next = broker.next_connection().await;
    let number = next_message(&mut next, b"one too many").await;
    next.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    // The limit is forgotten after a while.
    sleep(Duration::from_secs(60)).await;
    drop(next);
    until("the connection to be lost", || pool.metrics().upstream_connections == 0).await;
    let (mut innocent, _culprit, _shared) = stalled(&mut broker, &pool).await;
    innocent.publish(1, b"a2").await;
    let began = Instant::now();
    let mut second = broker.next_connection().await;
    next_message(&mut second, b"a2").await;
    assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
}

/// A new channel might exceed the user's limit, for which RabbitMQ closes the connection.
#[tokio::test(start_paused = true)]
async fn p2_no_channel_is_opened_for_a_probe() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (_idle, mut slow) = (confirming(&pool).await, confirming(&pool).await);
    slow.publish(1, b"slow").await;
    let mut shared = broker.next_connection().await;
    next_message(&mut shared, b"slow").await;
    sleep(Duration::from_secs(20)).await;
    assert!(broker.manners.proofs.load(Ordering::SeqCst) > 0);
    assert!(!shared.has_more().await);
    // The same holds after the client has left.
    slow.send(1, channel::Close::default()).await;
    slow.expect("channel.close-ok").await;
    let before = broker.manners.proofs.load(Ordering::SeqCst);
    sleep(Duration::from_secs(20)).await;
    assert!(broker.manners.proofs.load(Ordering::SeqCst) > before);
    assert!(!shared.has_more().await);
    assert_eq!((pool.metrics().connections_stalled, pool.metrics().upstream_connections), (0, 1));
}

/// A session that has left its channel cannot send a probe.
#[tokio::test(start_paused = true)]
async fn p2_a_stall_is_detected_however_briefly_clients_use_the_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (_innocent, culprit, _shared) = stalled(&mut broker, &pool).await;
    drop(culprit);
    let began = Instant::now();
    while pool.metrics().connections_stalled == 0 {
        let mut brief = confirming(&pool).await;
        brief.publish(1, b"brief").await;
        sleep(Duration::from_millis(300)).await;
        drop(brief);
        assert!(began.elapsed() < GIVEN_UP, "not stalled");
    }
}

async fn expect_flood_named(broker: &mut BrokerEnd, body: &[u8]) {
    for _ in 0..FLOOD {
        next_message(broker, body).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p2_a_connection_of_a_broker_that_is_frozen_as_a_whole_is_not_given_up() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, mut culprit, mut shared) = stalled(&mut broker, &pool).await;
    broker.stall(Stalled::All);
    innocent.publish(1, b"a2").await;
    sleep(Duration::from_secs(10)).await;
    // New clients use the existing connection.
    let mut late = confirming(&pool).await;
    late.publish(1, b"c1").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!((pool.metrics().connections_stalled, pool.metrics().connections_lost), (1, 0));

    broker.stall(Stalled::Nobodys);
    shared.set_reading(true);
    expect_flood_named(&mut shared, b"stuck").await;
    let number = next_message(&mut shared, b"a2").await;
    shared.send(number, basic::Ack { delivery_tag: 2, multiple: false });
    assert_eq!(innocent.expect_ack().await, (2, false));
    next_message(&mut shared, b"c1").await;
    sleep(GIVEN_UP).await;
    culprit.write(&message(1, b"last", 131_072)).await;
    next_message(&mut shared, b"last").await;
    assert_eq!((pool.metrics().connections_lost, pool.metrics().messages_replayed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn p2_a_blocked_connection_is_not_given_up() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, _culprit, shared) = stalled(&mut broker, &pool).await;
    shared.send(0, connection::Blocked { reason: "low on memory" });
    innocent.expect("connection.blocked").await;
    innocent.publish(1, b"a2").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!((pool.metrics().connections_stalled, pool.metrics().connections_lost), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn p2_a_stalled_connection_is_given_up_though_no_other_may_be_opened_beside_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { max_connections: 1, ..broker.config() });
    let (mut innocent, _culprit, _shared) = stalled(&mut broker, &pool).await;
    innocent.publish(1, b"a2").await;
    let began = Instant::now();
    // The connections of the two clients are opened in any order.
    let mut next = broker.next_connection().await;
    while !matches!(&*next.next().await.payload, b"a2" | b"stuck") {}
    assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn p2_a_stalled_connection_is_given_up_though_the_broker_refuses_another_one() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, _culprit, _shared) = stalled(&mut broker, &pool).await;
    broker.manners.connection_limit_reached.store(true, Ordering::SeqCst);
    innocent.publish(1, b"a2").await;
    let began = Instant::now();
    until("the end of the connection", || pool.metrics().connections_lost == 1).await;
    assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn p2_frames_of_the_pool_are_no_progress_of_a_connection_whose_socket_is_full() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { max_shared_connections: 1, ..broker.config() });
    let (_innocent, mut culprit, _shared) = stalled(&mut broker, &pool).await;
    culprit.write(&message(1, &[0; 1024], 131_072).repeat(200)).await;
    let began = Instant::now();
    while pool.metrics().connections_stalled == 0 {
        // The pool requests proofs for a departed client's messages.
        let mut brief = Client::connect(&pool).await;
        brief.open_channel(1).await;
        brief.publish(1, b"left").await;
        drop(brief);
        sleep(Duration::from_millis(500)).await;
        assert!(began.elapsed() < GIVEN_UP, "not stalled");
    }
    until("the end of the connection", || pool.metrics().connections_lost == 1).await;
    assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn p2_of_many_clients_with_unanswered_messages_the_longest_waiting_gets_its_own_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (_innocent, mut culprit) = (confirming(&pool).await, confirming(&pool).await);
    culprit.publish(1, b"b1").await;
    let mut shared = broker.next_connection().await;
    let number = next_message(&mut shared, b"b1").await;
    shared.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    culprit.expect_ack().await;
    let mut others = Vec::new();
    for _ in 0..10 {
        let mut other = confirming(&pool).await;
        publish_confirmed(&mut other, &mut shared, b"o1", 1).await;
        others.push(other);
    }
    shared.set_reading(false);
    culprit.write(&message(1, b"stuck", 131_072).repeat(FLOOD)).await;
    sleep(Duration::from_millis(1500)).await;
    for other in &mut others {
        other.write(&message(1, b"other", 131_072).repeat(FLOOD)).await;
    }
    let mut second = broker.next_connection().await;
    let (mut culprits, mut innocents) = (0, 0);
    for _ in 0..8 {
        let mut own = broker.next_connection().await;
        while own.next().await.name() != "header" {}
        match &*own.next().await.payload {
            b"stuck" => culprits += 1,
            b"other" => innocents += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((culprits, innocents), (1, 7));
    next_message(&mut second, b"other").await;
    assert_eq!((pool.metrics().upstream_connections, pool.metrics().dedicated_connections), (9, 8));
}

#[tokio::test(start_paused = true)]
async fn p2_a_client_that_replays_by_itself_learns_that_its_connection_was_stalled() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut innocent, _culprit, _shared) = stalled(&mut broker, &pool).await;
    let mut itself = Client::without_replay(&pool, false).await;
    select(&mut itself, 1).await;
    itself.publish(1, b"d1").await;
    innocent.publish(1, b"a2").await;
    let close = itself.expect("connection.close").await;
    let Method::ConnectionClose(close) = close.method() else { unreachable!() };
    let fault = Fault::announced(close.reply_code, close.reply_text, (0, 0));
    assert!(fault.code == ReplyCode::ConnectionForced && is_stall(&fault), "{fault}");
    until("the others to continue", || pool.metrics().channels_recovered >= 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_replays_by_itself_learns_that_a_connection_of_its_own_was_stalled() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut isolated = Client::without_replay(&pool, true).await;
    let _of_the_login = broker.next_connection().await;
    select(&mut isolated, 1).await;
    isolated.publish(1, b"first").await;
    let mut own = broker.next_connection().await;
    next_message(&mut own, b"first").await;
    own.set_reading(false);
    // It may skip the messages that stall the broker.
    isolated.write(&message(1, b"stuck", 131_072).repeat(FLOOD)).await;
    isolated.expect("connection.close").await;
    assert_eq!((pool.metrics().connections_stalled, pool.metrics().dedicated_connections), (1, 0));
}
