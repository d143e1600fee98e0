//! Messages and answers for very many subscribers, over several turns.

use bytes::Bytes;
use sync::work;

use super::*;
use crate::upstream::multiplexing::fan_out::FanOut;
use crate::upstream::multiplexing::inbox::MultiplexedMessage;
use crate::upstream::multiplexing::queue::MultiplexedQueue;

/// A message for all of them takes several turns.
const SUBSCRIBERS: usize = 10_000;

/// The permitted excess over a turn's budget, in nanoseconds: one copy for a client with some subscriptions.
const TOLERANCE: u64 = 2_000;

struct Crowd {
    queue: Arc<MultiplexedQueue>,
    subscribers: Vec<(Arc<SubscriberInbox>, MultiplexedSubscriber)>,
    carrier: InnerOutbox,
}

impl Crowd {
    /// A declared queue, whose subscribers have requested `keys`.
    fn new(keys: &[&str]) -> Self {
        let credentials = Arc::new(Credentials::plain(USER, *b""));
        let queue = MultiplexedQueue::new(
            UpstreamLogin { prefix: "q-", credentials, vhost: "/".into() },
            &"amq.topic".into(),
        );
        queue.handle_declared(&"q".into());
        let mut crowd = Self { queue, subscribers: Vec::new(), carrier: InnerOutbox::new(1) };
        for _ in 0..SUBSCRIBERS {
            crowd.join(keys);
        }
        crowd
    }

    fn join(&mut self, keys: &[&str]) {
        let inbox =
            SubscriberInbox::of_test(self.carrier.outbox(), InboxLimits::default(), Copies::PerClient);
        let hold = self.queue.join(&inbox).unwrap();
        keys.iter().enumerate().for_each(|(number, key)| hold.subscribe(key, number as u64));
        self.subscribers.push((inbox, hold));
    }

    /// Answers all requests, and passes the answers on.
    fn bind_all(&mut self) -> usize {
        let mut requests = 0;
        while self.queue.take_requests(|_| requests += 1) {}
        (0..requests).for_each(|_| self.queue.handle_bound(transport::now()).unwrap());
        self.hand_out(None, |_, _| {})
    }

    /// Passes messages and answers on, with `between` called between turns; returns the number of turns.
    fn hand_out(&mut self, routing_key: Option<&str>, mut between: impl FnMut(&mut Self, usize)) -> usize {
        let mut current = routing_key.and_then(|key| {
            let matched = self.queue.matching("amq.topic", key, &[])?;
            Some(FanOut::new(message(key), matched))
        });
        for turns in 1.. {
            let turn = work::Turn::begin();
            let is_done = self.queue.hand_out(&mut current);
            assert!(turn.spent() < u64::from(work::TURN) + TOLERANCE, "{} ns", turn.spent());
            drop(turn);
            if is_done {
                return turns;
            }
            between(self, turns);
        }
        unreachable!()
    }

    /// The events of a subscriber.
    fn events(&self, subscriber: usize) -> Vec<String> {
        let inbox = &self.subscribers[subscriber].0;
        std::iter::from_fn(|| inbox.take(true)).map(|event| describe(&event)).collect()
    }
}

/// Bytes of a subscriber with one subscription: its inbox, and its entries in the queue's tables.
const SUBSCRIBER: u64 = 512;

#[tokio::test(start_paused = true)]
async fn a_subscriber_takes_little() {
    let mut crowd = Crowd { subscribers: Vec::with_capacity(SUBSCRIBERS), ..Crowd::new(&[]) };
    let taken = allocation_counter::measure(|| (0..SUBSCRIBERS).for_each(|_| crowd.join(&["a.b"])));
    let each = u64::try_from(taken.bytes_current).unwrap() / SUBSCRIBERS as u64;
    assert!((1..=SUBSCRIBER).contains(&each), "{each} bytes");
}

fn message(key: &str) -> MultiplexedMessage {
    MultiplexedMessage::new("amq.topic", key, (Bytes::new(), Bytes::from_static(b"x")), false)
}

#[tokio::test(start_paused = true)]
async fn a_message_for_very_many_takes_several_turns_and_reaches_each_once() {
    let mut crowd = Crowd::new(&["a.*", "a.#"]);
    assert!(crowd.bind_all() > 5);
    for subscriber in 0..SUBSCRIBERS {
        assert_eq!(crowd.events(subscriber), ["subscribed 0", "subscribed 1"]);
    }
    let turns = crowd.hand_out(Some("a.b"), |_, _| {});
    assert!(turns > 5, "{turns} turns");
    for subscriber in 0..SUBSCRIBERS {
        assert_eq!(crowd.events(subscriber), ["0+1: x"]);
    }
    assert_eq!(crowd.queue.status().copies, 2 * SUBSCRIBERS as u64);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_acknowledged_when_it_has_reached_all() {
    let mut site = Site::new();
    let subscribers: Vec<_> = (0..SUBSCRIBERS).map(|_| site.join()).collect();
    subscribers.iter().for_each(|each| each.hold.subscribe("k", 1));
    settle().await;
    let queue = site.upstream.queues().remove(0);
    site.publish_to("amq.topic", "k", "x");
    let (mut under_way, all) = (0, SUBSCRIBERS as u64);
    while site.status().copies < all {
        let view = queue.view();
        assert_eq!((view.ready, view.unacknowledged), (0, 1));
        under_way += u64::from(site.status().copies > 0);
        tokio::task::yield_now().await;
    }
    assert!(under_way > 5, "seen {under_way} times");
    settle().await;
    assert_eq!(queue.view().unacknowledged, 0);
}

#[tokio::test(start_paused = true)]
async fn subscribers_come_and_go_between_the_turns_of_a_message() {
    let mut crowd = Crowd::new(&["a.*", "a.#"]);
    crowd.bind_all();
    (0..SUBSCRIBERS).for_each(|subscriber| _ = crowd.events(subscriber));
    let mut others = 0;
    crowd.hand_out(Some("a.b"), |crowd, turns| {
        // One leaves and another takes its slot; one has unsubscribed from one of its keys.
        drop(crowd.subscribers.swap_remove(turns));
        crowd.join(&["#"]);
        let changes = &crowd.subscribers[SUBSCRIBERS / 2 + turns].1;
        changes.unsubscribe("a.*", 0);
        changes.subscribe("a.*", 9);
        others += 1;
    });
    assert!(others > 5);
    let (mut once, mut none) = (0, 0);
    for subscriber in 0..crowd.subscribers.len() {
        let events = crowd.events(subscriber);
        match events.iter().filter(|event| event.ends_with(": x")).count() {
            0 => none += 1,
            1 => once += 1,
            _ => panic!("{events:?}"),
        }
    }
    assert!(none <= others, "{none} got no message, but only {others} joined later");
    assert_eq!(once + none, SUBSCRIBERS);
}

#[tokio::test(start_paused = true)]
async fn a_message_for_the_few_that_very_many_have_left_looks_at_these_alone() {
    let mut crowd = Crowd::new(&["a.*", "a.#"]);
    crowd.bind_all();
    let mut last = crowd.subscribers.split_off(SUBSCRIBERS - 10);
    crowd.subscribers.truncate(10);
    crowd.subscribers.append(&mut last);
    (0..20).for_each(|subscriber| _ = crowd.events(subscriber));
    // The first message shrinks the slots.
    assert_eq!(crowd.hand_out(Some("a.b"), |_, _| {}), 1);
    let turn = work::Turn::begin();
    let matched = crowd.queue.matching("amq.topic", "a.b", &[]).unwrap();
    assert!(crowd.queue.hand_out(&mut Some(FanOut::new(message("a.b"), matched))));
    assert!(turn.spent() < 20_000, "{} ns", turn.spent());
    drop(turn);
    for subscriber in 0..20 {
        assert_eq!(crowd.events(subscriber), ["0+1: x", "0+1: x"]);
    }
    // They can still leave, unsubscribe and join.
    crowd.subscribers.truncate(15);
    crowd.subscribers[3].1.unsubscribe("a.*", 0);
    crowd.join(&["a.#"]);
    crowd.hand_out(Some("a.c"), |_, _| {});
    for subscriber in 0..16 {
        let expected: &[&str] = match subscriber {
            3 => &["1: x"],
            15 => &["subscribed 0", "0: x"],
            _ => &["0+1: x"],
        };
        assert_eq!(crowd.events(subscriber), expected, "{subscriber}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_very_many_takes_several_turns() {
    let mut crowd = Crowd::new(&["a", "b"]);
    let mut requests = 0;
    while crowd.queue.take_requests(|_| requests += 1) {}
    assert_eq!(requests, 2);
    let fault = Fault::new(ReplyCode::AccessRefused, "no");
    assert_eq!(&*crowd.queue.handle_refused(&fault).unwrap(), "a");
    // The other request was ignored, and is sent again.
    assert!(crowd.queue.take_requests(|_| requests += 1));
    crowd.queue.handle_bound(transport::now()).unwrap();
    let again = |crowd: &mut Crowd, turns| {
        if turns == 1 {
            // Its subscription was removed before the refusal was reported, and added again.
            let hold = &crowd.subscribers[SUBSCRIBERS - 1].1;
            hold.unsubscribe("a", 0);
            hold.subscribe("a", 7);
        }
    };
    assert!(crowd.hand_out(None, again) > 5);
    crowd.bind_all();
    let refused = "refused 0: ACCESS_REFUSED - no";
    for subscriber in 0..SUBSCRIBERS - 1 {
        assert_eq!(crowd.events(subscriber), [refused, "subscribed 1"]);
    }
    assert_eq!(crowd.events(SUBSCRIBERS - 1), [refused, "subscribed 1", "subscribed 7"]);
}
