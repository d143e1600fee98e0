//! Subscribers on several threads at once.

use std::future::poll_fn;
use std::task::Poll;

use super::*;

const CLIENTS: u64 = 8;
const ROUNDS: u64 = 100;

/// Far more than the whole test takes.
const PATIENCE: Duration = Duration::from_secs(60);

impl Subscriber {
    /// Waits for this event, after any others.
    async fn expect(&self, expected: &str) {
        let comes = poll_fn(|cx| {
            self.carrier.register(cx.waker());
            self.carrier.take_nudge();
            let mut events = std::iter::from_fn(|| self.inbox.take(true));
            if events.any(|event| describe(&event) == expected) { Poll::Ready(()) } else { Poll::Pending }
        });
        let in_time = tokio::time::timeout(PATIENCE, comes).await;
        assert!(in_time.is_ok(), "{expected} has not arrived");
    }
}

/// Subscribes repeatedly, to its own key and to a common one, and publishes to both.
async fn come_and_go(mut site: Site, client: u64) {
    for round in 0..ROUNDS {
        let subscriber = site.join();
        let (own, common) = (format!("own.{client}.{}", round % 3), format!("common.{}", round % 5));
        subscriber.hold.subscribe(&own, 1);
        subscriber.expect("subscribed 1").await;
        subscriber.hold.subscribe(&common, 2);
        subscriber.hold.subscribe(&format!("private.{client}"), 3);
        subscriber.expect("subscribed 2").await;
        site.publish_to("amq.topic", &own, &format!("{client} {round}"));
        subscriber.expect(&format!("1: {client} {round}")).await;
        subscriber.hold.unsubscribe(&own, 1);
        site.publish_to("amq.topic", &common, &format!("{client} {round}"));
        subscriber.expect(&format!("2: {client} {round}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn subscribers_of_several_threads_get_their_answers_and_messages() {
    let first = Site::new();
    let clients = (0..CLIENTS).map(|client| tokio::spawn(come_and_go(first.another(), client)));
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let status = first.status();
    assert_eq!((status.subscribers, status.lost, status.overflowed), (0, 0, 0));
    assert_eq!(status.received, 2 * CLIENTS * ROUNDS);
}
