//! P2: a limit on connections, or a virtual host that does not answer, concerns only the clients that need a new connection
//! there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::method::connection;
use amqp::{Capabilities, FieldTable, Negotiated};
use proxy::{ClientSide, Pool, PoolConfig, Refusal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use transport::Outbox;

use crate::common::{Broker, Client, HANGING_VIRTUAL_HOST, Manners, login, until};

fn side() -> ClientSide {
    ClientSide {
        outbox: Arc::new(Outbox::new(1024)),
        negotiated: Negotiated { channel_max: 10, frame_max: 4096, heartbeat_secs: 0 },
        capabilities: Capabilities::ALL,
        client_properties: FieldTable::new(),
    }
}

async fn use_channel(client: &mut Client) {
    client.use_channel(1).await;
}

#[tokio::test(start_paused = true)]
async fn p2_at_a_connection_limit_clients_share_the_connection_that_is_open() {
    let broker = Broker::start(Manners::default());
    // The broker sends no heartbeats, so the test takes less than the heartbeat timeout.
    let ttl = Duration::from_secs(4);
    let pool = Pool::new(PoolConfig { auth_ttl: ttl, ..broker.config() });
    let mut steady = Client::connect(&pool).await;
    use_channel(&mut steady).await;
    broker.manners.connection_limit_reached.store(true, Ordering::SeqCst);
    // Before the login is to be verified again, while it is, and after its time is over.
    for pause in [ttl / 10, ttl / 2, ttl / 2, ttl / 2, 3 * ttl, 3 * ttl] {
        tokio::time::sleep(pause).await;
        for _ in 0..2 {
            use_channel(&mut Client::connect(&pool).await).await;
        }
    }
    assert!(broker.logins() > 3, "it is verified again");
    assert!(matches!(login(&pool, "user", "wrong").await, Err(Refusal::Login(_))));
    let other = login(&pool, "other", "right").await.unwrap();
    let refusal = pool.open(other, "/", side()).await.unwrap_err();
    let text = "NOT_ALLOWED - access to vhost '/' refused for user 'user': connection limit (1) is reached";
    assert!(matches!(&refusal, Refusal::Fault(fault) if fault.reply_text() == text), "{refusal:?}");

    // A password that was changed is still noticed.
    *broker.manners.password.lock() = "rotated".to_owned();
    tokio::time::sleep(ttl).await;
    assert!(login(&pool, "user", "right").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn p2_at_a_connection_limit_a_new_secret_with_a_successful_login_is_accepted() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    use_channel(&mut client).await;
    let mut shared = broker.next_connection().await;
    broker.manners.connection_limit_reached.store(true, Ordering::SeqCst);
    *broker.manners.password.lock() = "rotated".to_owned();
    client.send(0, connection::UpdateSecret { new_secret: b"rotated", reason: "" }).await;
    client.expect("connection.update-secret-ok").await;
    for name in ["channel.open", "basic.qos", "connection.update-secret"] {
        shared.expect(name).await;
    }
    client.send(0, connection::UpdateSecret { new_secret: b"wrong", reason: "" }).await;
    client.expect_close(530, "NOT_ALLOWED - New secret was refused by one of the backends").await;
}

#[tokio::test(start_paused = true)]
async fn p2_a_virtual_host_that_does_not_answer_delays_no_other_virtual_host() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let _known = Client::connect(&pool).await;
    let mut hanging = JoinSet::new();
    for _ in 0..40 {
        let pool = pool.clone();
        hanging.spawn(async move {
            let login = login(&pool, "user", "right").await?;
            pool.open(login, HANGING_VIRTUAL_HOST, side()).await.map(drop)
        });
    }
    until("some to hang", || pool.metrics().opening_connections >= 16).await;
    let before = Instant::now();
    use_channel(&mut Client::over(&pool, login(&pool, "other", "right").await.unwrap()).await).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}
