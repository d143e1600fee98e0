//! connection.blocked reaches every client that publishes on the connection and has the capability, whenever
//! it joined.

use amqp::Capabilities;
use amqp::method::{basic, connection};
use proxy::Pool;

use crate::common::{Broker, Client, Manners};

#[tokio::test(start_paused = true)]
async fn p4_blocked_and_unblocked_reach_all_clients_with_the_capability() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut early = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    early.open_channel(1).await;
    early.publish(1, b"x").await;
    upstream.expect("channel.open").await;
    upstream.expect_message().await;
    upstream.send(0, connection::Blocked { reason: "low on memory" });
    early.expect("connection.blocked").await;

    let mut late = Client::connect(&pool).await;
    late.open_channel(1).await;
    late.publish(1, b"x").await;
    let blocked = late.expect("connection.blocked").await;
    let amqp::Method::ConnectionBlocked(blocked) = blocked.method() else { unreachable!() };
    assert_eq!(blocked.reason, "low on memory");

    let mut ignorant = Client::connect_with(&pool, 131_072, Capabilities::default()).await;
    ignorant.open_channel(1).await;
    ignorant.publish(1, b"x").await;

    // A client that does something else receives it with its first message.
    let mut other = Client::connect(&pool).await;
    other.use_channel(1).await;
    other.publish(1, b"x").await;
    other.expect("connection.blocked").await;
    for _ in 0..3 {
        while upstream.next().await.name() != "body" {}
    }

    upstream.send(0, connection::Unblocked {});
    early.expect("connection.unblocked").await;
    late.expect("connection.unblocked").await;
    other.expect("connection.unblocked").await;
    ignorant.send(1, basic::Qos::default()).await;
    ignorant.expect("basic.qos-ok").await;
}
