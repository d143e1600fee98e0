//! P3 and S2: a consumer that does not read stops its own upstream connection, and nothing else.

use amqp::FrameKind;
use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::{basic, channel};
use amqp::properties::NO_PROPERTIES;
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, Client, Manners, message};

const MESSAGES: usize = 400;
const SIZE: usize = 100_000;
/// Bytes that may be on their way to one client: its out-buffer, the stream behind it, one read, and some
/// slack. Kernel buffers do not count, because their data has not been read.
const ON_ITS_WAY: u64 = 8 * 1024 * 1024;

#[tokio::test(start_paused = true)]
async fn a_slow_consumers_deliveries_wait_at_the_broker_while_others_continue() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut slow = Client::connect(&pool).await;
    let _warm = broker.next_connection().await;
    slow.open_channel(1).await;
    slow.send(1, basic::Consume { queue: "q", no_ack: true, ..Default::default() }).await;
    slow.expect("basic.consume-ok").await;
    let mut own = broker.next_connection().await;
    let number = own.expect("channel.open").await.channel;
    for tag in 1..=MESSAGES as u64 {
        let mut out = Vec::new();
        write_method(&mut out, number, basic::Deliver { delivery_tag: tag, ..Default::default() });
        write_content_header(&mut out, number, SIZE as u64, NO_PROPERTIES);
        write_frame(&mut out, FrameKind::Body, number, |out| out.extend_from_slice(&[tag as u8; SIZE]));
        own.to.send(out).unwrap();
    }

    let mut quick = Client::connect(&pool).await;
    quick.open_channel(1).await;
    for _ in 0..500 {
        quick.send(1, basic::Qos::default()).await;
        quick.expect("basic.qos-ok").await;
        let read = pool.metrics().bytes_from_upstreams;
        assert!(read < ON_ITS_WAY, "{read} bytes were read for a client that takes none");
    }

    for tag in 1..=MESSAGES {
        slow.expect("basic.deliver").await;
        slow.expect("header").await;
        assert_eq!(slow.expect("body").await.payload, [tag as u8; SIZE]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_shared_connection_does_not_block_a_client_that_has_left_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { outbox_limit: 1, ..broker.config() });
    let mut consumer = Client::connect(&pool).await;
    let shared = broker.next_connection().await;
    consumer.open_channel(1).await;
    consumer.publish(1, b"once").await;
    consumer.send(1, channel::Close::default()).await;
    consumer.expect("channel.close-ok").await;
    consumer.open_channel(1).await;
    consumer.send(1, basic::Consume { queue: "q", ..Default::default() }).await;
    consumer.expect("basic.consume-ok").await;

    shared.set_reading(false);
    let mut publisher = Client::connect(&pool).await;
    publisher.open_channel(1).await;
    let flood = message(1, &[7; SIZE], 131_072).repeat(MESSAGES);
    let flooding = tokio::spawn(async move { publisher.write(&flood).await });
    for _ in 0..500 {
        consumer.send(1, basic::Qos::default()).await;
        consumer.expect("basic.qos-ok").await;
    }
    assert!(!flooding.is_finished(), "the flood fits into buffers");
    flooding.abort();
}
