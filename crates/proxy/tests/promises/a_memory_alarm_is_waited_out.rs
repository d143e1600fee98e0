//! P2 and P4: a blocked broker does not read; its clients wait.

use std::sync::Arc;
use std::time::Duration;

use amqp::method::connection;
use proxy::{Pool, PoolConfig};
use tokio::task::JoinHandle;

use crate::common::{Broker, BrokerEnd, Client, Manners, message, soon, until};

const MESSAGES: usize = 320;
/// Enough that all messages exceed the buffers of the kernel and the proxy between client and broker.
const SIZE: usize = 100_000;

/// A client that publishes more than fits, to a broker that does not read.
async fn flood(broker: &mut Broker) -> (Arc<Pool>, BrokerEnd, JoinHandle<Client>) {
    let pool = Pool::new(PoolConfig { write_timeout: Duration::from_millis(50), ..broker.config() });
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    client.publish(1, b"first").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    upstream.set_reading(false);
    let bytes = message(1, &[7; SIZE], 131_072).repeat(MESSAGES);
    let writing = tokio::spawn(async move {
        client.write(&bytes).await;
        client
    });
    (pool, upstream, writing)
}

#[tokio::test(start_paused = true)]
async fn a_blocked_connection_is_kept_however_long_the_broker_does_not_read() {
    let mut blocked = Broker::start(Manners::default());
    let (pool, mut upstream, writing) = flood(&mut blocked).await;
    upstream.send(0, connection::Blocked { reason: "low on memory" });

    // A connection whose broker stops reading without connection.blocked is given up. By then the blocked broker has
    // not read for at least as long.
    for _ in 0..3 {
        let mut stuck = Broker::start(Manners::default());
        let (pool, _upstream, cut_off) = flood(&mut stuck).await;
        until("the connection to be given up", || pool.metrics().connections_lost == 1).await;
        cut_off.abort();
    }

    assert!(!writing.is_finished(), "the flood fits into buffers");
    upstream.set_reading(true);
    for _ in 0..MESSAGES {
        assert_eq!(upstream.expect_message().await.1.len(), SIZE);
    }
    upstream.send(0, connection::Unblocked {});
    let mut client = soon("the client to write", writing).await.unwrap();
    client.expect("connection.blocked").await;
    client.expect("connection.unblocked").await;
    assert_eq!(pool.metrics().connections_lost, 0);
}
