//! S5: a server that drains can wait for pending confirms, and no held frame is lost.

use amqp::method::{basic, confirm};
use proxy::Pool;

use crate::common::{Broker, Client, Manners, Stalled, all_is_quiet, message, soon, until};

#[tokio::test(start_paused = true)]
async fn a_session_is_settled_when_all_of_its_confirms_are_with_the_client() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    for number in [1, 2] {
        client.open_channel(number).await;
        client.send(number, confirm::Select::default()).await;
        client.expect("confirm.select-ok").await;
    }
    client.publish(1, b"shared").await;
    for name in ["channel.open", "confirm.select"] {
        shared.expect(name).await;
    }
    let (on_shared, _) = shared.expect_message().await;
    client.send(2, basic::Consume { queue: "q", ..Default::default() }).await;
    client.expect("basic.consume-ok").await;
    client.publish(2, b"own").await;
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "confirm.select", "basic.consume"] {
        own.expect(name).await;
    }
    let (on_own, _) = own.expect_message().await;

    client.drain();
    shared.send(on_shared, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(client.expect("basic.ack").await.channel, 1);
    client.drain();
    own.send(on_own, basic::Nack { delivery_tag: 1, multiple: false, requeue: false });
    assert_eq!(client.expect("basic.nack").await.channel, 2);
    client.expect_close(320, "CONNECTION_FORCED - shutdown").await;
}

#[tokio::test(start_paused = true)]
async fn messages_waiting_for_a_connection_are_sent_before_the_pool_closes() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    drop(broker.next_connection().await);
    until("the connection to be lost", || pool.metrics().upstream_connections == 0).await;
    broker.stall(Stalled::All);
    client.open_channel(1).await;
    client.write(&message(1, b"kept", 131_072)).await;
    drop(client);
    until("the client to leave", || pool.metrics().clients == 0).await;
    until("its connection, and that of what it left", || broker.logins() == 3).await;

    let draining = tokio::spawn({
        let pool = pool.clone();
        async move { pool.drain(std::time::Duration::from_secs(60), std::time::Duration::from_secs(60)).await }
    });
    // The drain checks the pool before the broker answers.
    all_is_quiet().await;
    broker.stall(Stalled::Nobodys);
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let mut upstream = broker.next_connection().await;
        let seen = async {
            while let Some(frame) = upstream.seen.recv().await {
                if frame.name() == "body" {
                    bodies.push(frame.payload);
                }
            }
        };
        soon("the connection to be closed", seen).await;
    }
    assert_eq!(bodies, [b"kept"]);
    soon("the drain", draining).await.unwrap();
}
