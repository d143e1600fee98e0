//! P7: declarations that a broker restart undoes are repeated before anything else continues, or their client
//! receives 320.

use std::time::Duration;

use amqp::Method;
use amqp::method::{basic, channel, confirm, exchange, queue};
use proxy::{Pool, PoolConfig};

use crate::common::{Broker, BrokerEnd, Client, Manners, OwnedFrame, Stalled, login, until};

fn declaring() -> Manners {
    Manners { declares: true, ..Manners::default() }
}

fn transient_exchange() -> exchange::Declare<'static> {
    exchange::Declare { exchange: "e", kind: "fanout", ..Default::default() }
}

fn bind(queue: &str) -> queue::Bind<'_> {
    queue::Bind { queue, exchange: "e", routing_key: "k", ..Default::default() }
}

/// The methods on a connection used only for declarations, up to its close.
async fn declared(broker: &mut Broker) -> Vec<OwnedFrame> {
    let mut end = broker.next_connection().await;
    end.expect("channel.open").await;
    let mut seen = Vec::new();
    loop {
        let frame = end.next().await;
        if frame.name() == "connection.close" {
            return seen;
        }
        seen.push(frame);
    }
}

fn names(frames: &[OwnedFrame]) -> Vec<&'static str> {
    frames.iter().map(OwnedFrame::name).collect()
}

/// Sends a request from the client and expects the reply.
async fn ask<'m>(client: &mut Client, method: impl Into<Method<'m>>, answer: &str) {
    client.send(1, method).await;
    client.expect(answer).await;
}

/// A client that has declared a transient exchange, and a connection that it shares.
async fn with_exchange(broker: &mut Broker, pool: &std::sync::Arc<Pool>) -> (Client, BrokerEnd) {
    let mut client = Client::connect(pool).await;
    let shared = broker.next_connection().await;
    client.open_channel(1).await;
    ask(&mut client, transient_exchange(), "exchange.declare-ok").await;
    (client, shared)
}

/// A connection on which the exchange is being declared again, with the channel open.
async fn restoring(broker: &mut Broker) -> BrokerEnd {
    let mut restoring = broker.next_connection().await;
    restoring.expect("channel.open").await;
    restoring.expect("exchange.declare").await;
    restoring.send(1, channel::OpenOk::default());
    restoring
}

#[tokio::test(start_paused = true)]
async fn p7_transient_exchanges_queues_and_bindings_are_there_before_their_consumers() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, shared) = with_exchange(&mut broker, &pool).await;
    let auto_delete = queue::Declare { queue: "q", auto_delete: true, ..Default::default() };
    ask(&mut client, auto_delete, "queue.declare-ok").await;
    // Names the last declared queue, with the queue's name as the routing key.
    ask(&mut client, queue::Bind { exchange: "e", ..Default::default() }, "queue.bind-ok").await;
    let durable = queue::Declare { queue: "lasts", durable: true, ..Default::default() };
    ask(&mut client, durable, "queue.declare-ok").await;
    ask(&mut client, queue::Bind { exchange: "amq.topic", ..bind("lasts") }, "queue.bind-ok").await;
    let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
    ask(&mut client, consume, "basic.consume-ok").await;
    let own = broker.next_connection().await;
    drop(shared);
    until("one lost connection", || pool.metrics().connections_lost == 1).await;
    drop(own);

    let seen = declared(&mut broker).await;
    assert_eq!(names(&seen), ["exchange.declare", "queue.declare", "queue.bind"]);
    let Method::QueueDeclare(queue) = seen[1].method() else { unreachable!() };
    assert_eq!(queue, auto_delete);
    let Method::QueueBind(binding) = seen[2].method() else { unreachable!() };
    assert_eq!((binding.queue, binding.exchange, binding.routing_key), ("q", "e", "q"));
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    next.expect("basic.consume").await;
    next.deliver(1, "c", 1, b"at last");
    assert_eq!(client.expect_delivery().await, (1, b"at last".to_vec()));
    assert_eq!(pool.metrics().declarations_repeated, 3);
}

#[tokio::test(start_paused = true)]
async fn p7_clients_continue_only_after_the_declarations_of_others_are_restored() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (_declarer, shared) = with_exchange(&mut broker, &pool).await;
    let mut publisher = Client::connect(&pool).await;
    publisher.open_channel(1).await;
    ask(&mut publisher, confirm::Select::default(), "confirm.select-ok").await;
    publisher.publish(1, b"unconfirmed").await;
    let mut publishing = broker.next_connection().await;
    while publishing.next().await.name() != "body" {}
    drop((shared, publishing));

    assert_eq!(names(&declared(&mut broker).await), ["exchange.declare"]);
    let mut next = broker.next_connection().await;
    next.expect("channel.open").await;
    next.expect("confirm.select").await;
    assert_eq!(next.expect_message().await.1, b"unconfirmed");
}

#[tokio::test(start_paused = true)]
async fn p7_lost_declarations_are_restored_even_if_no_client_needs_them_now() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, shared) = with_exchange(&mut broker, &pool).await;
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    broker.go_away().await;
    drop(shared);
    until("the outage to be known", || pool.answers() == Some(false)).await;
    broker.come_back().await;
    assert_eq!(names(&declared(&mut broker).await), ["exchange.declare"]);
}

#[tokio::test(start_paused = true)]
async fn p7_deleted_objects_and_objects_of_departed_clients_are_not_restored() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, shared) = with_exchange(&mut broker, &pool).await;
    for queue in ["kept", "deleted"] {
        ask(&mut client, queue::Declare { queue, ..Default::default() }, "queue.declare-ok").await;
        ask(&mut client, bind(queue), "queue.bind-ok").await;
    }
    let mut other = Client::connect(&pool).await;
    other.open_channel(1).await;
    ask(&mut other, queue::Delete { queue: "deleted", ..Default::default() }, "queue.delete-ok").await;
    let unbind = queue::Unbind { queue: "kept", exchange: "e", routing_key: "k", ..Default::default() };
    ask(&mut other, unbind, "queue.unbind-ok").await;
    ask(&mut other, queue::Declare { queue: "others", ..Default::default() }, "queue.declare-ok").await;
    let remembered = pool.metrics().bytes_remembered;
    drop(other);
    until("the other client to be gone", || pool.metrics().bytes_remembered < remembered).await;
    drop(shared);
    let seen = declared(&mut broker).await;
    assert_eq!(names(&seen), ["exchange.declare", "queue.declare"]);
    let Method::QueueDeclare(queue) = seen[1].method() else { unreachable!() };
    assert_eq!(queue.queue, "kept");
    drop(client);
    until("nothing to be remembered", || pool.metrics().bytes_remembered == 0).await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_client_whose_declaration_is_refused_gets_320_and_others_continue() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, mut shared) = with_exchange(&mut broker, &pool).await;
    let mut other = Client::connect(&pool).await;
    other.open_channel(1).await;
    ask(&mut other, queue::Declare { queue: "q", ..Default::default() }, "queue.declare-ok").await;
    while shared.next().await.name() != "queue.declare" {}
    broker.fall_silent();
    drop(shared);

    let mut restoring = restoring(&mut broker).await;
    let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/'";
    restoring.send(1, channel::Close { reply_code: 406, reply_text: text, class_id: 40, method_id: 10 });
    restoring.expect("channel.close-ok").await;
    client
        .expect_close(320, &format!("CONNECTION_FORCED - exchange 'e' could not be declared again: {text}"))
        .await;
    restoring.expect("channel.open").await;
    restoring.expect("queue.declare").await;
    restoring.send(1, channel::OpenOk::default());
    restoring.send(1, queue::DeclareOk { queue: "q", ..Default::default() });
    restoring.expect("connection.close").await;
    assert_eq!(pool.metrics().clients_not_restored, 1);
}

#[tokio::test(start_paused = true)]
async fn p7_too_much_to_be_remembered_is_bounded_and_ends_with_320() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, mut shared) = with_exchange(&mut broker, &pool).await;
    let seen = tokio::spawn(async move {
        while shared.seen.recv().await.is_some_and(|frame| frame.name() != "exchange.delete") {}
        shared
    });
    let key = "k".repeat(255);
    for number in 0..5000 {
        let queue = format!("{number}");
        client
            .send(1, queue::Bind { queue: &queue, exchange: "e", routing_key: &key, ..Default::default() })
            .await;
        client.expect("queue.bind-ok").await;
        assert!(pool.metrics().bytes_remembered <= 1024 * 1024 + 1024);
    }
    ask(&mut client, exchange::Delete { exchange: "other", ..Default::default() }, "exchange.delete-ok")
        .await;
    assert_eq!(pool.metrics().bytes_remembered, 0);
    drop(seen.await.unwrap());
    let text =
        "transient topology of this client was lost and cannot be restored: too much transient topology";
    client.expect_close(320, &format!("CONNECTION_FORCED - {text}")).await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_silent_upstream_costs_nobody_anything_while_connections_to_it_are_open() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, mut shared) = with_exchange(&mut broker, &pool).await;
    // It accepts no further connections, like a broker at its connection limit.
    broker.go_away().await;
    assert!(login(&pool, "other", "right").await.is_err());
    assert_eq!(pool.answers(), Some(true));
    ask(&mut client, queue::Declare { queue: "q", durable: true, ..Default::default() }, "queue.declare-ok")
        .await;
    while shared.next().await.name() != "queue.declare" {}
}

#[tokio::test(start_paused = true)]
async fn p7_an_exclusive_queue_that_is_still_there_ends_nobody() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (mut client, mut shared) = with_exchange(&mut broker, &pool).await;
    ask(&mut client, bind("q"), "queue.bind-ok").await;
    while shared.next().await.name() != "queue.bind" {}
    broker.fall_silent();
    drop(shared);

    let mut restoring = restoring(&mut broker).await;
    restoring.send(1, exchange::DeclareOk {});
    restoring.expect("queue.bind").await;
    let text = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'";
    restoring.send(1, channel::Close { reply_code: 405, reply_text: text, class_id: 50, method_id: 20 });
    restoring.expect("channel.close-ok").await;
    restoring.expect("connection.close").await;
    assert_eq!(pool.metrics().clients_not_restored, 0);
}

#[tokio::test(start_paused = true)]
async fn p7_clients_of_one_login_restore_their_declarations_on_one_connection() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(PoolConfig {
        max_connections: 2,
        arrival_max: Duration::from_millis(200),
        ..broker.config()
    });
    // Both complete a handshake before either has a connection that would vouch for the other.
    let logins = [login(&pool, "user", "right").await.unwrap(), login(&pool, "user", "right").await.unwrap()];
    let mut clients = Vec::new();
    for (login, queue) in logins.into_iter().zip(["q", "r"]) {
        let mut client = Client::over(&pool, login).await;
        client.open_channel(1).await;
        ask(&mut client, queue::Declare { queue, ..Default::default() }, "queue.declare-ok").await;
        clients.push(client);
    }
    drop(broker.next_connection().await);
    assert_eq!(names(&declared(&mut broker).await), ["queue.declare", "queue.declare"]);
}

#[tokio::test(start_paused = true)]
async fn p7_users_restore_one_after_the_other_when_there_is_one_place() {
    let mut broker = Broker::start(declaring());
    let arrival_max = Duration::from_millis(200);
    let pool = Pool::new(PoolConfig { max_connections: 2, arrival_max, ..broker.config() });
    let (mut clients, mut connections) = (Vec::new(), Vec::new());
    for user in ["alice", "bob"] {
        let login = login(&pool, user, "right").await.unwrap();
        let mut client = Client::over(&pool, login).await;
        client.open_channel(1).await;
        ask(&mut client, queue::Declare { queue: user, ..Default::default() }, "queue.declare-ok").await;
        client.send(1, channel::Close::default()).await;
        client.expect("channel.close-ok").await;
        clients.push(client);
        connections.push(broker.next_connection().await);
    }
    broker.stall(Stalled::All);
    drop(connections);
    until("the restoration to begin", || broker.logins() == 3).await;
    let others = pool.clone();
    let third = tokio::spawn(async move { login(&others, "third", "right").await });
    until("a client to take the other place", || broker.logins() == 4).await;
    broker.stall(Stalled::Nobodys);
    let _login = third.await.unwrap().unwrap();
    for _ in &clients {
        assert_eq!(names(&declared(&mut broker).await), ["queue.declare"]);
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_client_waits_while_there_is_no_place_to_declare_its_things_again() {
    let mut broker = Broker::start(declaring());
    let arrival_max = Duration::from_millis(500);
    let pool = Pool::new(PoolConfig { max_connections: 1, arrival_max, ..broker.config() });
    let (mut client, shared) = with_exchange(&mut broker, &pool).await;
    let others = pool.clone();
    let other = tokio::spawn(async move { login(&others, "other", "right").await });
    until("another client to wait for the place", || pool.metrics().connections_awaited == 1).await;
    drop(shared);
    let other = other.await.unwrap().unwrap();
    client.send(1, queue::Declare { queue: "q", ..Default::default() }).await;
    until("two attempts", || pool.metrics().connections_awaited >= 3).await;
    drop(other);
    client.expect("queue.declare-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_refused_login_ends_its_clients_and_others_restore_shared_objects() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let mut clients = Vec::new();
    let mut connections = Vec::new();
    for (user, password) in [("alice", "right"), ("bob", "new")] {
        *broker.manners.password.lock() = password.to_owned();
        let login = login(&pool, user, password).await.unwrap();
        let mut client = Client::over(&pool, login).await;
        client.open_channel(1).await;
        ask(&mut client, transient_exchange(), "exchange.declare-ok").await;
        clients.push(client);
        connections.push(broker.next_connection().await);
    }
    drop(connections);
    assert_eq!(names(&declared(&mut broker).await), ["exchange.declare"]);
    let text = "exchange 'e' could not be declared again: Login was refused. See the log.";
    clients[0].expect_close(320, &format!("CONNECTION_FORCED - {text}")).await;
    assert_eq!(pool.metrics().clients_not_restored, 1);
    ask(&mut clients[1], queue::Declare { queue: "q", ..Default::default() }, "queue.declare-ok").await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_declaration_refused_to_one_owner_is_made_by_another() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let mut clients = Vec::new();
    let mut connections = Vec::new();
    for user in ["alice", "bob"] {
        let login = login(&pool, user, "right").await.unwrap();
        let mut client = Client::over(&pool, login).await;
        client.open_channel(1).await;
        ask(&mut client, transient_exchange(), "exchange.declare-ok").await;
        clients.push(client);
        connections.push(broker.next_connection().await);
    }
    broker.fall_silent();
    drop(connections);
    let mut restoring = restoring(&mut broker).await;
    let text = "ACCESS_REFUSED - configure access to exchange 'e' in vhost '/' refused for user 'alice'";
    restoring.send(1, channel::Close { reply_code: 403, reply_text: text, class_id: 40, method_id: 10 });
    restoring.expect("channel.close-ok").await;
    clients[0]
        .expect_close(320, &format!("CONNECTION_FORCED - exchange 'e' could not be declared again: {text}"))
        .await;
    let mut restoring = broker.next_connection().await;
    restoring.expect("channel.open").await;
    restoring.expect("exchange.declare").await;
    assert_eq!(pool.metrics().clients_not_restored, 1);
}

#[tokio::test(start_paused = true)]
async fn p7_objects_deleted_with_no_wait_are_forgotten_once_the_delete_is_proven() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (_client, _shared) = with_exchange(&mut broker, &pool).await;
    let remembered = pool.metrics().bytes_remembered;
    let mut other = Client::connect(&pool).await;
    other.open_channel(1).await;
    other.send(1, exchange::Delete { exchange: "e", no_wait: true, ..Default::default() }).await;
    until("it to be forgotten", || pool.metrics().bytes_remembered == 0).await;
    assert!(remembered > 0);
}

#[tokio::test(start_paused = true)]
async fn p7_an_exchange_whose_delete_is_refused_is_still_remembered() {
    let mut broker = Broker::start(declaring());
    let pool = Pool::new(broker.config());
    let (_client, mut shared) = with_exchange(&mut broker, &pool).await;
    let remembered = pool.metrics().bytes_remembered;
    let mut other = Client::connect(&pool).await;
    other.open_channel(1).await;
    broker.fall_silent();
    other.send(1, exchange::Delete { exchange: "e", no_wait: true, ..Default::default() }).await;
    let delete = loop {
        let frame = shared.next().await;
        if frame.name() == "exchange.delete" {
            break frame;
        }
    };
    let text = "ACCESS_REFUSED - access to exchange 'e' in vhost '/' refused for user 'user'";
    let close = channel::Close { reply_code: 403, reply_text: text, class_id: 40, method_id: 20 };
    shared.send(delete.channel, close);
    other.expect_channel_close(403, text).await;
    assert_eq!(pool.metrics().bytes_remembered, remembered);
}

/// The other client's declarations go with what was deleted, whoever hears of it.
#[tokio::test(start_paused = true)]
async fn p7_a_queue_deleted_by_a_client_that_then_vanished_is_forgotten() {
    for (with_consumer, no_wait) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut broker = Broker::start(declaring());
        let pool = Pool::new(broker.config());
        let (mut client, mut shared) = with_exchange(&mut broker, &pool).await;
        let remembered = pool.metrics().bytes_remembered;
        ask(&mut client, queue::Declare { queue: "q", ..Default::default() }, "queue.declare-ok").await;
        let mut vanishing = Client::connect(&pool).await;
        vanishing.open_channel(1).await;
        if with_consumer {
            // Its channel is closed rather than proven clean.
            ask(&mut vanishing, basic::Qos { prefetch_count: 1, ..Default::default() }, "basic.qos-ok").await;
            let consume = basic::Consume { queue: "other", consumer_tag: "c", ..Default::default() };
            ask(&mut vanishing, consume, "basic.consume-ok").await;
        }
        broker.fall_silent();
        vanishing.send(1, queue::Delete { queue: "q", no_wait, ..Default::default() }).await;
        let number = loop {
            let frame = shared.next().await;
            if frame.name() == "queue.delete" {
                break frame.channel;
            }
        };
        drop(vanishing);
        until("the client to be gone", || pool.metrics().clients == 1).await;
        assert!(pool.metrics().bytes_remembered > remembered);
        if !with_consumer {
            shared.send(number, channel::OpenOk::default());
        }
        if !no_wait {
            shared.send(number, queue::DeleteOk::default());
        } else if with_consumer {
            shared.expect("channel.close").await;
            shared.send(number, channel::CloseOk {});
        } else {
            shared.expect("basic.qos").await;
            shared.send(number, basic::QosOk {});
        }
        until("the queue to be forgotten", || pool.metrics().bytes_remembered == remembered).await;
    }
}
