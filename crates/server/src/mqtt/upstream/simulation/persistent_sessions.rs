//! Sessions that outlive their connections, as reconnecting clients find them.

use std::task::Waker;

use super::*;
use crate::mqtt::session_ownership::{Claim, Owner, SessionUser};
use crate::mqtt::upstream::session::ANNOUNCEMENT_TIMEOUT;
use crate::mqtt::upstream::session_takeover::IDLE_TIMEOUT;
use crate::mqtt::upstream::state::STALE_TIMEOUT;
use crate::mqtt::upstream::teardown::SETTLE_TIMEOUT;
use crate::mqtt::upstream::tests::uplink;
use crate::mqtt::upstream::uplink::Uplink;

const NOTHING: [&str; 0] = [];

#[tokio::test(start_paused = true)]
async fn messages_of_quality_2_are_received_if_the_upstream_has_confirmed_them_when_their_client_leaves() {
    let mut world = World::new();
    let listener = world.listen("a");
    let permissions =
        TopicPermissions { exchange: EXCHANGE.to_owned(), write: "^a$".to_owned(), read: ".*".to_owned() };
    world.vhost().set_topic_permissions("guest", &permissions).unwrap();
    let (mut client, answer) = world.resume("me").await;
    assert_eq!(answer, ["connack Success"]);
    world.let_answers_through(false);
    client.publish("a", QoS::ExactlyOnce, 7, false);
    assert_eq!(client.answers().await, NOTHING);
    drop(client);
    // The next connection waits until the message is confirmed or refused.
    let (mut client, answer) = world.resume("me").await;
    assert_eq!(answer, NOTHING);
    world.let_answers_through(true);
    assert_eq!(client.first_answer().await, ["connack Success present"]);
    client.publish("a", QoS::ExactlyOnce, 7, true);
    assert_eq!(client.answers().await, ["pubrec 7 success"]);
    client.release(7);
    assert_eq!(client.answers().await, ["pubcomp 7 success"]);
    assert_eq!(listener.message_count(), 1);

    // The upstream refuses the next message.
    world.let_answers_through(false);
    client.publish("b", QoS::ExactlyOnce, 8, false);
    assert_eq!(client.answers().await, NOTHING);
    drop(client);
    let (mut client, _) = world.resume("me").await;
    world.let_answers_through(true);
    assert_eq!(client.answers().await, ["connack Success present"]);
    client.publish("b", QoS::ExactlyOnce, 8, true);
    assert_eq!(client.answers().await, NOTHING);
    assert_eq!(client.connection.intent(), Intent::Finish, "refused again");
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_was_not_passed_on_counts() {
    let mut world = World::new();
    let listener = world.listen("a");
    let (mut client, _) = world.resume("me").await;
    client.publish("a", QoS::ExactlyOnce, 7, false);
    while listener.message_count() == 0 {
        client.connection.handle_nudge(transport::now());
        tokio::time::sleep(SOON).await;
    }
    drop(client);
    let (mut client, answer) = world.resume("me").await;
    assert_eq!(answer, ["connack Success present"]);
    client.publish("a", QoS::ExactlyOnce, 7, true);
    assert_eq!(client.answers().await, ["pubrec 7 success"]);
    assert_eq!(listener.message_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_answer_is_not_waited_for_without_an_end() {
    let mut world = World::new();
    let (mut client, _) = world.resume("me").await;
    world.let_answers_through(false);
    client.publish("a", QoS::ExactlyOnce, 7, false);
    assert_eq!(client.answers().await, NOTHING);
    drop(client);
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    world.let_answers_through(true);
    let (mut client, _) = world.resume("me").await;
    assert_eq!(client.first_answer().await, ["connack Success present"]);
    client.publish("a", QoS::ExactlyOnce, 7, true);
    assert_eq!(client.answers().await, ["pubrec 7 success"], "it is published again");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_used_elsewhere_is_there_when_its_time_is_over_here() {
    let mut world = World::new();
    let (mut client, _) = world.connect("me", false, 60).await;
    client.subscribe("a", QoS::AtLeastOnce);
    assert_eq!(client.answers().await, ["suback Granted QoS 1"]);
    drop(client);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    // The broker's clock does not advance, as if another consumer had kept the queue from expiring.
    assert!(world.queue("me").is_some());
    let (_, answer) = world.connect("me", false, 60).await;
    assert_eq!(answer, ["connack Success present"]);
    assert!(world.queue("me").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_session_without_a_queue_is_over_when_its_time_is() {
    let mut world = World::new();
    for (seconds, expected) in [(59, "connack Success present"), (60, "connack Success")] {
        let (client, _) = world.connect("me", true, 60).await;
        drop(client);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(world.connect("me", false, 60).await.1, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_taken_over_while_its_queue_is_deleted_does_not_delete_the_next_ones() {
    let mut world = World::new();
    let (mut client, _) = world.connect("me", false, 60).await;
    client.subscribe("a", QoS::AtLeastOnce);
    assert_eq!(client.answers().await, ["suback Granted QoS 1"]);
    drop(client);
    tokio::time::sleep(SOON).await;
    world.let_answers_through(false);
    let mut second = world.client(V5);
    second.connect("me", true, 60);
    while world.queue("me").is_some() {
        assert_eq!(second.answers().await, NOTHING);
    }
    let owner = Arc::new(Owner { vhost: "/".into(), client_id: "me".into() });
    let third = Claim::new(&Arc::new(Outbox::new(1)), Some(SessionUser::named("guest")));
    assert!(world.hub.claim(&owner, &third).is_ok());
    assert_eq!(second.answers().await, ["connack Session taken over"]);
    tokio::time::sleep(2 * SETTLE_TIMEOUT).await;
    assert!(third.take_granted().is_none(), "the deletion may still be carried out");
    world.let_answers_through(true);
    tokio::time::sleep(SOON).await;
    assert!(third.take_granted().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_delayed_will_is_published_when_the_server_shuts_down() {
    let mut world = World::new();
    let listener = world.listen("w");
    let mut client = world.client(V5);
    client.connect_with_will("me", "w", 3600);
    assert_eq!(client.answers().await, ["connack Success"]);
    drop(client);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((listener.message_count(), world.hub.wills.totals().wills), (0, 1));
    world.hub.drain();
    tokio::time::timeout(SOON, world.hub.finished()).await.unwrap();
    assert_eq!((listener.message_count(), world.hub.wills.totals().wills), (1, 0));
    // A will whose connection ends during the shutdown is not delayed either.
    let mut client = world.client(V5);
    client.connect_with_will("you", "w", 3600);
    client.answers().await;
    drop(client);
    tokio::time::sleep(SOON).await;
    assert_eq!(listener.message_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_will_is_discarded_when_its_client_resumes_elsewhere_though_nobody_else_is_connected_here()
{
    for (client_id, resumes, expected) in [("me", true, 0), ("me", false, 1), ("", true, 0), ("", false, 1)] {
        let mut world = World::new();
        let (mut other, listener) = (world.beside(), world.listen("w"));
        let mut client = world.client(V5);
        client.connect_with_will(client_id, "w", 60);
        assert_eq!(client.answers().await, ["connack Success"]);
        drop(client);
        tokio::time::sleep(2 * IDLE_TIMEOUT).await;
        // The server may have assigned the identifier, in CONNACK.
        let client_id = world.hub.detached().remove(0).client_id;
        let (_client, answer) = other.connect(&client_id, !resumes, 3600).await;
        assert!(answer[0].starts_with("connack Success"), "{answer:?}");
        assert_eq!((listener.message_count(), world.hub.wills.totals().wills), (expected, 0), "{resumes}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(listener.message_count(), expected, "{resumes}");
        assert_eq!(world.hub.takeovers.watches(), 0, "the queue is kept for the will alone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_with_an_assigned_identifier_is_taken_over_elsewhere_if_it_has_a_session() {
    for (expiry, watches) in [(0, 0), (3600, 1)] {
        let mut world = World::new();
        let mut other = world.beside();
        let (mut client, _) = world.connect("", true, expiry).await;
        assert_eq!(world.hub.takeovers.watches(), watches);
        if expiry > 0 {
            client.subscribe("a", QoS::AtLeastOnce);
            assert_eq!(client.answers().await, ["suback Granted QoS 1"]);
            let queues = world.vhost().all_queues();
            let mut names = queues.iter().map(|queue| queue.name().trim_start_matches("mqtt-subscription-"));
            let client_id = names.find_map(|name| name.strip_suffix("qos1")).unwrap();
            let (_, answer) = other.connect(client_id, false, expiry).await;
            assert_eq!(client.answers().await, ["disconnect Session taken over"], "{answer:?}");
        }
    }
}

/// The deletion and the announcement arrive by two paths. The client has to get the reason after which clients do not
/// reconnect.
#[tokio::test(start_paused = true)]
async fn disconnect_after_queue_deletion_says_if_the_session_was_taken_over() {
    for comes_elsewhere in [true, false] {
        let mut world = World::new();
        let mut other = world.beside();
        let (mut client, _) = world.connect("me", true, 3600).await;
        client.subscribe("a", QoS::AtLeastOnce);
        assert_eq!(client.answers().await, ["suback Granted QoS 1"]);
        world.vhost().delete_queue(SessionId(0), "mqtt-subscription-meqos1", false, false).unwrap();
        assert_eq!(client.answers().await, [""; 0]);
        let reason = if comes_elsewhere { "Session taken over" } else { "Administrative action" };
        let _elsewhere = if comes_elsewhere { Some(other.connect("me", true, 3600).await) } else { None };
        tokio::time::sleep(ANNOUNCEMENT_TIMEOUT).await;
        assert_eq!(client.answers().await, [format!("disconnect {reason}")]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_will_waits_though_its_session_is_too_large_to_be_kept_here() {
    for (resumes, expected) in [(true, 0), (false, 1)] {
        let mut world = World::new();
        let listener = world.listen("w");
        let mut client = world.client(V5);
        client.connect_with_will("me", "w", 60);
        assert_eq!(client.answers().await, ["connack Success"]);
        let filters: Vec<_> = (0..1000).map(|number| format!("{number:0>240}")).collect();
        client.subscribe_all(filters.iter().map(|filter| &**filter), QoS::AtLeastOnce);
        assert_eq!(client.answers().await.len(), 1);
        drop(client);
        tokio::time::sleep(SOON).await;
        assert_eq!((world.hub.detached(), listener.message_count()), (Vec::new(), 0));
        let (_client, answer) = world.connect("me", !resumes, 3600).await;
        assert_eq!(answer, [if resumes { "connack Success present" } else { "connack Success" }]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(listener.message_count(), expected, "{resumes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_session_cannot_be_resumed_is_disconnected_and_keeps_it() {
    let mut world = World::new();
    let read = |read: &str| {
        let (exchange, write, read) = (EXCHANGE.to_owned(), ".*".to_owned(), read.to_owned());
        TopicPermissions { exchange, write, read }
    };
    let (mut client, _) = world.connect("me", true, 3600).await;
    client.subscribe("a", QoS::AtMostOnce);
    assert_eq!(client.answers().await, ["suback Success"]);
    drop(client);
    // The binding has been removed upstream by then.
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.vhost().set_topic_permissions("guest", &read("^b$")).unwrap();
    let (_, answer) = world.connect("me", false, 3600).await;
    assert_eq!(answer, ["connack Success present", "disconnect Not authorized"]);
    world.vhost().set_topic_permissions("guest", &read(".*")).unwrap();
    let (mut client, answer) = world.connect("me", false, 3600).await;
    assert_eq!(answer, ["connack Success present"]);
    client.publish("a", QoS::AtMostOnce, 0, false);
    assert_eq!(client.answers().await, ["publish a AtMostOnce 0"]);
}

/// A consumer of the client's state queue that is never cancelled, as of a connection that RabbitMQ still considers open.
fn stale_consumer(world: &World) -> Uplink {
    let mut stale = uplink(&world.upstream, 100);
    stale.consume("mqtt-subscription-meqos2", 1);
    for _ in 0..8 {
        stale.take_turn(Waker::noop(), transport::now()).unwrap();
    }
    stale
}

/// Connects until the client is admitted. Returns the answers as well.
async fn admitted(world: &mut World) -> (Client, Vec<String>) {
    let began = tokio::time::Instant::now();
    for refused in 0.. {
        let mut client = world.client(V311);
        client.connect("me", false, 0);
        let answer = client.first_answer().await;
        if answer != ["connack Server unavailable"] {
            assert!(began.elapsed() >= Duration::from_millis(STALE_TIMEOUT) && refused > 3);
            return (client, answer);
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    unreachable!("it returns")
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_never_leaves_a_state_queue_keeps_its_client_away_for_some_minutes_only() {
    let mut world = World::new();
    let (mut client, _) = world.resume("me").await;
    client.publish("a", QoS::ExactlyOnce, 7, false);
    assert_eq!(client.answers().await, ["pubrec 7 success"]);
    drop(client);
    let _stale = stale_consumer(&world);

    let (mut client, answer) = admitted(&mut world).await;
    assert_eq!(answer, ["connack Success present"], "this server knows the session");
    let is_state_queue = |queue: &Arc<Queue>| &**queue.name() == "mqtt-subscription-meqos2";
    assert!(!world.vhost().all_queues().iter().any(is_state_queue));
    client.publish("a", QoS::ExactlyOnce, 8, false);
    assert_eq!(client.answers().await, ["pubrec 8 success"]);
    assert!(world.vhost().all_queues().iter().any(is_state_queue), "it has a new one");
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_state_queue_was_deleted_gets_session_not_present() {
    let mut world = World::new();
    let (mut client, _) = world.resume("me").await;
    client.subscribe("a", QoS::AtLeastOnce);
    client.answers().await;
    client.subscribe("b", QoS::AtMostOnce);
    client.answers().await;
    drop(client);
    let _stale = stale_consumer(&world);
    assert!(world.queue("me").is_some());

    let mut other = world.beside();
    let (mut client, answer) = admitted(&mut other).await;
    assert_eq!(answer, ["connack Success"], "no session is present");
    assert!(world.queue("me").is_none());
    client.subscribe("a", QoS::AtLeastOnce);
    assert_eq!(client.answers().await.len(), 1);
    assert!(world.queue("me").is_some());
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_was_sent_before_the_client_connects_elsewhere_counts() {
    for elsewhere in [true, false] {
        let mut world = World::new();
        let (mut other, listener) = (world.beside(), world.listen("w"));
        let mut first = world.client(V5);
        first.connect_with_will("me", "w", 0);
        assert_eq!(first.answers().await, ["connack Success"]);
        first.subscribe("a", QoS::AtLeastOnce);
        assert_eq!(first.answers().await, ["suback Granted QoS 1"]);
        let (mut writer, _) = world.connect("writer", true, 0).await;
        writer.publish("a", QoS::AtLeastOnce, 1, false);
        assert_eq!(writer.answers().await, ["puback 1 success"]);
        assert_eq!(first.answers().await, ["publish a AtLeastOnce 1"]);

        // The packets are in the socket, but the server's task has not read them.
        let (near, mut far) = tokio::io::duplex(1024);
        send_last(near, V5, 1).await;
        let (mut second, answer) =
            if elsewhere { &mut other } else { &mut world }.connect("me", false, 3600).await;
        assert_eq!(answer, NOTHING, "the first connection has the session");
        let Client { connection, outbox, .. } = &mut first;
        transport::drive(&mut far, connection, outbox, 1 << 20, SOON).await;
        assert_eq!(second.first_answer().await, ["connack Success present"]);
        assert_eq!(second.answers().await, NOTHING, "{elsewhere}");
        assert_eq!((world.queue("me").unwrap().message_count(), listener.message_count()), (0, 0));
    }
}
