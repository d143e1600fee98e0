//! S7: the pool detects that no upstream answers, and that one answers again, even without clients.

use std::sync::atomic::Ordering;

use amqp::Capabilities;
use proxy::{Pool, Refusal};
use tokio::sync::oneshot;

use crate::common::{Broker, Client, Manners, all_is_quiet, login, soon, until};

#[tokio::test(start_paused = true)]
async fn s7_whether_an_upstream_answers_is_known_without_a_client() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    assert_eq!(pool.answers(), None, "no broker was probed yet");
    assert!(soon("an answer", pool.probe_endpoints()).await);
    assert_eq!(pool.answers(), Some(true));

    let _client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    broker.go_away().await;
    drop(upstream);
    until("the outage to be known", || pool.answers() == Some(false)).await;
    assert!(!soon("an answer", pool.probe_endpoints()).await);
    assert!(!pool.is_reachable());

    broker.come_back().await;
    until("its end to be known", || pool.answers() == Some(true)).await;
    assert!(pool.is_reachable());
}

#[tokio::test(start_paused = true)]
async fn s7_a_lost_connection_alone_is_no_outage() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let _client = Client::connect(&pool).await;
    drop(broker.next_connection().await);
    until("the lost connection", || pool.metrics().connections_lost == 1).await;
    assert!(soon("an answer", pool.probe_endpoints()).await);
    assert_eq!(pool.answers(), Some(true));
}

#[tokio::test(start_paused = true)]
async fn s7_a_reply_that_is_older_than_the_outage_does_not_hide_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (greet, waits_for) = oneshot::channel();
    *broker.manners.greeting_waits_for.lock() = Some(waits_for);
    let asking = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check().await }
    });
    all_is_quiet().await;
    let _client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    broker.go_away().await;
    drop(upstream);
    until("the lost connection", || pool.metrics().connections_lost == 1).await;
    greet.send(()).unwrap();
    assert!(!soon("an answer", asking).await.unwrap());
    assert_eq!(pool.answers(), Some(false));
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_only_probed_while_no_connection_to_it_is_open() {
    let mut broker = Broker::start(Manners::default());
    let manners = broker.manners.clone();
    let greetings = || manners.greetings.load(Ordering::SeqCst);
    let pool = Pool::new(broker.config());
    assert!(soon("an answer", pool.check()).await);
    assert_eq!(greetings(), 1);

    let _client = Client::connect(&pool).await;
    let upstream = broker.next_connection().await;
    assert!(soon("an answer", pool.check()).await);
    assert_eq!(greetings(), 2, "of the probe before, and of the client's connection");

    drop(upstream);
    until("the lost connection", || pool.metrics().connections_lost == 1).await;
    let before = greetings();
    assert!(soon("an answer", pool.check()).await);
    assert!(greetings() > before);
}

#[tokio::test(start_paused = true)]
async fn s7_a_connection_lost_during_login_is_not_a_refusal() {
    let capabilities = Capabilities { authentication_failure_close: true, ..Capabilities::default() };
    let broker = Broker::start(Manners { capabilities, ..Manners::default() });
    broker.manners.cuts_logins.store(true, Ordering::SeqCst);
    let pool = Pool::new(broker.config());
    let coming = tokio::spawn({
        let pool = pool.clone();
        async move { login(&pool, "user", "right").await.map(drop) }
    });
    until("a login that is cut", || broker.logins() > 0).await;
    broker.manners.cuts_logins.store(false, Ordering::SeqCst);
    soon("the login", coming).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broker_without_authentication_failure_close_refuses_a_login_by_closing() {
    let broker = Broker::start(Manners::default());
    broker.manners.cuts_logins.store(true, Ordering::SeqCst);
    let pool = Pool::new(broker.config());
    let refusal = login(&pool, "user", "right").await.map(drop).unwrap_err();
    assert!(matches!(refusal, Refusal::Login(_)), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn s7_names_that_resolve_to_no_address_are_an_outage() {
    let pool = Pool::new(proxy::PoolConfig::new(Vec::new()));
    assert!(!soon("an answer", pool.probe_endpoints()).await);
    assert_eq!(pool.answers(), Some(false));
}
