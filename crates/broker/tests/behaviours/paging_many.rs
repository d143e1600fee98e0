//! Many short queues together are paged out like one long queue.

use amqp::Properties;

use crate::disk_world::{DiskWorld, paging};

const WATERMARK: u64 = 16 << 20;

/// Bytes of memory that make short queues page, whatever the watermark.
const MIN_LIMIT: usize = 32 << 20;

fn padded(text: &str, bytes: usize) -> String {
    text.to_owned() + &" ".repeat(bytes - text.len())
}

/// Publishes messages of `bytes` bytes to new queues, `each` of them to every one, until enough is in memory. A body begins
/// with the number of the queue and that of the message. Returns the number of queues.
fn fill(disk_world: &mut DiskWorld, each: usize, bytes: usize, persistent: bool) -> usize {
    let queues = (MIN_LIMIT + (4 << 20)) / (each * bytes) + 1;
    let delivery_mode = if persistent { 2 } else { 1 };
    for queue in 0..queues {
        let name = format!("q{queue}");
        disk_world.durable(&name, &[]);
        for number in 0..each {
            let body = padded(&format!("{queue} {number}"), bytes);
            let properties = Properties::default().with_delivery_mode(delivery_mode);
            disk_world.publish_with("", &name, &body, properties);
        }
    }
    queues
}

fn assert_all_there(disk_world: &DiskWorld, queues: usize, each: usize) {
    for queue in 0..queues {
        let expected: Vec<_> = (0..each).map(|number| format!("{queue} {number}")).collect();
        let found = disk_world.drain(&format!("q{queue}"));
        assert_eq!(found.iter().map(|body| body.trim_end()).collect::<Vec<_>>(), expected);
    }
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!((paging_status.resident, paging_status.paged_messages, paging_status.paged_bytes), (0, 0, 0));
}

#[test]
fn short_queues_are_paged_out_if_there_are_no_long_ones() {
    for (each, bytes, persistent) in
        [(5, 20_000, true), (1, 100_000, true), (50, 2000, true), (5, 20_000, false)]
    {
        let mut disk_world = paging(41, WATERMARK);
        let queues = fill(&mut disk_world, each, bytes, persistent);
        assert!(disk_world.world.broker.paging_status().resident > MIN_LIMIT as u64);
        disk_world.page();
        let paging_status = disk_world.world.broker.paging_status();
        assert!(paging_status.resident < WATERMARK, "{each} {bytes} {persistent} {paging_status:?}");
        assert!(
            paging_status.paged_messages > 0 && paging_status.paged_messages < (queues * each) as u64,
            "no more than needed"
        );
        assert_all_there(&disk_world, queues, each);
    }
}

#[test]
fn long_queues_go_first() {
    let mut disk_world = paging(42, WATERMARK);
    let body = padded("x", 100_000);
    for number in 0..100 {
        let name = format!("q{number}");
        disk_world.durable(&name, &[]);
        disk_world.publish("", &name, &body);
    }
    let long = disk_world.durable("long", &[]);
    (0..300).for_each(|_| drop(disk_world.publish("", "long", &body)));
    assert!(disk_world.world.broker.paging_status().resident > MIN_LIMIT as u64);
    disk_world.page();
    let paging_status = disk_world.world.broker.paging_status();
    assert!(paging_status.resident < WATERMARK, "{paging_status:?}");
    assert_eq!(long.view().paged, paging_status.paged_messages);
}

#[test]
fn queue_heads_are_paged_out_too_and_return_to_the_front() {
    let mut disk_world = paging(43, WATERMARK);
    // Each is long, but not by much.
    let queues = fill(&mut disk_world, 10, 20_000, true) * 4;
    for queue in queues / 4..queues {
        let name = format!("q{queue}");
        disk_world.durable(&name, &[]);
        for number in 0..10 {
            disk_world.publish("", &name, &padded(&format!("{queue} {number}"), 20_000));
        }
        disk_world.page();
    }
    assert!(
        disk_world.world.broker.paging_status().resident < MIN_LIMIT as u64 + (4 << 20),
        "{:?}",
        disk_world.world.broker.paging_status()
    );
    assert_all_there(&disk_world, queues, 10);
}

#[test]
fn paging_out_is_not_retried_if_no_message_can_leave_memory() {
    let mut disk_world = paging(44, WATERMARK);
    // Too little in each queue to be worth a write.
    let queues = fill(&mut disk_world, 1, 10_000, false);
    assert!(disk_world.page(), "it is attempted once");
    let paging_status = disk_world.world.broker.paging_status();
    assert!(
        paging_status.resident > MIN_LIMIT as u64 && paging_status.paged_messages == 0,
        "{paging_status:?}"
    );
    assert!(!disk_world.page());
    disk_world.publish_with("", "q0", "0 1", Properties::default());
    assert!(!disk_world.page(), "nor after each message");
    for (queue, each) in (0..queues).map(|queue| (queue, if queue == 0 { 2 } else { 1 })) {
        assert_eq!(disk_world.drain(&format!("q{queue}")).len(), each);
    }
}

#[test]
fn a_full_disk_stops_only_messages_that_must_be_written() {
    let mut disk_world = paging(45, WATERMARK);
    let queues = fill(&mut disk_world, 5, 20_000, false);
    let body = padded("x", 100_000);
    for queue in 0..queues / 2 {
        let name = format!("stored{queue}");
        disk_world.durable(&name, &[]);
        disk_world.publish("", &name, &body);
    }
    disk_world.disk.set_faults(store::disk::simulated::Faults { write: 1000, sync: 0, names: 0 });
    disk_world.page();
    let failures = disk_world.world.broker.metrics().paging_failures.get();
    assert_eq!(failures, 1, "the first one tells for all");
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!(paging_status.paged_messages, queues as u64 / 2, "{paging_status:?}");
    disk_world.disk.set_faults(Default::default());
    disk_world.world.wait(30_000);
    disk_world.page();
    (0..queues / 2).for_each(|queue| assert_eq!(disk_world.drain(&format!("stored{queue}")).len(), 1));
    assert_all_there(&disk_world, queues, 5);
}
