//! Messages that consumers have returned are paged out as well, and are redelivered unchanged.

use std::sync::Arc;

use amqp::{FieldValue, Properties};
use broker::*;

use crate::dead_letters::dead_letter_to;
use crate::disk_world::{DiskWorld, WakeCounter, paging, paging_as};
use crate::paging::{MANY, assert_mostly_on_disk, bodies, body, publish};
use crate::world::*;

/// A queue with [`MANY`] persistent messages.
fn persistent(mut disk_world: DiskWorld, arguments: &[(&str, FieldValue)]) -> (DiskWorld, Arc<Queue>) {
    let queue = disk_world.durable("q", arguments);
    (0..MANY).for_each(|number| drop(disk_world.publish("", "q", &body(number))));
    (disk_world, queue)
}

/// Takes `count` messages, and gives them back at once.
fn take_and_return(disk_world: &DiskWorld, queue: &Queue, count: usize, returned: Returned) {
    let taken: Vec<_> = std::iter::from_fn(|| disk_world.fetch(queue, false)).take(count).collect();
    queue.requeue(taken, returned, disk_world.world.now);
}

#[test]
fn a_queue_pages_out_messages_that_a_consumer_returns() {
    let (mut disk_world, queue) = persistent(paging(31, 0), &[]);
    take_and_return(&disk_world, &queue, MANY, Returned::Failed);
    assert!(disk_world.world.broker.paging_status().resident > (MANY * 2000) as u64);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    assert!(disk_world.world.vhost.has_capacity());
    // Later messages are added behind them.
    (MANY..MANY + 100).for_each(|number| drop(disk_world.publish("", "q", &body(number))));
    disk_world.page();
    assert_eq!(queue.message_count(), MANY as u64 + 100);
    let back: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, true)).collect();
    assert_eq!(back.iter().map(text).collect::<Vec<_>>(), bodies(0..MANY + 100));
    assert!(back.iter().enumerate().all(|(number, delivery)| delivery.redelivered() == (number < MANY)));
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!((paging_status.resident, paging_status.paged_messages, paging_status.paged_bytes), (0, 0, 0));
    disk_world.sync();
    assert_eq!(disk_world.crash().drain("q"), Vec::<String>::new());
}

#[test]
fn returned_messages_keep_their_order_and_unstored_ones_stay_in_memory() {
    let mut disk_world = paging(32, 0);
    let queue = disk_world.durable("q", &[]);
    publish(&mut disk_world, 0..MANY);
    let taken: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(400).collect();
    let (odd, even): (Vec<_>, Vec<_>) = taken.into_iter().partition(|delivery| delivery.position() % 2 == 1);
    for half in [odd, even] {
        queue.requeue(half, Returned::Failed, disk_world.world.now);
        disk_world.page();
    }
    let paging_status = disk_world.world.broker.paging_status();
    assert!(
        paging_status.paged_messages > 300 && paging_status.resident < (MANY * 2000) as u64 / 2,
        "{paging_status:?}"
    );
    // A few are redelivered, and return while the next ones are on disk.
    for _ in 0..3 {
        take_and_return(&disk_world, &queue, 150, Returned::Failed);
        disk_world.page();
    }
    assert_eq!(disk_world.drain("q"), bodies(0..MANY));
}

#[test]
fn messages_returned_one_at_a_time_are_not_reread_repeatedly() {
    let (disk_world, queue) = persistent(paging(33, 0), &[]);
    take_and_return(&disk_world, &queue, MANY, Returned::Failed);
    disk_world.page();
    for _ in 0..MANY {
        let delivery = disk_world.fetch(&queue, false).unwrap();
        queue.ack(vec![delivery], disk_world.world.now);
        disk_world.page();
    }
    let read = disk_world.world.broker.metrics().messages_paged_in.get();
    assert!(read < 30 * MANY as u64, "{read}");
    assert_eq!(queue.message_count(), 0);
}

#[test]
fn a_purge_settles_returned_messages_on_disk() {
    let (mut disk_world, queue) = persistent(paging(34, 0), &[]);
    take_and_return(&disk_world, &queue, MANY / 2, Returned::Failed);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    let unacked = disk_world.fetch(&queue, false);
    assert_eq!(queue.purge().0, MANY as u64 - 1);
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!((paging_status.resident, paging_status.paged_messages, paging_status.paged_bytes), (0, 0, 0));
    disk_world.sync();
    assert_eq!(disk_world.crash().drain("q"), bodies(0..1), "what was not ready");
    drop(unacked);
}

#[test]
fn returned_messages_expire_in_order() {
    let [exchange, key] = dead_letter_to("dead");
    let arguments = [exchange, key, ("x-message-ttl", FieldValue::I32(1000))];
    let (mut disk_world, queue) = persistent(paging(35, 0), &arguments);
    disk_world.durable("dead", &[]);
    take_and_return(&disk_world, &queue, MANY, Returned::Failed);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    disk_world.world.wait(999);
    disk_world.page();
    assert_eq!(queue.message_count(), MANY as u64, "a moment before");
    disk_world.world.wait(1);
    while queue.message_count() > 0 {
        disk_world.world.wait(0);
        assert!(disk_world.page());
    }
    assert_eq!(disk_world.drain("dead"), bodies(0..MANY));
}

#[test]
fn quorum_queues_of_rabbitmq_4_know_their_counts_and_their_order() {
    let quorum = [("x-queue-type", FieldValue::text("quorum"))];
    let (mut disk_world, queue) = persistent(paging_as(Compatibility::V4, 36, 0), &quorum);
    // 200 deliveries fail; then these messages and 200 others are released, in this order.
    take_and_return(&disk_world, &queue, 200, Returned::Failed);
    let mut taken: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(400).collect();
    taken.rotate_left(200);
    queue.requeue(taken, Returned::Released, disk_world.world.now);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    disk_world.publish_with(
        "",
        "q",
        &body(MANY),
        Properties::default().with_delivery_mode(2).with_priority(31),
    );
    let back: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).collect();
    let numbers = (200..400).chain(0..200).chain([MANY]).chain(400..MANY);
    assert_eq!(back.iter().map(text).collect::<Vec<_>>(), bodies(numbers));
    let counts = |delivery: &Delivery| {
        let properties = delivery.properties(&queue, false);
        let headers = Properties::decode(&properties).unwrap().headers.map(|headers| headers.decode());
        let headers = headers.unwrap_or_default();
        let count = |key| headers.get(key).and_then(FieldValue::as_integer);
        (count("x-acquired-count"), count("x-delivery-count"))
    };
    assert!(back[..200].iter().all(|delivery| counts(delivery) == (Some(1), None)));
    assert!(back[200..400].iter().all(|delivery| counts(delivery) == (Some(2), Some(1))));
    assert!(back[400..].iter().all(|delivery| counts(delivery) == (None, None)));
}

#[test]
fn returned_messages_missing_on_disk_are_given_up_and_counted() {
    let (mut disk_world, queue) = persistent(paging(37, 0), &[]);
    take_and_return(&disk_world, &queue, MANY, Returned::Failed);
    disk_world.page();
    disk_world.retire();
    for name in disk_world.disk.files().into_iter().filter(|name| name.starts_with("queues/")) {
        disk_world.disk.damage(&name, Vec::clear);
    }
    let waiter: Arc<dyn Waiter> = Arc::new(WakeCounter::default());
    let mut found = 0;
    for _ in 0..10_000 {
        match queue.fetch(true, disk_world.world.now, &waiter) {
            Fetched::Got(_) => found += 1,
            Fetched::Later => {
                disk_world.page();
                disk_world.world.wait(60_000);
            }
            Fetched::Empty => break,
        }
    }
    assert!(queue.message_count() == 0 && found < MANY, "{found}");
    assert_eq!(queue.take_lost_bytes(), ((MANY - found) * body(0).len()) as u64);
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!((paging_status.resident, paging_status.paged_messages, paging_status.paged_bytes), (0, 0, 0));
}
