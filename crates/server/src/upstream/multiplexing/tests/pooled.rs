//! A shared queue with connections of a pool, which connects to the embedded broker in process.

use proxy::Pool;

use super::*;
use crate::simulated::InProcessConnector;
use crate::upstream::multiplexing::state::IDLE_TIMEOUT;

/// A site whose subscribers use a pool.
struct PooledSite {
    site: Site,
    pool: Arc<Pool>,
    connector: Arc<InProcessConnector>,
}

impl PooledSite {
    fn new() -> Self {
        let site = Site::new();
        let connector = InProcessConnector::to(&site.upstream.shared);
        let pool = connector.pool();
        Self { site, pool, connector }
    }

    fn join(&self, password: &str) -> Subscriber {
        let carrier = InnerOutbox::new(1);
        let inbox =
            SubscriberInbox::of_test(carrier.outbox(), InboxLimits::default(), Copies::PerSubscription);
        let login = UpstreamLogin {
            prefix: "stomp-subscription-",
            credentials: Arc::new(Credentials::plain(USER, password)),
            vhost: "/".into(),
        };
        let hold = self.site.all.join(&self.pool, (&login, &"amq.topic".into()), &inbox);
        Subscriber { carrier, inbox, hold }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_queue_lives_on_a_connection_of_the_pool() {
    let mut pooled = PooledSite::new();
    // The user has the password of the broker's default user.
    let (one, other) = (pooled.join("guest"), pooled.join("guest"));
    one.hold.subscribe("a.#", 1);
    one.hold.subscribe("private.1", 2);
    one.hold.subscribe("b", 3);
    other.hold.subscribe("a.#", 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut events = one.events();
    events.sort_unstable();
    assert!(events[0].starts_with("refused 2: ACCESS_REFUSED - access to topic 'private.1'"), "{events:?}");
    assert_eq!(events[1..], ["subscribed 1", "subscribed 3"]);
    assert_eq!(other.events(), ["subscribed 1"]);
    assert_eq!(pooled.site.upstream.bindings(), ["a.#", "b"]);
    for number in 0..3000 {
        pooled.site.publish_to("amq.topic", "a.b", &number.to_string());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let expected: Vec<_> = (0..3000).map(|number| format!("1: {number}")).collect();
    assert_eq!((one.events(), other.events()), (expected.clone(), expected));
    let queue = pooled.site.upstream.queues().remove(0);
    assert_eq!((queue.view().ready, queue.view().unacknowledged), (0, 0));

    pooled.connector.cut();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(pooled.site.status().lost, 1);
    assert_eq!(pooled.site.upstream.bindings(), ["a.#", "b"]);
    pooled.site.publish("b", "x").await;
    assert_eq!((one.events(), other.events()), (vec!["3: x".to_owned()], vec![]));

    one.hold.unsubscribe("b", 3);
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(pooled.site.upstream.bindings(), ["a.#"]);
    drop((one, other));
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(1)).await;
    assert!(pooled.site.upstream.queues().is_empty() && pooled.site.all.status().is_empty());
    assert_eq!(pooled.pool.metrics().dedicated_connections, 0);
}

#[tokio::test(start_paused = true)]
async fn a_login_refused_by_the_upstream_is_reported() {
    let pooled = PooledSite::new();
    let subscriber = pooled.join("wrong");
    subscriber.hold.subscribe("a", 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = subscriber.events();
    let start = "ended: ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.";
    assert!(events.len() == 1 && events[0].starts_with(start), "{events:?}");
}
