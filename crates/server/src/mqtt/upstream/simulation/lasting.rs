//! What a session that outlives its connection knows when its client comes back.

use super::*;

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
    // The next one waits until it is known what has become of the message.
    let (mut client, answer) = world.resume("me").await;
    assert_eq!(answer, NOTHING);
    world.let_answers_through(true);
    assert_eq!(client.answers().await, ["connack Success present"]);
    client.publish("a", QoS::ExactlyOnce, 7, true);
    assert_eq!(client.answers().await, ["pubrec 7 success"]);
    client.release(7);
    assert_eq!(client.answers().await, ["pubcomp 7 success"]);
    assert_eq!(listener.message_count(), 1);

    // The upstream refuses this one.
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
    tokio::time::sleep(super::super::farewell::SETTLE_TIMEOUT).await;
    world.let_answers_through(true);
    let (mut client, answer) = world.resume("me").await;
    assert_eq!(answer, ["connack Success present"]);
    client.publish("a", QoS::ExactlyOnce, 7, true);
    assert_eq!(client.answers().await, ["pubrec 7 success"], "it is published again");
}
