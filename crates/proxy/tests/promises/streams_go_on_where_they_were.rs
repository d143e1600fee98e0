//! P7: a consumer of a stream continues behind the last message that its client received, whatever connection it is on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::{basic, channel};
use amqp::{FieldTable, FieldValue, FrameKind, Method, Properties, RawTable};
use proxy::{Pool, PoolConfig};
use tokio::time::Instant;

use crate::common::{Broker, BrokerEnd, Client, Manners};

const OFFSET: &str = "x-stream-offset";

fn from(offset: FieldValue) -> Vec<u8> {
    FieldTable::from_iter([(OFFSET, offset)]).encode()
}

/// A message as streams deliver it.
fn deliver(upstream: &BrokerEnd, number: u16, consumer_tag: &str, delivery_tag: u64, offset: i64) {
    let headers =
        FieldTable::from_iter([("n", FieldValue::I32(7)), (OFFSET, FieldValue::I64(offset))]).encode();
    let mut properties = Vec::new();
    Properties::default().with_headers(RawTable::check(&headers).unwrap()).encode(&mut properties);
    let mut out = Vec::new();
    write_method(&mut out, number, basic::Deliver { consumer_tag, delivery_tag, ..Default::default() });
    write_content_header(&mut out, number, 1, &properties);
    write_frame(&mut out, FrameKind::Body, number, |out| out.push(b'x'));
    upstream.send_bytes(out);
}

async fn consume(client: &mut Client, queue: &str, consumer_tag: &str, arguments: &[u8]) {
    let arguments = RawTable::check(arguments).unwrap();
    client.send(1, basic::Consume { queue, consumer_tag, arguments, ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
}

/// A client with a limit of 10 that consumes, and the broker's end of its connection: its own, if it says where to begin.
async fn consumer(broker: &mut Broker, pool: &Arc<Pool>, arguments: &[u8]) -> (Client, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 10, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    consume(&mut client, "q", "c", arguments).await;
    if !arguments.is_empty() {
        upstream = broker.next_connection().await;
    }
    for name in ["channel.open", "basic.qos", "basic.consume"] {
        upstream.expect(name).await;
    }
    (client, upstream)
}

/// The arguments of the consumer that is made next, behind the limit.
async fn made_again(upstream: &mut BrokerEnd) -> FieldTable {
    upstream.expect("channel.open").await;
    upstream.expect("basic.qos").await;
    arguments(upstream).await
}

async fn arguments(upstream: &mut BrokerEnd) -> FieldTable {
    let frame = upstream.expect("basic.consume").await;
    let Method::BasicConsume(consume) = frame.method() else { unreachable!() };
    consume.arguments.decode()
}

#[tokio::test(start_paused = true)]
async fn p7_it_goes_on_behind_the_last_delivery_and_not_where_it_began() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = consumer(&mut broker, &pool, &from(FieldValue::text("first"))).await;
    for number in 0..3 {
        deliver(&upstream, 1, "c", number + 1, 40 + number as i64);
        client.expect_delivery().await;
    }
    drop(upstream);
    let mut next = broker.next_connection().await;
    assert_eq!(made_again(&mut next).await.get(OFFSET), Some(&FieldValue::I64(43)));
    // Lost again before anything came, and after one more.
    drop(next);
    let mut third = broker.next_connection().await;
    assert_eq!(made_again(&mut third).await.get(OFFSET), Some(&FieldValue::I64(43)));
    deliver(&third, 1, "c", 1, 43);
    assert_eq!(client.expect_delivery().await.0, 4);
    drop(third);
    let mut last = broker.next_connection().await;
    assert_eq!(made_again(&mut last).await.get(OFFSET), Some(&FieldValue::I64(44)));
}

#[tokio::test(start_paused = true)]
async fn p7_where_nothing_was_delivered_it_begins_as_its_client_asked_and_misses_nothing() {
    for (asked, again) in [
        (FieldValue::text("first"), FieldValue::text("first")),
        (FieldValue::text("last"), FieldValue::text("last")),
        (FieldValue::I32(9), FieldValue::I32(9)),
    ] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let (_client, upstream) = consumer(&mut broker, &pool, &from(asked)).await;
        drop(upstream);
        let mut next = broker.next_connection().await;
        assert_eq!(made_again(&mut next).await.get(OFFSET), Some(&again));
    }
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (_client, upstream) = consumer(&mut broker, &pool, &from(FieldValue::text("next"))).await;
    drop(upstream);
    let mut next = broker.next_connection().await;
    let arguments = made_again(&mut next).await;
    assert!(matches!(arguments.get(OFFSET), Some(FieldValue::Timestamp(_))), "{arguments:?}");
}

#[tokio::test(start_paused = true)]
async fn p7_a_queue_whose_messages_were_in_a_stream_once_is_consumed_as_before() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut upstream) = consumer(&mut broker, &pool, &[]).await;
    consume(&mut client, "stream", "d", &[]).await;
    upstream.expect("basic.consume").await;
    deliver(&upstream, 1, "c", 1, 5);
    deliver(&upstream, 1, "d", 2, 70);
    for _ in 0..2 {
        client.expect_delivery().await;
    }
    drop(upstream);
    let mut next = broker.next_connection().await;
    assert_eq!(made_again(&mut next).await.get(OFFSET), Some(&FieldValue::I64(6)));
    assert_eq!(arguments(&mut next).await.get(OFFSET), Some(&FieldValue::I64(71)));
    let reply_text = "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_classic_queue";
    next.send(1, channel::Close { reply_code: 406, reply_text, class_id: 60, method_id: 20 });
    // Only the consumer that is none of a stream is made otherwise.
    next.expect("channel.close-ok").await;
    assert_eq!(made_again(&mut next).await.get(OFFSET), None);
    assert_eq!(arguments(&mut next).await.get(OFFSET), Some(&FieldValue::I64(71)));
    deliver(&next, 1, "c", 1, 6);
    assert_eq!(client.expect_delivery().await.0, 3);
    // It is known from now on.
    drop(next);
    let mut third = broker.next_connection().await;
    assert_eq!(made_again(&mut third).await.get(OFFSET), None);
}

/// How long the pool waits before it makes a consumer again whose queue has not started.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
const QUEUE_STARTING: &str =
    "PRECONDITION_FAILED - stream queue 'q' in vhost '/' does not have a running replica on the local node";

#[tokio::test(start_paused = true)]
async fn p7_a_queue_that_has_not_started_yet_is_waited_for_but_not_forever() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = consumer(&mut broker, &pool, &from(FieldValue::text("first"))).await;
    deliver(&upstream, 1, "c", 1, 5);
    client.expect_delivery().await;
    drop(upstream);
    let mut next = broker.next_connection().await;
    let refuse = |next: &BrokerEnd| {
        next.send(
            1,
            channel::Close { reply_code: 406, reply_text: QUEUE_STARTING, class_id: 60, method_id: 20 },
        );
    };
    for _ in 0..3 {
        assert_eq!(made_again(&mut next).await.get(OFFSET), Some(&FieldValue::I64(6)));
        refuse(&next);
        next.expect("channel.close-ok").await;
    }
    made_again(&mut next).await;
    deliver(&next, 1, "c", 1, 6);
    assert_eq!(client.expect_delivery().await.0, 2);
    drop(next);
    // After ten seconds the client receives the refusal.
    let mut last = broker.next_connection().await;
    let refusing = async {
        loop {
            made_again(&mut last).await;
            refuse(&last);
            last.expect("channel.close-ok").await;
        }
    };
    tokio::select! { () = refusing => {}, () = client.expect_channel_close(406, QUEUE_STARTING) => {} }
}

#[tokio::test(start_paused = true)]
async fn p7_each_of_many_consumers_waits_a_pause_before_it_is_made_again() {
    const CONSUMERS: usize = 20;
    const SPREAD: Duration = Duration::from_millis(300);
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let _shared = broker.next_connection().await;
    let arguments = from(FieldValue::text("first"));
    let arguments = RawTable::check(&arguments).unwrap();
    for number in 1..=CONSUMERS as u16 {
        client.open_channel(number).await;
        let consumer_tag = &number.to_string();
        client
            .send(number, basic::Consume { queue: "q", consumer_tag, arguments, ..Default::default() })
            .await;
        client.expect("basic.consume-ok").await;
    }
    drop(broker.next_connection().await);
    let mut next = broker.next_connection().await;
    let mut refused_at = HashMap::new();
    let mut seen = 0;
    while seen < 5 * CONSUMERS {
        let frame = next.next().await;
        if frame.name() != "basic.consume" {
            continue;
        }
        seen += 1;
        let Method::BasicConsume(consume) = frame.method() else { unreachable!() };
        if let Some(refused_at) = refused_at.get(consume.consumer_tag) {
            let waited = Instant::now() - *refused_at;
            assert!(waited >= RETRY_PAUSE, "{} waited {waited:?}", consume.consumer_tag);
            assert!(waited <= 2 * RETRY_PAUSE + SPREAD, "{} waited {waited:?}", consume.consumer_tag);
        }
        // The refusals are spread over the pause, and more.
        tokio::time::sleep(SPREAD / CONSUMERS as u32).await;
        next.send(
            frame.channel,
            channel::Close { reply_code: 406, reply_text: QUEUE_STARTING, class_id: 60, method_id: 20 },
        );
        refused_at.insert(consume.consumer_tag.to_owned(), Instant::now());
    }
    assert_eq!(refused_at.len(), CONSUMERS);
}

#[tokio::test(start_paused = true)]
async fn p2_a_refusal_of_the_clients_own_offset_is_its_own() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = consumer(&mut broker, &pool, &from(FieldValue::text("first"))).await;
    let reply_text = "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_classic_queue";
    upstream.send(1, channel::Close { reply_code: 406, reply_text, class_id: 60, method_id: 20 });
    client.expect_channel_close(406, reply_text).await;
}

#[tokio::test(start_paused = true)]
async fn p2_a_client_that_comes_too_soon_itself_receives_the_refusal() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, upstream) = consumer(&mut broker, &pool, &from(FieldValue::text("first"))).await;
    upstream
        .send(1, channel::Close { reply_code: 406, reply_text: QUEUE_STARTING, class_id: 60, method_id: 20 });
    client.expect_channel_close(406, QUEUE_STARTING).await;
}

#[tokio::test(start_paused = true)]
async fn p3_a_slow_client_misses_nothing_when_its_consumer_moves() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { consumer_budget: 64 * 1024, ..broker.config() });
    let (mut client, mut shared) = consumer(&mut broker, &pool, &[]).await;
    // Not read, so that the next ones exceed what may wait for it.
    let mut sent = 0;
    while !shared.has_more().await {
        sent += 1;
        deliver(&shared, 1, "c", sent, 100 + sent as i64);
    }
    let mut own = broker.next_connection().await;
    shared.expect("channel.close").await;
    let arguments = made_again(&mut own).await;
    let mut received = 0;
    let Some(FieldValue::I64(from)) = arguments.get(OFFSET) else { panic!("{arguments:?}") };
    while 100 + received + 1 < *from {
        assert_eq!(client.expect_delivery().await.0 as i64, received + 1);
        received += 1;
    }
    assert!(received > 0 && received < sent as i64, "{received} of {sent}");
    deliver(&own, 1, "c", 1, *from);
    assert_eq!(client.expect_delivery().await.0 as i64, received + 1);
}
