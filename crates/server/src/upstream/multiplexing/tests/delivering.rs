//! The delivery of messages to subscribers.

use amqp::{FieldTable, FieldValue, Properties, RawTable, frame};
use broker::{Binding, SessionId};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_message_comes_once_for_each_subscription_or_once_for_each_client() {
    for (copies, expected) in [
        (Copies::PerClient, vec!["1+2+3+4: x"]),
        (Copies::PerSubscription, vec!["1: x", "2: x", "3: x", "4: x"]),
    ] {
        let mut site = Site::new();
        let (one, other) = (site.join_with(InboxLimits::default(), copies), site.join());
        for (number, key) in ["a.*", "a.#", "#", "a.#", "b", "*.*.*"].into_iter().enumerate() {
            one.subscribe(key, 1 + number as u64).await;
        }
        other.subscribe("a.b", 1).await;
        site.publish("a.b", "x").await;
        let mut events = one.events();
        if copies == Copies::PerSubscription {
            events.sort_unstable();
            assert_eq!(events, expected);
        } else {
            let [event] = &events[..] else { panic!("{events:?}") };
            let (numbers, body) = event.split_once(": ").unwrap();
            let mut numbers: Vec<_> = numbers.split('+').collect();
            numbers.sort_unstable();
            assert_eq!([format!("{}: {body}", numbers.join("+"))], expected[..]);
        }
        assert_eq!(other.events(), ["1: x"]);
        site.publish("b.c", "y").await;
        assert_eq!((one.events(), other.events()), (vec!["3: y".to_owned()], vec![]));
        assert_eq!((site.status().received, site.status().copies), (2, 6));
    }
}

#[tokio::test(start_paused = true)]
async fn each_subscriber_gets_its_messages_in_their_order() {
    let mut site = Site::new();
    let subscribers: Vec<_> = (0..20).map(|_| site.join()).collect();
    for (number, subscriber) in subscribers.iter().enumerate() {
        subscriber.subscribe(&format!("k.{}", number % 4), 1).await;
        subscriber.subscribe(&format!("k.{}", (number + 1) % 4), 2).await;
    }
    for message in 0..1000 {
        site.publish_to("amq.topic", &format!("k.{}", message % 4), &message.to_string());
        if message % 97 == 0 {
            settle().await;
        }
    }
    settle().await;
    for (number, subscriber) in subscribers.iter().enumerate() {
        let own = |message: usize| match (4 + message % 4 - number % 4) % 4 {
            0 => Some(format!("1: {message}")),
            1 => Some(format!("2: {message}")),
            _ => None,
        };
        assert_eq!(subscriber.events(), (0..1000).filter_map(own).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_gets_nothing_before_its_answer() {
    let mut site = Site::new();
    let (one, other) = (site.join(), site.join());
    other.subscribe("#", 1).await;
    one.hold.subscribe("k", 1);
    site.publish("k", "x").await;
    let events = one.events();
    assert!(events == ["subscribed 1", "1: x"] || events == ["subscribed 1"], "{events:?}");
    assert_eq!(other.events(), ["1: x"]);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_takes_nothing_overflows_alone() {
    let mut site = Site::new();
    let slow = site.join_with(InboxLimits { messages: 5, bytes: 1 << 20 }, Copies::PerSubscription);
    let other = site.join();
    slow.subscribe("k", 1).await;
    other.subscribe("k", 1).await;
    for message in 0..3000 {
        site.publish_to("amq.topic", "k", &message.to_string());
    }
    settle().await;
    assert_eq!(other.events().len(), 3000, "more than the upstream sends unacknowledged");
    assert_eq!(slow.events(), ["overflowed"]);
    slow.hold.subscribe("l", 2);
    site.publish("k", "x").await;
    assert_eq!((slow.events(), other.events()), (vec![], vec!["1: x".to_owned()]));
    assert_eq!(site.status().overflowed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_counts_by_its_keys_wherever_it_comes_from_unless_it_was_sent_to_the_queue_by_name() {
    let mut site = Site::new();
    let subscriber = site.join();
    subscriber.subscribe("wanted.#", 1).await;
    let queue = site.upstream.queues().remove(0);
    site.publish_to("", queue.name(), "by its name");
    settle().await;
    // As for an exchange that is bound to amq.topic.
    let (source, destination) = ("amq.fanout", queue.name());
    let binding = Binding { source, destination, ..Default::default() };
    // Only the session that owns the queue may bind it.
    let owner = (1..10).map(SessionId).find(|id| site.upstream.vhost().bind_queue(*id, &binding).is_ok());
    assert!(owner.is_some());
    site.publish_to("amq.fanout", "wanted.a", "a");
    site.publish_to("amq.fanout", "other", "by another key");
    let keys = ["wanted.cc", "wanted.#"].map(FieldValue::text).to_vec();
    let table: FieldTable = [("CC", FieldValue::Array(keys))].into_iter().collect();
    let encoded = table.encode();
    let mut properties = Vec::new();
    Properties::default().with_headers(RawTable::check(&encoded).unwrap()).encode(&mut properties);
    let publish = basic::Publish { exchange: "amq.topic", routing_key: "elsewhere", ..Default::default() };
    site.publisher.publish(1, publish, &properties, b"cc");
    site.publisher.flush(transport::now()).unwrap();
    site.publish("wanted.b", "b").await;
    assert_eq!(subscriber.events(), ["1: a", "1: cc", "1: b"]);
    let view = queue.view();
    assert_eq!((view.ready, view.unacknowledged, site.status().received), (0, 0, 5));
}

#[tokio::test(start_paused = true)]
async fn a_message_keeps_its_properties_and_its_origin() {
    let mut site = Site::new();
    let subscriber = site.join();
    subscriber.subscribe("a.#", 1).await;
    let publish = basic::Publish { exchange: "amq.topic", routing_key: "a.b", ..Default::default() };
    // The encoded properties: delivery_mode alone.
    let properties = [0x10, 0, 2];
    let body = vec![7; 3 * FRAME_MAX as usize];
    site.publisher.publish(1, publish, &properties, &body);
    site.publisher.flush(transport::now()).unwrap();
    settle().await;
    let Some(SubscriberEvent::Message(numbers, message)) = subscriber.inbox.take(true) else { panic!() };
    assert_eq!(numbers.as_slice(), [1]);
    assert_eq!((&*message.exchange, &*message.routing_key), ("amq.topic", "a.b"));
    assert_eq!((&message.properties[..], &message.body[..]), (&properties[..], &body[..]));
    assert!(!message.redelivered);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_an_operator_deletes_is_declared_again() {
    let mut site = Site::new();
    let subscriber = site.join();
    subscriber.subscribe("k", 1).await;
    let name = site.status().queue.unwrap();
    let owner = (1..10).map(SessionId).find(|id| {
        let vhost = site.upstream.vhost();
        vhost.queue(*id, &name).is_ok() && vhost.delete_queue(*id, &name, false, false).is_ok()
    });
    assert!(owner.is_some());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_ne!(site.status().queue.unwrap(), name);
    site.publish("k", "x").await;
    assert_eq!(subscriber.events(), ["1: x"]);
    assert_eq!((site.status().lost, site.upstream.queues().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_not_utf8_does_no_harm() {
    let mut site = Site::new();
    let subscriber = site.join();
    subscriber.subscribe("a.*", 1).await;
    site.publish("a.b", "x").await;
    // The embedded broker refuses such a key; RabbitMQ does not. The delivery tag has been acknowledged already.
    let mut frames = Vec::new();
    let deliver =
        basic::Deliver { delivery_tag: 1, exchange: "amq.topic", routing_key: "a.?", ..Default::default() };
    frame::write_method(&mut frames, 1, deliver);
    let key = frames.windows(3).position(|bytes| bytes == b"a.?").unwrap();
    frames[key + 2] = 0xff;
    frame::write_content_header(&mut frames, 1, 1, NO_PROPERTIES);
    frame::write_body(&mut frames, 1, b"y");
    site.upstream.open.lock()[0].outbox.append(|buf| buf.tail().extend_from_slice(&frames));
    settle().await;
    let messages: Vec<_> = std::iter::from_fn(|| subscriber.inbox.take(true)).collect();
    let [SubscriberEvent::Message(_, first), SubscriberEvent::Message(_, second)] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(
        (&*first.routing_key, &*second.routing_key, &second.body[..]),
        ("a.b", "a.\u{fffd}", &b"y"[..])
    );
    assert_eq!(site.status().lost, 0);
}

#[tokio::test(start_paused = true)]
async fn messages_that_fill_the_way_from_the_upstream_are_followed_by_the_others() {
    let mut site = Site::new();
    let subscriber = site.join_with(InboxLimits { messages: 1000, bytes: 16 << 20 }, Copies::PerSubscription);
    subscriber.subscribe("k", 1).await;
    // More than the outbox in between takes, and fewer than the prefetch.
    let body = "x".repeat(15_000);
    for _ in 0..300 {
        site.publish_to("amq.topic", "k", &body);
    }
    settle().await;
    assert_eq!(subscriber.events().len(), 300);
}
