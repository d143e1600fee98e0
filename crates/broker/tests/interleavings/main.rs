//! Operations of several threads on one broker, in every possible interleaving (`make loom`).
//!
//! A thread that waits for a notification that never comes waits forever, which the model reports.

use std::sync::Arc;

use amqp::{Properties, RawTable};
use broker::*;
use sync::loom::sync::Notify;
use sync::loom::thread;
use sync::{Rank, explore};

type Mutex<T> = sync::Mutex<T, { Rank::Leaf as u8 }>;

const ME: SessionId = SessionId(1);
const NOW: Timestamp = Timestamp(1);

struct World {
    broker: Arc<Broker>,
    vhost: Arc<VirtualHost>,
    publisher: Publisher,
}

fn world(deadline_waker: Option<Arc<dyn Waiter>>) -> World {
    let broker = Broker::new(BrokerConfig { deadline_waker, ..BrokerConfig::default() });
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let vhost = broker.open(&guest, "/").unwrap();
    let publisher = vhost.publisher(&guest);
    World { broker, vhost, publisher }
}

fn declare(vhost: &Arc<VirtualHost>, name: &str) -> Arc<Queue> {
    vhost.declare_queue(ME, &QueueDeclare { name, ..Default::default() }, NOW).unwrap().queue
}

fn bind(vhost: &VirtualHost, queue: &str) {
    let binding = Binding {
        source: "amq.direct",
        destination: queue,
        routing_key: "k",
        arguments: RawTable::default(),
    };
    vhost.bind_queue(ME, &binding).unwrap();
}

fn publish(publisher: &mut Publisher, exchange: &str, key: &str, expiration: Option<&str>) {
    let mut properties = Vec::new();
    let plain = Properties::default();
    expiration.map_or(plain, |millis| plain.with_expiration(millis)).encode(&mut properties);
    let body = Body::Copied(b"m");
    publisher.publish(Publish { exchange, routing_key: key, properties: &properties, body }, NOW).unwrap();
    publisher.flush(NOW);
}

/// A consumer that accepts one delivery at a time.
struct OneByOne {
    inbox: Mutex<Inbox>,
    came: Notify,
}

#[derive(Default)]
struct Inbox {
    delivery: Option<Delivery>,
    full: bool,
}

impl Consumer for OneByOne {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        let mut inbox = self.inbox.lock();
        if inbox.delivery.is_none() {
            inbox.delivery = offer.next();
            self.came.notify();
        }
        inbox.full = true;
        ConsumerCapacity::Full
    }

    fn cancelled(&self) {}
}

impl OneByOne {
    fn wait(&self) -> (Delivery, bool) {
        loop {
            let mut inbox = self.inbox.lock();
            if let Some(delivery) = inbox.delivery.take() {
                return (delivery, std::mem::take(&mut inbox.full));
            }
            drop(inbox);
            self.came.wait();
        }
    }
}

/// Adds a consumer, and resumes it.
fn consume(queue: &Arc<Queue>, consumer: Arc<dyn Consumer>, no_ack: bool) -> ConsumerId {
    let arguments = RawTable::default();
    let spec = ConsumerSpec { consumer, session: ME, tag: "c", no_ack, exclusive: false, arguments };
    let id = queue.consume(spec).unwrap();
    queue.resume(id, NOW);
    id
}

#[test]
fn a_consumer_resumed_while_messages_arrive_gets_them_all() {
    explore(2, || {
        let World { vhost, mut publisher, .. } = world(None);
        let queue = declare(&vhost, "q");
        let consumer = Arc::new(OneByOne { inbox: Mutex::default(), came: Notify::new() });
        let id = consume(&queue, consumer.clone(), false);
        let publishing = thread::spawn(move || {
            (0..2).for_each(|_| publish(&mut publisher, "", "q", None));
        });
        for _ in 0..2 {
            let (delivery, full) = consumer.wait();
            queue.ack(vec![delivery], NOW);
            if full {
                queue.resume(id, NOW);
            }
        }
        publishing.join().unwrap();
        assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
    });
}

/// Publishes while a queue is bound, with the route to the other queues cached or not.
fn publish_while_binding(known: bool) {
    let World { vhost, mut publisher, .. } = world(None);
    declare(&vhost, "a");
    let queue = declare(&vhost, "b");
    bind(&vhost, "a");
    if known {
        publish(&mut publisher, "amq.direct", "k", None);
    }
    let answered = Arc::new(Mutex::new(false));
    let (reported, other) = (Arc::clone(&answered), Arc::clone(&vhost));
    let binding = thread::spawn(move || {
        bind(&other, "b");
        *reported.lock() = true;
    });
    let answered = *answered.lock();
    publish(&mut publisher, "amq.direct", "k", None);
    assert!(!answered || queue.message_count() == 1, "a stale route was used");
    binding.join().unwrap();
    let before = queue.message_count();
    publish(&mut publisher, "amq.direct", "k", None);
    assert_eq!(queue.message_count(), before + 1, "a stale route was remembered");
}

#[test]
fn messages_published_after_a_bind_was_answered_reach_the_new_queue() {
    explore(2, || publish_while_binding(true));
}

#[test]
fn a_route_found_during_a_bind_is_not_cached_beyond_it() {
    explore(2, || publish_while_binding(false));
}

#[test]
fn messages_published_after_a_queue_was_recreated_reach_the_new_one() {
    explore(2, || {
        let World { vhost, mut publisher, .. } = world(None);
        declare(&vhost, "q");
        publish(&mut publisher, "", "q", None);
        let renewed = Arc::new(Mutex::new(None));
        let (reported, other) = (Arc::clone(&renewed), Arc::clone(&vhost));
        let renewing = thread::spawn(move || {
            other.delete_queue(ME, "q", false, false).unwrap();
            let queue = declare(&other, "q");
            *reported.lock() = Some(queue);
        });
        let new = renewed.lock().clone();
        publish(&mut publisher, "", "q", None);
        if let Some(new) = new {
            assert_eq!(new.message_count(), 1, "a stale route was used");
        }
        renewing.join().unwrap();
    });
}

#[test]
fn the_timer_is_woken_for_the_first_deadline_and_keeps_later_ones() {
    explore(3, || {
        let changed = Arc::new(Notify::new());
        let waker = Arc::clone(&changed);
        let World { broker, vhost, mut publisher } = world(Some(Arc::new(move || waker.notify())));
        let queue = declare(&vhost, "q");
        let publishing = thread::spawn(move || {
            publish(&mut publisher, "", "q", Some("5"));
            publish(&mut publisher, "", "q", Some("7"));
        });
        while broker.metrics().messages_enqueued.get() < 2 || queue.message_count() > 0 {
            match broker.next_deadline() {
                None => changed.wait(),
                Some(due) => broker.expire(due),
            }
        }
        publishing.join().unwrap();
        assert_eq!(broker.next_deadline(), None);
    });
}

#[test]
fn the_timer_is_woken_for_an_earlier_deadline_than_the_one_it_waits_for() {
    explore(3, || {
        let changed = Arc::new(Notify::new());
        let waker = Arc::clone(&changed);
        let World { broker, vhost, publisher } = world(Some(Arc::new(move || waker.notify())));
        declare(&vhost, "far");
        let near = declare(&vhost, "near");
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let publishing = [(vhost.publisher(&guest), "far", "1000"), (publisher, "near", "5")].map(
            |(mut publisher, key, expiration)| {
                thread::spawn(move || publish(&mut publisher, "", key, Some(expiration)))
            },
        );
        let soon = NOW.after(5);
        while broker.next_deadline().is_none_or(|due| due > soon) {
            changed.wait();
        }
        broker.expire(soon);
        assert_eq!(near.message_count(), 0);
        publishing.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(broker.next_deadline(), Some(NOW.after(1000)));
    });
}

/// A consumer whose connection is never idle.
struct Behind(OneByOne);

impl Consumer for Behind {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        self.0.accept(offer)
    }

    fn cancelled(&self) {}

    fn busy_since_rest(&self) -> Option<u32> {
        Some(0)
    }
}

#[test]
fn a_publisher_that_is_held_while_consumers_catch_up_is_woken() {
    explore(2, || {
        let World { vhost, mut publisher, .. } = world(None);
        let queue = declare(&vhost, "q");
        let consumer = Arc::new(Behind(OneByOne { inbox: Mutex::default(), came: Notify::new() }));
        let id = consume(&queue, consumer.clone(), true);
        // One message is delivered, and the other three are one more than may wait (`queue::credit`). It takes two
        // samples of the consumer.
        let mut hold = None;
        for at in 0..5 {
            let publish =
                Publish { exchange: "", routing_key: "q", properties: &[0, 0], body: Body::Copied(b"m") };
            let now = NOW.after(2 * at);
            publisher.publish(publish, now).unwrap();
            hold = publisher.flush(now).hold;
        }
        let hold = hold.expect("the backlog has grown");
        let held = thread::spawn(move || {
            let woken = Arc::new(Notify::new());
            let waiter: Arc<dyn Waiter> = Arc::new({
                let woken = Arc::clone(&woken);
                move || woken.notify()
            });
            if hold.wait(&waiter, NOW) {
                woken.wait();
            }
        });
        for _ in 0..5 {
            consumer.0.wait();
            queue.resume(id, NOW);
        }
        held.join().unwrap();
        queue.cancel(id, NOW);
    });
}
