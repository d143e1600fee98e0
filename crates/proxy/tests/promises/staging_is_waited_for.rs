//! S2 and P2: incomplete messages have room up to a total. Beyond it well-behaved clients wait for a while,
//! and clients that never complete their messages cannot take what others need.

use std::sync::Arc;
use std::time::Duration;

use amqp::frame::{write_content_header, write_method};
use amqp::method::{basic, confirm, queue};
use amqp::properties::NO_PROPERTIES;
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, Stalled, all_is_quiet, message, until};

/// Bytes of a message's body, in frames of [`FRAME`]; two incomplete messages do not fit into [`TOTAL`].
const SIZE: usize = 30 * (FRAME - 8);
const FRAME: usize = 4096;
const TOTAL: usize = SIZE;
/// Bytes of the end of a message that a client leaves out: one frame.
const MISSING: usize = FRAME;
const HOUR: Duration = Duration::from_secs(3600);
const FEW: Duration = Duration::from_millis(20);

/// One of this number of upstream connections may be used for streaming.
const CONNECTIONS: usize = 8;

fn pool(broker: &Broker, staging_patience: Duration) -> Arc<Pool> {
    Pool::new(PoolConfig {
        staging_total_max: TOTAL,
        staging_patience,
        max_connections: CONNECTIONS,
        ..broker.config()
    })
}

fn large(body: u8) -> Vec<u8> {
    message(1, &[body; SIZE], FRAME)
}

/// A client that has sent a message except for its end; returns both.
async fn stopped(pool: &Arc<Pool>, body: u8) -> (Client, Vec<u8>) {
    let mut client = Client::connect(pool).await;
    client.open_channel(1).await;
    let mut whole = large(body);
    let end = whole.split_off(whole.len() - MISSING);
    client.write(&whole).await;
    (client, end)
}

async fn expect_large(end: &mut BrokerEnd, body: u8) {
    end.expect("basic.publish").await;
    end.expect("header").await;
    let mut came = 0;
    while came < SIZE {
        let frame = end.expect("body").await;
        assert!(frame.payload.iter().all(|byte| *byte == body));
        came += frame.payload.len();
    }
}

/// The first client holds all room, the second the streaming connection, and `waiting` others wait, each with
/// a message that lacks only its end.
async fn full(pool: &Arc<Pool>, waiting: usize) -> Vec<(Client, Vec<u8>)> {
    let mut clients = vec![stopped(pool, 0).await];
    until("the first to hold room", || pool.metrics().bytes_staged > TOTAL - MISSING - FRAME).await;
    clients.push(stopped(pool, 1).await);
    until("a stream", || pool.metrics().streams == 1).await;
    for n in 0..waiting {
        clients.push(stopped(pool, 2 + n as u8).await);
        until("one more to wait", || pool.metrics().staging_waiting_clients == n + 1).await;
    }
    clients
}

#[tokio::test(start_paused = true)]
async fn s2_a_moment_of_many_large_messages_is_waited_out() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, HOUR);
    let mut clients = full(&pool, 3).await;
    let mut shared = broker.next_connection().await;
    let mut stream = broker.next_connection().await;
    // Each continues when the one before has completed its message, in turn.
    for place in [0, 2, 3, 4] {
        let (client, end) = &mut clients[place];
        client.write(end).await;
        shared.expect("channel.open").await;
        expect_large(&mut shared, place as u8).await;
        client.publish(1, b"small").await;
        shared.expect_message().await;
    }
    stream.expect("channel.open").await;
    let (client, end) = &mut clients[1];
    client.write(end).await;
    expect_large(&mut stream, 1).await;
    // Its channel returns to a shared connection, which may be the former streaming connection.
    stream.expect("channel.close").await;
    until("the stream to be given back", || pool.metrics().streams == 0).await;
    client.publish(1, b"small").await;
    stream.expect("channel.open").await;
    stream.expect_message().await;
    let metrics = pool.metrics();
    assert_eq!((metrics.streams, metrics.staging_waiting_clients, metrics.bytes_staged), (0, 0, 0));
    assert_eq!((metrics.dedicated_connections, metrics.clients_gave_way), (0, 0));
    assert!(!broker.has_new_connection().await);
}

#[tokio::test(start_paused = true)]
async fn s2_a_client_that_has_streamed_opens_no_connection_until_it_sends_again() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, HOUR);
    let mut clients = full(&pool, 0).await;
    let mut ends = [broker.next_connection().await, broker.next_connection().await];
    // The shared connection is one for publishing from now on.
    for (at, (client, end)) in clients.iter_mut().enumerate() {
        client.write(end).await;
        ends[at].expect("channel.open").await;
        expect_large(&mut ends[at], at as u8).await;
    }
    ends[1].expect("channel.close").await;
    until("the stream to be given back", || pool.metrics().streams == 0).await;
    all_is_quiet().await;
    assert_eq!((broker.logins(), pool.metrics().upstream_connections), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn p2_a_stream_serves_one_after_the_other_with_confirms() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, HOUR);
    let mut clients = full(&pool, 0).await;
    let mut shared = broker.next_connection().await;
    let mut stream = broker.next_connection().await;
    let (first, end) = &mut clients[1];
    first.write(end).await;
    stream.expect("channel.open").await;
    expect_large(&mut stream, 1).await;
    stream.expect("channel.close").await;
    until("the stream to be given back", || pool.metrics().streams == 0).await;
    let mut next = Client::connect(&pool).await;
    next.open_channel(1).await;
    next.send(1, confirm::Select::default()).await;
    next.expect("confirm.select-ok").await;
    let mut whole = large(9);
    let end = whole.split_off(whole.len() - MISSING);
    next.write(&whole).await;
    until("it to have the stream", || pool.metrics().streams == 1).await;
    next.write(&end).await;
    // The former streaming connection is now left to those who share, so the other one, which nobody uses, streams.
    shared.expect("channel.open").await;
    shared.expect("confirm.select").await;
    expect_large(&mut shared, 9).await;
    assert_eq!(pool.metrics().streams, 1, "it is not confirmed yet");
    shared.send(1, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(next.expect_ack().await, (1, false));
    shared.expect("channel.close").await;
    until("the stream to be given back", || pool.metrics().streams == 0).await;
    // It continues its numbering on the shared connection.
    next.publish(1, b"small").await;
    stream.expect("channel.open").await;
    stream.expect("confirm.select").await;
    let (number, _) = stream.expect_message().await;
    stream.send(number, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(next.expect_ack().await, (2, false));
    assert_eq!(broker.logins(), 2, "two connections were enough");
}

#[tokio::test(start_paused = true)]
async fn s2_a_waiting_client_is_not_read_and_its_bytes_do_not_count_once_gone() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, HOUR);
    let mut clients = full(&pool, 2).await;
    let _shared = broker.next_connection().await;
    let staged = pool.metrics().bytes_staged;
    let (last, _) = &mut clients[3];
    last.write(&large(3)).await;
    clients[0].0.send(1, basic::Qos::default()).await;
    // A method in the middle of a message ends its connection.
    clients[0]
        .0
        .expect_close(505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead")
        .await;
    until("the next one to go on", || pool.metrics().staging_waiting_clients == 1).await;
    assert!(pool.metrics().bytes_staged < staged);
    drop(clients);
    until("nothing to be left", || {
        let metrics = pool.metrics();
        (metrics.bytes_staged, metrics.streams, metrics.staging_waiting_clients) == (0, 0, 0)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p2_a_client_that_never_completes_a_message_gives_way_to_others_that_do() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, FEW);
    let mut clients = full(&pool, 0).await;
    let mut shared = broker.next_connection().await;
    let (mut honest, end) = stopped(&pool, 7).await;
    let first = &mut clients[0].0;
    let closed = first.expect("connection.close").await;
    let amqp::Method::ConnectionClose(close) = closed.method() else { unreachable!() };
    assert_eq!(close.reply_code, 506);
    assert!(close.reply_text.starts_with("RESOURCE_ERROR - message incomplete for "), "{close:?}");
    honest.write(&end).await;
    shared.expect("channel.open").await;
    expect_large(&mut shared, 7).await;
    assert!(pool.metrics().clients_gave_way >= 1);
}

#[tokio::test(start_paused = true)]
async fn p2_clients_with_incomplete_messages_leave_connections_for_others() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, HOUR);
    let mut hostile = full(&pool, 3 * CONNECTIONS).await;
    let mut shared = broker.next_connection().await;
    let _stream = broker.next_connection().await;
    let mut honest = Client::connect(&pool).await;
    honest.open_channel(1).await;
    honest.send(1, queue::Declare { exclusive: true, ..Default::default() }).await;
    honest.expect("queue.declare-ok").await;
    // Messages of usual sizes are served, however they are split.
    honest.open_channel(2).await;
    let pieces = message(2, &[5; 3 * (FRAME - 8)], FRAME);
    let (begin, end) = pieces.split_at(pieces.len() - FRAME);
    honest.write(begin).await;
    honest.open_channel(3).await;
    honest.write(end).await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "queue.declare", "channel.open", "basic.publish", "header"] {
        own.expect(name).await;
    }
    let mut neighbour = Client::connect(&pool).await;
    neighbour.open_channel(1).await;
    let pieces = message(1, &[6; 3 * (FRAME - 8)], FRAME);
    let (begin, end) = pieces.split_at(pieces.len() - FRAME);
    neighbour.write(begin).await;
    neighbour.open_channel(2).await;
    neighbour.write(end).await;
    for name in ["channel.open", "basic.publish", "header", "body", "body", "body"] {
        shared.expect(name).await;
    }
    // The hostile clients have had nothing but the one streaming connection.
    assert!(!broker.has_new_connection().await);
    assert_eq!(pool.metrics().staging_waiting_clients, 3 * CONNECTIONS);
    hostile.clear();
    until("nobody to wait", || pool.metrics().staging_waiting_clients == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_on_which_nothing_comes_is_taken_away() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig {
        staging_total_max: 0,
        staging_patience: FEW,
        max_connections: CONNECTIONS,
        ..broker.config()
    });
    // Every client may hold a small amount.
    let (_first, _) = stopped(&pool, 0).await;
    until("the first to hold room", || pool.metrics().bytes_staged > SIZE / 2).await;
    let (mut second, _) = stopped(&pool, 1).await;
    let _shared = broker.next_connection().await;
    let _own = broker.next_connection().await;
    let (_third, _) = stopped(&pool, 2).await;
    let (_fourth, _) = stopped(&pool, 3).await;
    let closed = second.expect("connection.close").await;
    let amqp::Method::ConnectionClose(close) = closed.method() else { unreachable!() };
    assert_eq!(close.reply_code, 506);
}

#[tokio::test(start_paused = true)]
async fn streamed_message_bytes_wait_for_the_streaming_connection() {
    let mut broker = Broker::start(Manners::default());
    let pool = pool(&broker, HOUR);
    let (_holder, _) = stopped(&pool, 0).await;
    until("the first to hold room", || pool.metrics().bytes_staged > TOTAL - MISSING - FRAME).await;
    let mut waiting = Client::connect(&pool).await;
    waiting.open_channel(1).await;
    let _shared = broker.next_connection().await;
    broker.stall(Stalled::All);
    waiting.write(&large(1)[..SIZE / 2]).await;
    until("a stream", || pool.metrics().streams == 1).await;
    broker.stall(Stalled::Nobodys);
    let mut stream = broker.next_connection().await;
    stream.expect("channel.open").await;
    waiting.write(&large(1)[SIZE / 2..]).await;
    expect_large(&mut stream, 1).await;
    stream.expect("channel.close").await;
    until("the stream to be given back", || pool.metrics().streams == 0).await;
    // The newest of those that nobody uses.
    waiting.send(1, basic::Qos::default()).await;
    waiting.expect("basic.qos-ok").await;
    stream.expect("channel.open").await;
}

/// A client that has begun a message on each of very many channels, with no more than the method.
async fn begun_everywhere(pool: &Arc<Pool>) -> Client {
    let mut client = Client::connect(pool).await;
    let long = "k".repeat(255);
    let mut begun = Vec::new();
    for number in 1..=CHANNELS {
        client.open_channel(number).await;
        let publish = basic::Publish { exchange: &long, routing_key: &long, ..Default::default() };
        write_method(&mut begun, number, publish);
    }
    client.write(&begun).await;
    client
}

/// With this number of begun messages a client holds more than the amount that is always allowed.
const CHANNELS: u16 = 40;

#[tokio::test(start_paused = true)]
async fn p2_a_client_that_ends_a_partly_streamed_message_wrongly_is_closed() {
    let mut broker = Broker::start(Manners::default());
    let config = PoolConfig { max_message_size: Some(1000), max_connections: CONNECTIONS, ..broker.config() };
    let pool = Pool::new(PoolConfig { staging_total_max: 0, staging_patience: HOUR, ..config });
    let _holder = begun_everywhere(&pool).await;
    until("the first to hold room", || pool.metrics().bytes_staged > 0).await;
    let mut client = begun_everywhere(&pool).await;
    let _shared = broker.next_connection().await;
    let mut stream = broker.next_connection().await;
    stream.expect("channel.open").await;
    stream.expect("basic.publish").await;
    let mut header = Vec::new();
    write_content_header(&mut header, CHANNELS, 1001, NO_PROPERTIES);
    client.write(&header).await;
    client
        .expect_close(406, "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000")
        .await;
}
