//! The queues and bindings that subscribers cause upstream.

use super::*;
use crate::upstream::multiplexing::queue::MultiplexedQueue;
use crate::upstream::multiplexing::requests::{KeyRequest, MAX_IDLE};
use crate::upstream::multiplexing::state::{IDLE_TIMEOUT, MAX_REQUESTED};
use crate::upstream::multiplexing::task::LinkedQueue;
use crate::upstream::multiplexing::{MultiplexedCounts, MultiplexedTotals};

#[tokio::test(start_paused = true)]
async fn a_thousand_subscribers_of_ten_keys_cost_one_queue_ten_bindings_and_one_copy_of_each_message() {
    let mut site = Site::new();
    let subscribers: Vec<_> = (0..1000).map(|_| site.join()).collect();
    for (number, subscriber) in subscribers.iter().enumerate() {
        subscriber.hold.subscribe(&format!("room.{}", number % 10), 7);
    }
    settle().await;
    assert!(subscribers.iter().all(|each| each.events() == ["subscribed 7"]));
    assert_eq!(site.upstream.bindings().len(), 10);
    let queue = site.upstream.queues().remove(0);
    assert!(queue.name().starts_with("stomp-subscription-"));
    for key in 0..10 {
        site.publish(&format!("room.{key}"), &key.to_string()).await;
    }
    for (number, subscriber) in subscribers.iter().enumerate() {
        assert_eq!(subscriber.events(), [format!("7: {}", number % 10)]);
    }
    let view = queue.view();
    assert_eq!((view.consumers, view.ready, view.unacknowledged), (1, 0, 0));
    assert_eq!(
        site.status(),
        MultiplexedQueueStatus {
            protocol: "stomp",
            user: USER.to_owned(),
            vhost: "/".to_owned(),
            exchange: "amq.topic".to_owned(),
            queue: Some(queue.name().to_string()),
            subscribers: 1000,
            bindings: 10,
            received: 10,
            copies: 1000,
            dropped: 0,
            overflowed: 0,
            lost: 0,
        }
    );
    let bindings = site.all.bindings(queue.name()).unwrap();
    let reported: Vec<_> =
        bindings.iter().map(|binding| (&*binding.key, binding.subscribers, binding.is_bound)).collect();
    let keys: Vec<_> = (0..10).map(|key| format!("room.{key}")).collect();
    assert_eq!(reported, keys.iter().map(|key| (&**key, 100, true)).collect::<Vec<_>>());
    assert!(site.all.bindings("another").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_bound_key_is_answered_at_once_and_one_under_way_with_the_first() {
    let site = Site::new();
    let [first, second, third] = [(), (), ()].map(|()| site.join());
    first.hold.subscribe("k", 1);
    second.hold.subscribe("k", 2);
    assert_eq!((first.events(), second.events()), (vec![], vec![]), "the key is not bound yet");
    settle().await;
    assert_eq!((first.events(), second.events()), (vec!["subscribed 1".into()], vec!["subscribed 2".into()]));
    third.hold.subscribe("k", 3);
    assert_eq!(third.events(), ["subscribed 3"]);
}

#[test]
fn a_key_that_was_bound_to_the_last_queue_is_not_bound_to_the_next() {
    let credentials = Arc::new(Credentials::plain(USER, *b""));
    let queue = MultiplexedQueue::new(
        UpstreamLogin { prefix: "q-", credentials, vhost: "/".into() },
        &"amq.topic".into(),
    );
    let carrier = InnerOutbox::new(1);
    let inbox = SubscriberInbox::of_test(carrier.outbox(), InboxLimits::default(), Copies::PerClient);
    let hold = queue.join(&inbox).unwrap();
    let events = || std::iter::from_fn(|| inbox.take(true)).map(|event| describe(&event)).collect::<Vec<_>>();
    for round in 0..2 {
        queue.handle_declared(&"q".into());
        hold.subscribe("k", round);
        assert_eq!(events(), [""; 0]);
        assert!(queue.take_requests(|request| assert_eq!(request, KeyRequest::Bind("k".into()))));
        queue.handle_bound(transport::now()).unwrap();
        queue.hand_out(&mut None);
        assert_eq!(events(), [format!("subscribed {round}")]);
        queue.handle_lost();
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_reported_only_to_its_own_subscribers() {
    let mut site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.hold.subscribe("public.1", 1);
    one.hold.subscribe("private.1", 2);
    one.hold.subscribe("public.2", 3);
    other.hold.subscribe("private.1", 4);
    other.hold.subscribe("private.2", 5);
    other.hold.subscribe("public.3", 6);
    settle().await;
    let refused = |number: u64, key: &str| {
        let topic = format!("topic '{key}' in exchange 'amq.topic' in vhost '/'");
        format!("refused {number}: ACCESS_REFUSED - access to {topic} refused for user '{USER}'")
    };
    let mut events = [one.events(), other.events()];
    events.iter_mut().for_each(|events| events.sort_unstable());
    assert_eq!(events[0], [refused(2, "private.1"), "subscribed 1".into(), "subscribed 3".into()]);
    assert_eq!(events[1], [refused(4, "private.1"), refused(5, "private.2"), "subscribed 6".to_owned()]);
    assert_eq!(site.upstream.bindings(), ["public.1", "public.2", "public.3"]);
    // The closed channel is open again, and a refused key may be requested again.
    other.hold.subscribe("private.1", 7);
    one.hold.subscribe("public.4", 8);
    settle().await;
    assert_eq!((other.events(), one.events()), (vec![refused(7, "private.1")], vec!["subscribed 8".into()]));
    site.publish("public.4", "a").await;
    site.publish("private.1", "b").await;
    assert_eq!((one.events(), other.events()), (vec!["8: a".into()], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_no_broker_takes_is_refused_here() {
    let site = Site::new();
    let subscriber = site.join();
    subscriber.hold.subscribe(&"k".repeat(256), 1);
    subscriber.hold.subscribe(&"k".repeat(255), 2);
    settle().await;
    let events = subscriber.events();
    let text = "refused 1: PRECONDITION_FAILED - binding key of 256 bytes; 255 are the most";
    assert_eq!(events, [text, "subscribed 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_unbound_when_nobody_has_needed_it_for_a_while() {
    let site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.subscribe("k", 1).await;
    other.subscribe("k", 1).await;
    other.subscribe("other", 2).await;
    one.hold.unsubscribe("k", 1);
    tokio::time::sleep(2 * IDLE_TIMEOUT).await;
    assert_eq!(site.upstream.bindings(), ["k", "other"], "another subscriber needs the key");
    other.hold.unsubscribe("k", 1);
    tokio::time::sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(site.upstream.bindings(), ["k", "other"]);
    one.hold.subscribe("k", 3);
    assert_eq!(one.events(), ["subscribed 3"], "without asking the upstream");
    tokio::time::sleep(2 * IDLE_TIMEOUT).await;
    assert_eq!(site.upstream.bindings(), ["k", "other"], "it is in use again");
    one.hold.unsubscribe("k", 3);
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(site.upstream.bindings(), ["other"]);
    one.subscribe("k", 4).await;
    assert_eq!(site.upstream.bindings(), ["k", "other"]);
    one.hold.unsubscribe("k", 4);
    tokio::time::sleep(IDLE_TIMEOUT / 2).await;
    one.hold.subscribe("k", 5);
    one.hold.unsubscribe("k", 5);
    tokio::time::sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(site.upstream.bindings(), ["k", "other"], "the time begins anew");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(site.upstream.bindings(), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_through_very_many_keys_leaves_few_of_them_bound() {
    let site = Site::new();
    let subscriber = site.join();
    for some in (0..MAX_IDLE as u64 + 200).collect::<Vec<_>>().chunks(MAX_REQUESTED) {
        some.iter().for_each(|number| subscriber.hold.subscribe(&format!("k.{number}"), *number));
        settle().await;
        some.iter().for_each(|number| subscriber.hold.unsubscribe(&format!("k.{number}"), *number));
    }
    settle().await;
    assert_eq!(site.upstream.bindings().len(), MAX_IDLE);
    assert_eq!(site.status().bindings, MAX_IDLE);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_for_very_many_keys_has_to_wait_for_the_upstream() {
    let site = Site::new();
    let (subscriber, other) = (site.join(), site.join());
    for number in 0..MAX_REQUESTED as u64 {
        assert!(subscriber.hold.has_capacity());
        let key = format!("k.{number}");
        subscriber.hold.subscribe(&key, number);
        // Keys that are requested and then unsubscribed count as well.
        if number % 2 == 0 {
            subscriber.hold.unsubscribe(&key, number);
        }
    }
    other.hold.subscribe("other", 1);
    // The unsubscribed keys have not been requested yet, as there is no connection.
    assert!(subscriber.hold.has_capacity() && other.hold.has_capacity());
    for number in 0..MAX_REQUESTED as u64 / 2 {
        subscriber.hold.subscribe(&format!("more.{number}"), number);
    }
    assert!(!subscriber.hold.has_capacity() && other.hold.has_capacity());
    settle().await;
    assert_eq!(subscriber.events().len(), MAX_REQUESTED);
    assert!(subscriber.hold.has_capacity());
    // With a connection they are requested.
    for number in 0..MAX_REQUESTED as u64 {
        let key = format!("last.{number}");
        subscriber.hold.subscribe(&key, number);
        subscriber.hold.unsubscribe(&key, number);
    }
    assert!(!subscriber.hold.has_capacity() && other.hold.has_capacity());
    settle().await;
    assert!(subscriber.carrier.take_nudge(), "no event tells of the room");
    assert!(subscriber.hold.has_capacity());
}

#[tokio::test(start_paused = true)]
async fn the_connection_is_closed_when_nobody_has_needed_it_for_a_while() {
    let site = Site::new();
    let first = site.join();
    first.subscribe("k", 1).await;
    let name = site.status().queue;
    drop(first);
    tokio::time::sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
    let second = site.join();
    second.subscribe("l", 1).await;
    assert_eq!(site.status().queue, name, "the same queue");
    drop(second);
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(1)).await;
    assert!(site.upstream.queues().is_empty() && site.all.status().is_empty());
    let third = site.join();
    third.subscribe("k", 1).await;
    assert_ne!(site.status().queue, name);
    assert_eq!(site.upstream.attempts.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_draining_server_closes_the_connection_when_its_clients_have_gone() {
    let site = Site::new();
    let subscriber = site.join();
    subscriber.subscribe("k", 1).await;
    site.all.drain();
    settle().await;
    assert_eq!(site.upstream.queues().len(), 1);
    drop(subscriber);
    settle().await;
    assert!(site.upstream.queues().is_empty() && site.all.status().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_client_leaves_nothing_behind() {
    let mut site = Site::new();
    let (one, other) = (site.join(), site.join());
    for (number, key) in ["a", "b.*", "b.#"].into_iter().enumerate() {
        one.subscribe(key, number as u64).await;
        one.subscribe(key, 10 + number as u64).await;
    }
    other.subscribe("b.*", 1).await;
    let inbox = Arc::downgrade(&one.inbox);
    drop(one);
    assert!(inbox.upgrade().is_none());
    site.publish("b.c", "x").await;
    assert_eq!(other.events(), ["1: x"]);
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(site.upstream.bindings(), ["b.*"]);
    assert_eq!((site.status().subscribers, site.status().copies), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn totals_stay_when_queues_end_and_are_replaced() {
    let mut site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.subscribe("k", 1).await;
    other.subscribe("k", 1).await;
    site.publish("k", "x").await;
    site.upstream.lose();
    settle().await;
    let counts = MultiplexedCounts { received: 1, copies: 2, dropped: 0, overflowed: 0, lost: 1 };
    assert_eq!(
        site.all.totals(),
        MultiplexedTotals { queues: 1, subscribers: 2, bindings: 1, waiting_bytes: 0, counts }
    );
    drop(one);
    // The queue is abandoned in the task's next turn, and is replaced then or before.
    site.all.drain();
    drop(other);
    assert_eq!(site.all.totals().counts, counts);
    settle().await;
    assert_eq!(site.all.totals(), MultiplexedTotals { counts, ..MultiplexedTotals::default() });
    let later = site.join();
    later.subscribe("k", 1).await;
    site.publish("k", "y").await;
    let counts = MultiplexedCounts { received: 2, copies: 3, ..counts };
    assert_eq!(
        site.all.totals(),
        MultiplexedTotals { queues: 1, subscribers: 1, bindings: 1, waiting_bytes: 0, counts }
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_replaced_before_its_task_has_ended_is_counted_once() {
    let mut site = Site::new();
    let first = site.join();
    first.subscribe("k", 1).await;
    site.publish("k", "x").await;
    let reported = site.all.totals().counts;
    assert_eq!((reported.received, reported.copies), (1, 1));
    // It has ended, and its task has had no turn since.
    let ended = site.all.running().remove(0);
    ended.end();
    let second = site.join();
    assert_eq!((site.all.totals().queues, site.all.totals().counts), (2, reported));
    drop((first, ended));
    second.subscribe("k", 1).await;
    assert_eq!((site.all.totals().queues, site.all.totals().counts), (1, reported));
}

#[tokio::test(start_paused = true)]
async fn other_credentials_share_no_queue() {
    let site = Site::new();
    let join = |secret: &[u8]| site.join_as(secret, InboxLimits::default(), Copies::PerClient);
    let subscribers = [join(b"one"), join(b"other"), join(b"one")];
    for subscriber in &subscribers {
        subscriber.subscribe("k", 1).await;
    }
    let mut subscribed: Vec<_> = site.all.status().iter().map(|queue| queue.subscribers).collect();
    subscribed.sort_unstable();
    assert_eq!((subscribed, site.upstream.queues().len()), (vec![1, 2], 2));
}

#[tokio::test(start_paused = true)]
async fn subscribers_of_different_exchanges_share_no_queue() {
    let mut site = Site::new();
    site.upstream.declare_exchange("events");
    let (one, other) = (site.join(), site.join_at("events"));
    one.subscribe("a", 1).await;
    other.subscribe("a", 1).await;
    assert_eq!(site.upstream.queues().len(), 2);
    site.publish("a", "by amq.topic").await;
    site.publish_to("events", "a", "by events");
    settle().await;
    assert_eq!((one.events(), other.events()), (vec!["1: by amq.topic".into()], vec!["1: by events".into()]));
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_missing_exchange_are_refused_and_bound_once_it_is_there() {
    let mut site = Site::new();
    let one = site.join_at("events");
    one.hold.subscribe("a", 1);
    one.hold.subscribe("b", 2);
    settle().await;
    let missing = "NOT_FOUND - no exchange 'events' in vhost '/'";
    let sorted = |mut events: Vec<String>| {
        events.sort_unstable();
        events
    };
    assert_eq!(sorted(one.events()), [format!("refused 1: {missing}"), format!("refused 2: {missing}")]);
    site.upstream.declare_exchange("events");
    one.subscribe("a", 3).await;
    site.publish_to("events", "a", "x");
    settle().await;
    assert_eq!(one.events(), ["3: x"]);
    // The next key reveals that the bindings were deleted with the exchange.
    site.upstream.delete_exchange("events");
    one.hold.subscribe("b", 4);
    // By then it has reconnected.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(sorted(one.events()), [format!("refused 3: {missing}"), format!("refused 4: {missing}")]);
}
