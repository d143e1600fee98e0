//! A client that publishes again by itself what has no confirm learns of each loss at once, and the pool sends nothing again
//! for it: two that do so would lose the order.

use std::sync::Arc;
use std::time::Duration;

use amqp::Method;
use amqp::method::{basic, confirm, connection};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, all_is_quiet, message};

/// Bytes of a body that the pool does not keep for any client, and passes on as it comes.
const LARGE: usize = 2 << 20;

const LOST: &str = "CONNECTION_FORCED - upstream connection lost: closed by the broker";

/// A client in confirm mode on channel 1.
async fn publisher(pool: &Arc<Pool>, is_isolated: bool) -> Client {
    let mut client = Client::without_replay(pool, is_isolated).await;
    client.open_channel(1).await;
    client.send(1, confirm::Select::default()).await;
    client.expect("confirm.select-ok").await;
    client
}

/// Lets the broker have these messages; returns once it has seen them.
async fn take(upstream: &mut BrokerEnd, bodies: &[usize]) {
    for size in bodies {
        while upstream.next().await.name() != "basic.publish" {}
        upstream.expect("header").await;
        let mut missing = *size;
        while missing > 0 {
            missing -= upstream.expect("body").await.payload.len();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_ends_the_session_and_neither_refuses_nor_sends_again() {
    for sizes in [&[1024, 1024, 1024][..], &[LARGE, 1024, LARGE, 1024]] {
        let mut broker = Broker::start(Manners::default());
        let pool = Pool::new(broker.config());
        let mut client = publisher(&pool, false).await;
        let mut upstream = broker.next_connection().await;
        for size in sizes {
            client.publish(1, &vec![7; *size]).await;
        }
        let _shared = if sizes.contains(&LARGE) {
            // They come on a connection of the client's own.
            Some(std::mem::replace(&mut upstream, broker.next_connection().await))
        } else {
            None
        };
        take(&mut upstream, sizes).await;
        upstream.send(1, basic::Ack { delivery_tag: 1, multiple: false });
        assert_eq!(client.expect_ack().await, (1, false));
        drop(upstream);
        // Nothing is in front of it: no basic.nack for the large messages.
        client.expect_close(320, LOST).await;
        drop(client);
        assert!(!broker.has_new_connection().await);
        let metrics = pool.metrics();
        assert_eq!((metrics.messages_replayed, metrics.messages_departed_resent), (0, 0));
        assert_eq!((metrics.replay_buffer_bytes, metrics.bytes_departed), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_the_loss_has_nothing_sent_again() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = publisher(&pool, false).await;
    let mut upstream = broker.next_connection().await;
    client.publish(1, b"in flight").await;
    take(&mut upstream, &[9]).await;
    drop(client);
    all_is_quiet().await;
    drop(upstream);
    assert!(!broker.has_new_connection().await);
    let metrics = pool.metrics();
    assert_eq!((metrics.clients, metrics.messages_departed_resent, metrics.bytes_departed), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_messages_take_no_memory_and_a_broker_that_does_not_read_stops_the_client() {
    const SIZE: usize = 100_000;
    const MESSAGES: usize = 60;
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { write_timeout: Duration::from_secs(3600), ..broker.config() });
    let mut client = publisher(&pool, false).await;
    let mut upstream = broker.next_connection().await;
    for _ in 0..MESSAGES {
        client.publish(1, &[7; SIZE]).await;
    }
    take(&mut upstream, &[SIZE; MESSAGES]).await;
    assert!(pool.metrics().replay_buffer_bytes < 1024, "{}", pool.metrics().replay_buffer_bytes);

    upstream.set_reading(false);
    let bytes = message(1, &[7; SIZE], 131_072).repeat(MESSAGES);
    let writing = tokio::spawn(async move {
        client.write(&bytes).await;
        client
    });
    all_is_quiet().await;
    assert!(!writing.is_finished(), "it all went into buffers");
    upstream.set_reading(true);
    take(&mut upstream, &[SIZE; MESSAGES]).await;
    let mut client = writing.await.unwrap();
    upstream.send(1, basic::Ack { delivery_tag: 2 * MESSAGES as u64, multiple: true });
    assert_eq!(client.expect_ack().await, (2 * MESSAGES as u64, true));
    assert_eq!(pool.metrics().replay_buffer_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn in_isolation_it_shares_no_connection_and_a_fault_is_its_own() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut other = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    other.open_channel(1).await;
    other.publish(1, b"other").await;
    take(&mut shared, &[5]).await;

    let mut client = publisher(&pool, true).await;
    client.publish(1, b"alone").await;
    let mut own = broker.next_connection().await;
    take(&mut own, &[5]).await;
    let reply_text = "FRAME_ERROR - as the broker says";
    own.send(0, connection::Close { reply_code: 501, reply_text, class_id: 60, method_id: 40 });
    let close = client.expect("connection.close").await;
    let Method::ConnectionClose(close) = close.method() else { unreachable!() };
    assert_eq!((close.reply_code, close.reply_text), (501, reply_text));
    assert!(!broker.has_new_connection().await);
    assert_eq!(pool.metrics().messages_replayed, 0);
    other.publish(1, b"undisturbed").await;
    take(&mut shared, &[11]).await;
}
