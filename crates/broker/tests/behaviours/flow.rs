//! Throttling of publishers while consumers lag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::*;

use crate::world::*;

/// A consumer whose connection is never idle.
struct Connected(Arc<Recorder>);

impl Consumer for Connected {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        self.0.accept(offer)
    }

    fn cancelled(&self) {
        self.0.cancelled();
    }

    fn busy_since_rest(&self) -> Option<u32> {
        Some(0)
    }
}

impl Connected {
    /// Registers a consumer of `session` without capacity.
    fn to(queue: &Queue, session: SessionId) -> (Arc<Self>, ConsumerId) {
        let connected = Arc::new(Self(Recorder::new(0)));
        let none = table(&[]);
        let spec = ConsumerSpec { consumer: connected.clone(), session, ..spec(&connected.0, &none) };
        let id = queue.consume(spec).unwrap();
        (connected, id)
    }

    /// Takes the next `count` messages.
    fn take(&self, queue: &Queue, id: ConsumerId, count: usize, now: Timestamp) -> Vec<Delivery> {
        *self.0.capacity.lock() = count;
        queue.resume(id, now);
        std::mem::take(&mut *self.0.got.lock())
    }
}

/// Publishes `count` messages to the queue `q` as one batch of input; returns the hold.
fn publish(world: &mut World, count: usize) -> Option<Box<ThrottledPublisher>> {
    for _ in 0..count {
        let publish =
            Publish { exchange: "", routing_key: "q", properties: &[0, 0], body: Body::Copied(b"m") };
        world.publisher.publish(publish, world.now).unwrap();
    }
    world.publisher.flush(world.now).hold
}

/// A waiter, and whether it has been woken.
fn waiter() -> (Arc<dyn Waiter>, Arc<AtomicBool>) {
    let woken = Arc::new(AtomicBool::new(false));
    let waiter = {
        let woken = Arc::clone(&woken);
        Arc::new(move || woken.store(true, Ordering::Relaxed))
    };
    (waiter, woken)
}

#[test]
fn redeliveries_do_not_count_as_progress_of_consumers() {
    let mut world = world();
    let queue = world.queue("q");
    let (consumer, id) = Connected::to(&queue, OTHER);
    // These messages are redelivered again and again.
    assert_eq!(publish(&mut world, 1_000), None);
    let returned = consumer.take(&queue, id, 1_000, world.now);
    queue.requeue(returned, Returned::Released, world.now);
    let hold = hold_of(&mut world);
    let (waiter, woken) = waiter();
    assert!(hold.wait(&waiter, world.now));
    for _ in 0..5 {
        world.wait(10);
        let returned = consumer.take(&queue, id, 1_000, world.now);
        assert_eq!(returned.len(), 1_000);
        queue.requeue(returned, Returned::Released, world.now);
    }
    assert!(woken.load(Ordering::Relaxed));
    assert_eq!(publish(&mut world, 20_000), None, "no publisher is held, since that did not help");
}

/// Publishes until there is a hold.
fn hold_of(world: &mut World) -> Box<ThrottledPublisher> {
    for _ in 0..100 {
        if let Some(hold) = publish(world, 256) {
            return hold;
        }
        world.wait(1);
    }
    panic!("the publisher is never held");
}

#[test]
fn a_session_that_consumes_from_the_queue_is_not_held_by_it() {
    let mut world = world();
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    world.publisher = world.vhost.publisher(&guest).in_session(ME);
    let queue = world.queue("q");
    let (_other, _) = Connected::to(&queue, OTHER);
    let (_own, id) = Connected::to(&queue, ME);
    for _ in 0..100 {
        assert_eq!(publish(&mut world, 256), None);
        world.wait(1);
    }
    queue.cancel(id, world.now);
    hold_of(&mut world);
}

#[test]
fn a_publisher_is_held_once_in_a_turns_messages_however_it_flushes() {
    let mut world = world();
    let queue = world.queue("q");
    let (_consumer, _) = Connected::to(&queue, OTHER);
    hold_of(&mut world);
    let mut since = 0;
    while publish(&mut world, 1).is_none() {
        since += 1;
    }
    // The last hold was returned without a wait.
    assert_eq!(since, 511);
    // Larger bodies count by their size.
    let body = [0; 64 << 10];
    let mut large = 0;
    loop {
        let publish =
            Publish { exchange: "", routing_key: "q", properties: &[0, 0], body: Body::Copied(&body) };
        world.publisher.publish(publish, world.now).unwrap();
        large += 1;
        if world.publisher.flush(world.now).hold.is_some() {
            break;
        }
    }
    assert_eq!(large, 8);
}
