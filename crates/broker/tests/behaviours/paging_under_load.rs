//! Paging under load, and with a failing disk: read and write errors, publishers that are too fast, and many
//! threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use broker::*;
use parking_lot::Mutex;
use store::disk::simulated::Faults;

use crate::disk_world::{DiskWorld, WakeCounter, paging};
use crate::paging::{
    MANY, assert_mostly_on_disk, backlog, bodies, body, files_of_transient, properties, publish,
};
use crate::world::*;

/// Bytes of a body: a few of them exceed the limit of messages waiting to leave memory.
const LARGE: usize = 2 << 20;

/// Publishes large transient messages until it has to pause; returns their number.
fn publish_until_full(disk_world: &mut DiskWorld) -> usize {
    let body = "x".repeat(LARGE);
    let count = (1..100).find(|_| disk_world.publish_with("", "q", &body, properties(0)).full);
    count.expect("memory is not bounded")
}

fn wait_for_capacity(disk_world: &DiskWorld) -> Arc<WakeCounter> {
    let reported = Arc::new(WakeCounter::default());
    disk_world.world.vhost.wait_for_capacity(reported.clone());
    reported
}

#[test]
fn publishers_that_outpace_paging_pause_until_messages_leave_memory() {
    let mut disk_world = paging(20, 0);
    disk_world.world.queue("q");
    assert!(disk_world.world.vhost.has_capacity());
    let count = publish_until_full(&mut disk_world);
    let resident = disk_world.world.broker.paging_status().resident;
    assert!(!disk_world.world.vhost.has_capacity() && resident < 40 << 20, "{count} messages: {resident}");
    disk_world.world.queue("other");
    assert!(!disk_world.publish_with("", "other", "x", properties(0)).full, "that queue is short");
    let reported = wait_for_capacity(&disk_world);
    assert_eq!(reported.times(), 0);
    disk_world.page();
    assert_eq!(reported.times(), 1);
    assert!(
        disk_world.world.vhost.has_capacity() && disk_world.world.broker.paging_status().resident < 5 << 20
    );
    let metrics = disk_world.world.broker.metrics();
    assert!(metrics.paging_pauses.get() > 0 && metrics.paging_writes.get() > 0);
    let out = metrics.bytes_paged_out.get();
    assert!(out > 0 && out == metrics.messages_paged_out.get() * LARGE as u64);
    assert_eq!(wait_for_capacity(&disk_world).times(), 1, "at once");
    assert_eq!(disk_world.drain("q").len(), count);
    let metrics = disk_world.world.broker.metrics();
    assert!(metrics.paging_reads.get() > 0 && metrics.bytes_paged_in.get() == out);
}

#[test]
fn publishers_do_not_pause_for_a_queue_that_is_purged_or_cannot_be_written() {
    for purge in [true, false] {
        let mut disk_world = paging(21, 0);
        disk_world.world.queue("q");
        publish_until_full(&mut disk_world);
        let reported = wait_for_capacity(&disk_world);
        if purge {
            disk_world.queue("q").purge();
        } else {
            disk_world.disk.set_faults(Faults { write: 1000, sync: 0, names: 0 });
            disk_world.page();
        }
        assert_eq!((reported.times(), disk_world.world.vhost.has_capacity()), (1, true));
    }
}

#[test]
fn messages_that_cannot_be_read_are_neither_lost_nor_skipped() {
    let (mut disk_world, queue) = backlog(15, &[]);
    disk_world.retire();
    let is_segment = |name: &String| name.ends_with(".segment");
    let files: Vec<_> = disk_world.disk.files().into_iter().filter(is_segment).collect();
    let flip = |disk_world: &DiskWorld| {
        let each = |bytes: &mut Vec<u8>| bytes.iter_mut().for_each(|byte| *byte ^= 1);
        files.iter().for_each(|file| disk_world.disk.damage(file, each));
    };
    flip(&disk_world);
    let mut found: Vec<_> =
        std::iter::from_fn(|| queue.get(true, disk_world.world.now)).map(|got| text(&got.delivery)).collect();
    let (reported, failures) = (Arc::new(WakeCounter::default()), |disk_world: &DiskWorld| {
        disk_world.world.broker.metrics().paging_failures.get()
    });
    let waiter: Arc<dyn Waiter> = reported.clone();
    assert!(matches!(queue.fetch(true, disk_world.world.now, &waiter), Fetched::Later));
    disk_world.page();
    assert_eq!((reported.times(), failures(&disk_world)), (0, 1));
    assert!(!disk_world.page(), "it is not tried again at once");
    disk_world.world.wait(1000);
    disk_world.page();
    assert_eq!((reported.times(), failures(&disk_world)), (0, 2));
    assert_eq!(queue.message_count() as usize, MANY - found.len());
    flip(&disk_world);
    disk_world.world.wait(1000);
    disk_world.page();
    assert_eq!((reported.times(), failures(&disk_world)), (1, 2));
    found.append(&mut disk_world.drain("q"));
    assert_eq!(found, bodies(0..MANY));
}

#[test]
fn messages_that_are_gone_from_the_disk_are_given_up_and_counted() {
    let (mut disk_world, queue) = backlog(15, &[]);
    disk_world.retire();
    for name in disk_world.disk.files().into_iter().filter(|name| name.starts_with("queues/")) {
        disk_world.disk.damage(&name, Vec::clear);
    }
    let reported: Arc<dyn Waiter> = Arc::new(WakeCounter::default());
    let mut found = 0;
    for _ in 0..10_000 {
        match queue.fetch(true, disk_world.world.now, &reported) {
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
    assert_eq!(queue.take_lost_bytes(), 0);
}

#[test]
fn messages_that_cannot_be_written_stay_in_memory() {
    let mut disk_world = paging(16, 0);
    disk_world.world.queue("q");
    disk_world.disk.set_faults(Faults { write: 1000, sync: 0, names: 0 });
    publish(&mut disk_world, 0..MANY);
    disk_world.page();
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!(paging_status.paged_messages, 0);
    assert!(disk_world.world.broker.metrics().paging_failures.get() > 0);
    disk_world.disk.set_faults(Faults::default());
    disk_world.world.wait(1000);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    assert_eq!(disk_world.drain("q"), bodies(0..MANY));
}

/// Publishers, consumers, purges and paging threads concurrently: the remaining messages are complete and in order.
#[test]
fn many_threads_publish_take_purge_and_page() {
    let disk_world = paging(18, 300 << 10);
    let queue = disk_world.durable("q", &[]);
    let (broker, vhost) = (disk_world.world.broker.clone(), disk_world.world.vhost.clone());
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let (stop, taken) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let reported: Arc<dyn Waiter> = Arc::new(WakeCounter::default());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    if !broker.page(Timestamp(1)) {
                        thread::yield_now();
                    }
                }
            });
        }
        let consumer = scope.spawn(|| {
            let mut last = None;
            while !stop.load(Ordering::SeqCst) {
                if let Fetched::Got(got) = queue.fetch(false, Timestamp(1), &reported) {
                    let number: usize = text(&got.delivery).trim_end().parse().unwrap();
                    assert!(got.delivery.redelivered() || last < Some(number));
                    last = last.max(Some(number));
                    if number.is_multiple_of(50) && !got.delivery.redelivered() {
                        queue.requeue(vec![got.delivery], Returned::Failed, Timestamp(1));
                    } else {
                        taken.lock().push(number);
                        queue.ack(vec![got.delivery], Timestamp(1));
                    }
                }
            }
        });
        let mut publisher = vhost.publisher(&guest);
        for number in 0..MANY * 5 {
            let mut bytes = Vec::new();
            properties(number).encode(&mut bytes);
            let text = body(number);
            let body = Body::Copied(text.as_bytes());
            publisher
                .publish(Publish { exchange: "", routing_key: "q", properties: &bytes, body }, Timestamp(1))
                .unwrap();
            publisher.flush(Timestamp(1));
            if number % 1000 == 999 {
                queue.purge();
            }
        }
        stop.store(true, Ordering::SeqCst);
        consumer.join().unwrap();
    });
    disk_world.page();
    let rest: Vec<usize> =
        disk_world.drain("q").iter().map(|text| text.trim_end().parse().unwrap()).collect();
    assert!(rest.is_sorted() && rest.windows(2).all(|pair| pair[0] < pair[1]), "{rest:?}");
    let mut all = taken.into_inner();
    all.extend(rest);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "none twice");
    disk_world.page();
    assert_eq!(
        (
            disk_world.world.broker.paging_status().resident,
            disk_world.world.broker.paging_status().paged_messages
        ),
        (0, 0)
    );
    assert_eq!(files_of_transient(&disk_world), 0);
}
