//! Subscriptions that the upstream grants, refuses and loses.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_client_learns_that_a_live_subscription_is_refused_when_it_is_bound_again() {
    let mut world = World::new();
    let ((mut one, _), (mut other, _)) =
        (world.connect("a", true, 0).await, world.connect("b", true, 0).await);
    one.subscribe("a", QoS::AtMostOnce);
    other.subscribe("b", QoS::AtMostOnce);
    assert_eq!(
        (one.answers().await, other.answers().await),
        (vec!["suback Success".to_owned()], vec!["suback Success".to_owned()])
    );
    let (exchange, write, read) = (EXCHANGE.to_owned(), ".*".to_owned(), "^b$".to_owned());
    world.vhost().set_topic_permissions("guest", &TopicPermissions { exchange, write, read }).unwrap();
    world.delete_shared_queue();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(one.answers().await, ["disconnect Not authorized"]);
    other.publish("b", QoS::AtMostOnce, 0, false);
    assert_eq!(other.answers().await, ["publish b AtMostOnce 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_changes_its_path_often_leaves_no_binding() {
    let mut world = World::new();
    let (mut client, _) = world.connect("me", true, 60).await;
    for (qos, granted) in [(QoS::AtMostOnce, "Success"), (QoS::AtLeastOnce, "Granted QoS 1")].repeat(3) {
        client.subscribe("a", qos);
        assert_eq!(client.answers().await, [format!("suback {granted}")]);
    }
    assert_eq!(world.shared_keys(), ["a"]);
    client.unsubscribe("a");
    assert_eq!(client.answers().await, ["unsuback Success"]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.shared_keys(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_may_not_consume_leaves_no_queue() {
    let mut world = World::new();
    let (mut client, _) = world.connect("me", true, 0).await;
    let read = "^amq\\.topic$".to_owned();
    let permissions = Permissions { read, ..Permissions::all() };
    world.vhost().set_permissions("guest", Some(&permissions)).unwrap();
    client.subscribe("$share/g/a", QoS::AtLeastOnce);
    assert_eq!(client.answers().await, ["suback Not authorized"]);
    let queues = world.vhost().all_queues();
    assert!(!queues.iter().any(|queue| queue.name().ends_with("-shared")));
}

#[tokio::test(start_paused = true)]
async fn leading_wildcards_of_shared_subscriptions_match_no_dollar_topics() {
    let mut world = World::new();
    let (mut wide, _) = world.connect("wide", true, 0).await;
    let (mut star, _) = world.connect("star", true, 0).await;
    wide.subscribe("$share/g/#", QoS::AtMostOnce);
    star.subscribe("$share/g/a/*", QoS::AtMostOnce);
    assert_eq!(wide.answers().await, ["suback Success"]);
    assert_eq!(star.answers().await, ["suback Success"]);
    let (mut writer, _) = world.connect("writer", true, 0).await;
    for topic in ["$x/secret", "a/b", "a/*"] {
        writer.publish(topic, QoS::AtMostOnce, 0, false);
    }
    writer.answers().await;
    assert_eq!(wide.answers().await, ["publish a/b AtMostOnce 0", "publish a/* AtMostOnce 0"]);
    assert_eq!(star.answers().await, ["publish a/* AtMostOnce 0"], "a level * is a wildcard in AMQP alone");
    // A filter with a wildcard in its place has a queue of its own: its members miss nothing.
    let (mut plus, _) = world.connect("plus", true, 0).await;
    plus.subscribe("$share/g/a/+", QoS::AtMostOnce);
    assert_eq!(plus.answers().await, ["suback Success"]);
    for topic in ["a/b", "a/*", "a/c"] {
        writer.publish(topic, QoS::AtMostOnce, 0, false);
    }
    writer.answers().await;
    let all = ["publish a/b AtMostOnce 0", "publish a/* AtMostOnce 0", "publish a/c AtMostOnce 0"];
    assert_eq!(plus.answers().await, all);
    assert_eq!(wide.answers().await, all);
    assert_eq!(star.answers().await, ["publish a/* AtMostOnce 0"]);
    // Messages that are not sent have to be acknowledged all the same.
    let queues = world.vhost().all_queues();
    let mut groups = queues.iter().filter(|queue| queue.name().ends_with("-shared"));
    assert!(groups.all(|queue| queue.unacked_count() == 0 && queue.message_count() == 0));
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_group_stays_one_with_a_client_of_3_1_1_here_and_elsewhere() {
    for elsewhere in [false, true] {
        let mut world = World::new();
        let mut other = world.beside();
        let (mut member, _) = world.connect("me", false, 3600).await;
        member.subscribe("$share/g/t", QoS::AtLeastOnce);
        assert_eq!(member.answers().await, ["suback Granted QoS 1"]);
        drop(member);
        tokio::time::sleep(SOON).await;
        let (mut writer, _) = world.connect("writer", true, 0).await;
        writer.publish("t", QoS::AtLeastOnce, 1, false);
        assert_eq!(writer.answers().await, ["puback 1 success"]);
        let (mut member, mut came) = if elsewhere { &mut other } else { &mut world }.resume("me").await;
        came.append(&mut member.answers().await);
        writer.publish("t", QoS::AtLeastOnce, 1, false);
        writer.answers().await;
        came.append(&mut member.answers().await);
        let expected = ["connack Success present", "publish t AtLeastOnce 1", "publish t AtLeastOnce 2"];
        assert_eq!(came, expected, "{elsewhere}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_with_its_connection_has_a_limited_number_of_filters() {
    let mut world = World::new();
    let (mut client, _) = world.connect("me", true, 0).await;
    let mut answers = Vec::new();
    for packet in 0..30 {
        let filters: Vec<_> =
            (0..100).map(|number| format!("{packet}/{number}/{}", "x".repeat(200))).collect();
        client.subscribe_all(filters.iter().map(String::as_str), QoS::AtMostOnce);
        answers.extend(client.answers().await);
    }
    assert_eq!(answers.len(), 30);
    let is_refused = |answer: &String| answer.contains("Quota exceeded");
    assert_eq!((is_refused(&answers[20]), is_refused(&answers[29])), (false, true));
    client.unsubscribe(&format!("0/0/{}", "x".repeat(200)));
    assert_eq!(client.answers().await, ["unsuback Success"]);
    client.subscribe("short", QoS::AtMostOnce);
    assert_eq!(client.answers().await, ["suback Success"]);
}
