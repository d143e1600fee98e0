//! P1.

use std::time::Duration;

use amqp::{Capabilities, Credentials};
use proxy::{ClientInfo, ClientSide, Pool, Refusal};
use std::sync::Arc;
use transport::Outbox;

use crate::common::{Broker, Client, Manners, REFUSING_PORT, Stalled, login, until};

fn side() -> ClientSide {
    ClientSide {
        outbox: Arc::new(Outbox::new(1024)),
        negotiated: amqp::Negotiated { channel_max: 10, frame_max: 4096, heartbeat_secs: 0 },
        capabilities: Capabilities::ALL,
        client_properties: amqp::FieldTable::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_is_refused_in_the_brokers_words_while_the_right_one_is_warm() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let _warm = Client::connect(&pool).await;
    for wrong in ["wrong", "righ", "rightt", ""] {
        let refusal = login(&pool, "user", wrong).await.unwrap_err();
        assert_eq!(refusal, Refusal::Login("Login was refused. See the log.".to_owned()));
    }
    assert_eq!(broker.logins(), 5, "each wrong password was sent to the broker");
    assert!(login(&pool, "other", "right").await.is_ok());
    assert_eq!(broker.logins(), 6, "and so was another user");
}

#[tokio::test(start_paused = true)]
async fn equal_credentials_need_one_handshake() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    for _ in 0..5 {
        Client::connect(&pool).await;
    }
    assert_eq!(broker.logins(), 1);
    assert_eq!(pool.metrics().handshakes_avoided, 4);
}

#[tokio::test(start_paused = true)]
async fn after_auth_ttl_the_broker_is_asked_again() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(proxy::PoolConfig { auth_ttl: Duration::ZERO, ..broker.config() });
    Client::connect(&pool).await;
    *broker.manners.password.lock() = "rotated".to_owned();
    assert!(matches!(login(&pool, "user", "right").await, Err(Refusal::Login(_))));
    assert!(login(&pool, "user", "rotated").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_verifies_no_logins() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let connection = broker.next_connection().await;
    client.use_channel(1).await;
    drop(connection);
    until("the connection to be lost", || pool.metrics().upstream_connections == 0).await;
    Client::connect(&pool).await;
    assert_eq!(broker.logins(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_vhost_is_refused_in_the_brokers_words() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let _warm = Client::connect(&pool).await;
    let accepted = login(&pool, "user", "right").await.unwrap();
    let refusal = pool.open(accepted, "nowhere", side()).await.unwrap_err();
    let Refusal::Fault(fault) = refusal else { panic!("{refusal}") };
    assert_eq!(fault.reply_text(), "NOT_ALLOWED - vhost nowhere not found");
}

#[tokio::test(start_paused = true)]
async fn without_a_broker_the_refusal_says_so() {
    let broker = Broker::start(Manners::default());
    let mut config = broker.config();
    config.upstreams[0].port = REFUSING_PORT;
    config.arrival_max = std::time::Duration::ZERO;
    let pool = Pool::new(config.clone());
    let Err(Refusal::Fault(fault)) = login(&pool, "user", "right").await else { panic!("let in") };
    assert!(fault.reply_text().starts_with("CONNECTION_FORCED - upstream unreachable: "), "{fault}");
    assert!(!pool.is_reachable());

    config.upstreams.push(broker.address.clone());
    let pool = Pool::new(config);
    assert!(login(&pool, "user", "right").await.is_ok(), "the next address is tried");
    assert!(pool.is_reachable());
}

#[tokio::test(start_paused = true)]
async fn hanging_password_guesses_do_not_delay_previously_accepted_logins() {
    let broker = Broker::start(Manners::default());
    let config = proxy::PoolConfig {
        auth_ttl: Duration::ZERO,
        connect_timeout: Duration::from_secs(60),
        ..broker.config()
    };
    let pool = Pool::new(config);
    let _warm = Client::connect(&pool).await;
    let before = broker.logins();
    broker.stall(Stalled::WrongOnes);
    let guesses: Vec<_> = (0..100)
        .map(|n| {
            let pool = pool.clone();
            let info = ClientInfo { id: n, peer: "127.0.0.1:1".to_owned() };
            tokio::spawn(
                async move { pool.authenticate(Credentials::plain("user", n.to_string()), info).await },
            )
        })
        .collect();
    until("as many handshakes as may be", || broker.logins() == before + 32).await;
    assert!(login(&pool, "user", "right").await.is_ok());
    guesses.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_broker_with_invalid_limits_is_not_used() {
    for frame_max in [1, 7, 4095] {
        let broker = Broker::start(Manners { frame_max, ..Manners::default() });
        let pool = Pool::new(broker.config());
        let Err(Refusal::Fault(fault)) = login(&pool, "user", "right").await else { panic!("let in") };
        let text = format!("it offers frame_max {frame_max}, lower than the minimum 4096");
        assert!(fault.reply_text().ends_with(&text), "{fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_wrong_password_in_a_loop_is_sent_to_the_broker_once() {
    let broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    for _ in 0..50 {
        assert!(matches!(login(&pool, "user", "wrong").await, Err(Refusal::Login(_))));
    }
    assert_eq!((broker.logins(), pool.metrics().refusals_repeated), (1, 49));
    // The refusal holds for a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(login(&pool, "user", "wrong").await, Err(Refusal::Login(_))));
    assert_eq!((broker.logins(), pool.metrics().refusals_repeated), (2, 49));
}

#[tokio::test(start_paused = true)]
async fn p1_p6_a_login_is_verified_again_before_its_time_is_over_and_nobody_waits() {
    let mut broker = Broker::start(Manners::default());
    let ttl = Duration::from_secs(30);
    let pool = Pool::new(proxy::PoolConfig { auth_ttl: ttl, ..broker.config() });
    Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    // With a steady stream of clients the login never expires.
    for _ in 0..3 * ttl.as_secs() {
        let mut client = Client::connect(&pool).await;
        client.open_channel(1).await;
        client.publish(1, b"x").await;
        drop(client);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(broker.logins() > 2);
    until("those that only verified a login to be closed", || pool.metrics().upstream_connections == 1).await;
    upstream.expect("channel.open").await;

    *broker.manners.password.lock() = "rotated".to_owned();
    tokio::time::sleep(ttl).await;
    assert!(login(&pool, "user", "right").await.is_err(), "the old password");
}

#[tokio::test(start_paused = true)]
async fn p1_a_refusal_at_reverification_revokes_the_earlier_verification() {
    let broker = Broker::start(Manners::default());
    let ttl = Duration::from_secs(30);
    let pool = Pool::new(proxy::PoolConfig { auth_ttl: ttl, ..broker.config() });
    let _warm = Client::connect(&pool).await;
    let verified = tokio::time::Instant::now();
    *broker.manners.password.lock() = "rotated".to_owned();
    tokio::time::sleep(ttl * 2 / 3).await;
    // The login is verified again in the background of this one.
    let _let_in = Client::connect(&pool).await;
    while login(&pool, "user", "right").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(verified.elapsed() < ttl, "it was not verified again before its time was over");
    assert!(login(&pool, "user", "rotated").await.is_ok());
}
