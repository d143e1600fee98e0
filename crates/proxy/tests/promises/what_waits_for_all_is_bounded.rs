//! S2 and P3: however many clients do not read, their total backlog is bounded, and a client that reads is served.

use amqp::method::basic;
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, Stalled, all_is_quiet, until};

const SLOW: usize = 8;
const BUDGET: usize = 1024 * 1024;
const TOTAL: usize = 2 * BUDGET;
/// Bytes that may come on top for each connection that belongs to one client: a read.
const READ: usize = 256 * 1024;
/// Bytes that may always wait for one client.
const ALWAYS: usize = 16 * 1024;
/// Bytes that a client's stream takes before anything waits for it.
const STREAM: usize = 1024 * 1024;
const SIZE: usize = 100_000;
/// Messages for each client: more than its stream and its whole budget would take.
const MESSAGES: u64 = 30;

async fn consume(client: &mut Client, no_ack: bool) {
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 100, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    client.send(1, basic::Consume { queue: "q", consumer_tag: "c", no_ack, ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
}

/// Expects a consumer's first methods on its upstream channel; returns the channel number.
async fn channel_of_consumer(end: &mut BrokerEnd) -> u16 {
    let number = end.expect("channel.open").await.channel;
    end.expect("basic.qos").await;
    end.expect("basic.consume").await;
    number
}

#[tokio::test(start_paused = true)]
async fn p3_slow_consumers_share_the_capacity_and_leave_some_for_fast_ones() {
    let mut broker = Broker::start(Manners::default());
    let config = PoolConfig { consumer_budget: BUDGET, waiting_total_max: Some(TOTAL), ..broker.config() };
    let pool = Pool::new(config);
    let mut quick = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    consume(&mut quick, false).await;
    let on_quick = channel_of_consumer(&mut shared).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut client = Client::connect(&pool).await;
        consume(&mut client, false).await;
        slow.push((client, channel_of_consumer(&mut shared).await));
    }
    let is_bounded = || {
        let waiting = pool.metrics().bytes_waiting;
        assert!(waiting <= TOTAL + SLOW * READ, "{waiting} bytes wait");
    };

    let mut tag_of_quick = 0;
    for tag in 1..=MESSAGES {
        for (_, number) in &slow {
            shared.deliver(*number, "c", tag, &vec![tag as u8; SIZE]);
            tag_of_quick += 1;
            shared.deliver(on_quick, "c", tag_of_quick, b"quick");
            assert_eq!(quick.expect_delivery().await, (tag_of_quick, b"quick".to_vec()));
            is_bounded();
        }
    }
    until("all to have been moved", || pool.metrics().total_limit_moved_channels == SLOW as u64).await;

    // Each of them waits for its turn on a connection of its own, and gets everything in order.
    let mut own = Vec::new();
    for _ in 0..SLOW {
        let mut end = broker.next_connection().await;
        let number = channel_of_consumer(&mut end).await;
        for tag in 1..=MESSAGES {
            end.deliver(number, "c", tag, &[b'a'; SIZE]);
        }
        own.push(end);
    }
    for _ in 0..100 {
        tag_of_quick += 1;
        shared.deliver(on_quick, "c", tag_of_quick, b"quick");
        assert_eq!(quick.expect_delivery().await, (tag_of_quick, b"quick".to_vec()));
        is_bounded();
    }
    for (client, _) in &mut slow {
        let (mut last, mut again) = (0, 0);
        while again < MESSAGES {
            let (tag, body) = client.expect_delivery().await;
            assert_eq!(tag, last + 1);
            assert_eq!(body.len(), SIZE);
            last = tag;
            again += u64::from(body[0] == b'a');
        }
        is_bounded();
    }
    until("nothing to wait any more", || pool.metrics().bytes_waiting == 0).await;
}

#[tokio::test(start_paused = true)]
async fn s2_a_client_that_does_not_read_is_not_read_until_it_does() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { waiting_total_max: Some(0), ..broker.config() });
    let mut slow = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    consume(&mut slow, true).await;
    let mut own = broker.next_connection().await;
    let number = channel_of_consumer(&mut own).await;
    for tag in 1..=MESSAGES {
        own.deliver(number, "c", tag, &[0; SIZE]);
    }
    let is_full = || {
        let metrics = pool.metrics();
        let passed_on = metrics.bytes_from_upstreams as usize - metrics.bytes_waiting;
        passed_on >= STREAM && metrics.bytes_waiting >= ALWAYS
    };
    until("its stream to be full and some to wait", is_full).await;
    // Room is checked after a read.
    slow.publish(1, b"read").await;
    assert_eq!(own.expect_message().await, (number, b"read".to_vec()));
    slow.publish(1, b"not read").await;
    assert!(!own.has_more().await, "it was read");
    for tag in 1..=MESSAGES {
        assert_eq!(slow.expect_delivery().await.0, tag);
    }
    assert_eq!(own.expect_message().await, (number, b"not read".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn s2_deliveries_waiting_for_a_departed_client_are_not_counted() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    consume(&mut client, false).await;
    let number = channel_of_consumer(&mut shared).await;
    for tag in 1..=MESSAGES {
        shared.deliver(number, "c", tag, &[0; SIZE]);
    }
    until("something to wait", || pool.metrics().bytes_waiting > SIZE).await;
    drop(client);
    until("nothing to wait any more", || pool.metrics().bytes_waiting == 0).await;
}

#[tokio::test(start_paused = true)]
async fn s2_a_client_waiting_for_a_connection_is_not_read_over_the_total_limit() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { queued_total_max: 1, ..broker.config() });
    let mut neighbour = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    neighbour.open_channel(1).await;
    let mut client = Client::connect(&pool).await;
    client.open_channel(1).await;
    broker.stall(Stalled::All);
    client.send(1, basic::Get { queue: "q", ..Default::default() }).await;
    until("it to wait", || pool.metrics().bytes_queued > 0).await;
    let held = pool.metrics().bytes_queued;
    client.publish(1, b"not read").await;
    all_is_quiet().await;
    assert_eq!(pool.metrics().bytes_queued, held);
    // It continues once it has its connection.
    broker.stall(Stalled::Nobodys);
    let mut own = broker.next_connection().await;
    own.expect("channel.open").await;
    own.expect("basic.get").await;
    assert_eq!(own.expect_message().await.1, b"not read");
    assert_eq!(pool.metrics().bytes_queued, 0);
}

#[tokio::test(start_paused = true)]
async fn s2_queued_bytes_of_a_departed_client_are_not_counted() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    client.open_channel(1).await;
    broker.stall(Stalled::All);
    client.send(1, basic::Get { queue: "q", ..Default::default() }).await;
    until("it to wait", || pool.metrics().bytes_queued > 0).await;
    drop(client);
    until("nothing to wait any more", || pool.metrics().bytes_queued == 0).await;
}
