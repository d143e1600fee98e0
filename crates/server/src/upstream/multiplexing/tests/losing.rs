//! Upstreams that are lost, do not answer, or refuse.

use super::*;
use crate::upstream::multiplexing::state::IDLE_TIMEOUT;

/// Longer than the longest pause between two attempts.
const A_WHILE: Duration = Duration::from_secs(6);

fn unreachable() -> OpenError {
    OpenError::Unreachable(Fault::new(ReplyCode::ConnectionForced, "upstream unreachable"))
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_opened_again_and_everything_bound_again() {
    let mut site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.subscribe("a", 1).await;
    one.subscribe("b.*", 2).await;
    other.subscribe("a", 1).await;
    let before = site.status();
    for round in 1..=3 {
        site.upstream.lose();
        settle().await;
        assert_eq!((site.status().queue, site.upstream.queues().len()), (None, 0));
        site.publish("a", "published in between").await;
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(site.upstream.bindings(), ["a", "b.*"]);
        assert!((one.events(), other.events()) == (vec![], vec![]), "subscribers get no event");
        site.publish("a", "x").await;
        site.publish("b.c", "y").await;
        assert_eq!((one.events(), other.events()), (vec!["1: x".into(), "2: y".into()], vec!["1: x".into()]));
        assert_eq!(site.status().lost, round);
        assert_ne!(site.status().queue, before.queue);
    }
}

#[tokio::test(start_paused = true)]
async fn subscriptions_made_during_an_outage_are_answered_after_it() {
    let mut site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.subscribe("a", 1).await;
    one.subscribe("b", 2).await;
    site.upstream.lose();
    *site.upstream.refusal.lock() = Some(unreachable());
    settle().await;
    other.hold.subscribe("a", 1);
    other.hold.subscribe("c", 2);
    other.hold.subscribe("d", 3);
    other.hold.subscribe("private.1", 4);
    other.hold.unsubscribe("d", 3);
    one.hold.unsubscribe("b", 2);
    tokio::time::sleep(10 * A_WHILE).await;
    assert_eq!(other.events(), [""; 0], "not even of a key that was bound before");
    let attempts = site.upstream.attempts.load(Ordering::Relaxed);
    assert!((12..30).contains(&attempts), "{attempts} attempts in a minute");
    *site.upstream.refusal.lock() = None;
    tokio::time::sleep(A_WHILE).await;
    let mut events = other.events();
    events.sort_unstable();
    assert_eq!(events[1..], ["subscribed 1", "subscribed 2"]);
    assert!(events[0].starts_with("refused 4: ACCESS_REFUSED"), "{events:?}");
    assert_eq!(site.upstream.bindings(), ["a", "c"]);
    site.publish("a", "x").await;
    assert_eq!((one.events(), other.events()), (vec!["1: x".to_owned()], vec!["1: x".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_key_refused_when_it_is_rebound_is_reported() {
    let site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.subscribe("a", 1).await;
    other.subscribe("b", 1).await;
    let (exchange, write, read) = ("amq.topic".into(), ".*".into(), "^b".into());
    let narrow = TopicPermissions { exchange, write, read };
    site.upstream.vhost().set_topic_permissions(USER, &narrow).unwrap();
    site.upstream.lose();
    tokio::time::sleep(A_WHILE).await;
    let events = one.events();
    assert!(events.len() == 1 && events[0].starts_with("refused 1: ACCESS_REFUSED"), "{events:?}");
    assert_eq!((other.events(), site.upstream.bindings()), (vec![], vec!["b".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_login_that_is_refused_for_good_ends_its_subscribers() {
    let site = Site::new();
    let (one, other) = (site.join(), site.join());
    one.subscribe("a", 1).await;
    other.hold.subscribe("b", 1);
    let text = "Login was refused using authentication mechanism PLAIN.";
    *site.upstream.refusal.lock() = Some(OpenError::Refused(Fault::new(ReplyCode::AccessRefused, text)));
    settle().await;
    other.events();
    site.upstream.lose();
    tokio::time::sleep(A_WHILE).await;
    for subscriber in [&one, &other] {
        assert_eq!(subscriber.events(), [format!("ended: ACCESS_REFUSED - {text}")]);
        subscriber.hold.subscribe("c", 2);
        assert_eq!(subscriber.events(), [""; 0]);
    }
    assert!(site.all.status().is_empty());
    *site.upstream.refusal.lock() = None;
    let later = site.join();
    later.subscribe("a", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_queue_declaration_is_reported_to_the_subscriber() {
    let site = Site::new();
    let permissions = Permissions { configure: "^$".into(), ..Permissions::all() };
    site.upstream.vhost().set_permissions(USER, Some(&permissions)).unwrap();
    let subscriber = site.join();
    subscriber.hold.subscribe("a", 1);
    settle().await;
    let events = subscriber.events();
    assert!(
        events.len() == 1
            && events[0].starts_with("ended: ACCESS_REFUSED - access to queue 'stomp-subscription-"),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn attempts_end_with_the_last_subscriber() {
    let site = Site::new();
    *site.upstream.refusal.lock() = Some(unreachable());
    let subscriber = site.join();
    subscriber.hold.subscribe("a", 1);
    tokio::time::sleep(A_WHILE).await;
    drop(subscriber);
    tokio::time::sleep(2 * IDLE_TIMEOUT).await;
    let attempts = site.upstream.attempts.load(Ordering::Relaxed);
    tokio::time::sleep(10 * A_WHILE).await;
    assert_eq!(site.upstream.attempts.load(Ordering::Relaxed), attempts);
    assert!(site.all.status().is_empty());
}
