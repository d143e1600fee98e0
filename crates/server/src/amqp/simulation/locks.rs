//! The locks on a message's path: clients without a common queue share none, so that they scale with the cores.
//!
//! Locks of parking_lot itself are not seen here; `tests/tidy.py` lists the files that may have one.

use std::collections::BTreeSet;

use amqp::properties::{PERSISTENT, Properties};
use sync::{TakenLock, locks_taken};

use super::disk::{Durable, declare_durable};
use super::*;

/// A publisher with confirms and a consumer with acknowledgements of one queue.
struct Pair {
    publisher: Conversation,
    consumer: Conversation,
    queue: &'static str,
    /// The last delivery tag, for publisher and consumer alike.
    tag: u64,
}

impl Pair {
    fn new(shared: &Arc<Shared>, queue: &'static str) -> Self {
        let [mut publisher, mut consumer] = [0; 2].map(|_| Conversation::open(shared, 0));
        publisher.call(|out| {
            declare_durable(out, queue);
            frame::write_method(
                out,
                1,
                queue::Bind { queue, exchange: "amq.topic", routing_key: queue, ..Default::default() },
            );
            frame::write_method(out, 1, confirm::Select { no_wait: false });
        });
        consumer.call(|out| frame::write_method(out, 1, basic::Consume { queue, ..Default::default() }));
        Self { publisher, consumer, queue, tag: 0 }
    }

    /// Publishes a message to an exchange, and delivers and acknowledges it.
    fn pass(&mut self, exchange: &str, properties: &[u8], durable: &mut Durable) {
        self.tag += 1;
        let publish = basic::Publish { exchange, routing_key: self.queue, ..Default::default() };
        self.publisher.call(|out| write_content(out, 1, publish, properties, b"x", FRAME_MAX));
        assert_eq!(self.consumer.nudged(), ["basic.deliver"]);
        let ack = basic::Ack { delivery_tag: self.tag, multiple: false };
        self.consumer.call(|out| frame::write_method(out, 1, ack));
        // Another thread writes to the disk.
        std::thread::scope(|scope| scope.spawn(|| durable.write_all()).join().unwrap());
        self.publisher.nudged();
    }
}

/// The locks that two pairs with separate queues have in common once their routes are cached.
fn shared_locks(exchange: &str, properties: &[u8]) -> BTreeSet<TakenLock> {
    let mut durable = Durable::new(1, 1 << 20);
    let mut pairs = ["one", "other"].map(|queue| Pair::new(&durable.shared, queue));
    durable.write_all();
    for pair in &mut pairs {
        assert_eq!(pair.publisher.nudged(), ["queue.declare-ok", "queue.bind-ok", "confirm.select-ok"]);
        pair.pass(exchange, properties, &mut durable);
    }
    let [one, other] = pairs.each_mut().map(|pair| {
        let taken = locks_taken(|| (0..10).for_each(|_| pair.pass(exchange, properties, &mut durable)));
        let contents: Vec<_> = taken.iter().map(|lock| lock.contents).collect();
        assert!(contents.contains(&"broker::queue::state::QueueState"), "{contents:?}");
        assert!(contents.contains(&"transport::outbox::Inner"), "{contents:?}");
        taken
    });
    one.intersection(&other).copied().collect()
}

fn names(locks: &BTreeSet<TakenLock>) -> Vec<&'static str> {
    locks.iter().map(|lock| lock.contents).collect()
}

#[test]
fn transient_messages_of_different_queues_share_no_lock() {
    for exchange in ["", "amq.topic"] {
        assert_eq!(names(&shared_locks(exchange, NO_PROPERTIES)), [""; 0], "{exchange:?}");
    }
}

#[test]
fn durable_messages_of_different_queues_share_the_journal_alone() {
    let mut properties = Vec::new();
    Properties::default().with_delivery_mode(PERSISTENT).encode(&mut properties);
    let shared = shared_locks("", &properties);
    assert_eq!(names(&shared), ["store::journal::pending::PendingRecords", "store::waiters::WaiterList"]);
}

#[test]
fn a_route_that_is_not_known_is_looked_up_under_the_lock_of_its_virtual_host() {
    let shared = server();
    let mut clients = [0; 2].map(|_| Conversation::open(&shared, 0));
    let mut number = 0;
    let [one, other] = clients.each_mut().map(|client| {
        locks_taken(|| {
            number += 1;
            client.call(|out| publish(out, &format!("nowhere.{number}"), b"x", false));
        })
    });
    let shared = one.intersection(&other).copied().collect();
    assert_eq!(names(&shared), ["broker::topology::Topology"]);
}
