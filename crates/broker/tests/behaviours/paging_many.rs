//! Many queues, none of which is long: together they leave memory as one long queue does.

use amqp::Properties;

use crate::kept::{Kept, paging};

const WATERMARK: u64 = 16 << 20;

/// Bytes of memory that make short queues page, whatever the watermark.
const LEAST: usize = 32 << 20;

fn padded(text: &str, bytes: usize) -> String {
    text.to_owned() + &" ".repeat(bytes - text.len())
}

/// Publishes messages of `bytes` bytes to new queues, `each` of them to every one, until enough is in memory. A body begins
/// with the number of the queue and that of the message. Returns the number of queues.
fn fill(kept: &mut Kept, each: usize, bytes: usize, persistent: bool) -> usize {
    let queues = (LEAST + (4 << 20)) / (each * bytes) + 1;
    let delivery_mode = if persistent { 2 } else { 1 };
    for queue in 0..queues {
        let name = format!("q{queue}");
        kept.durable(&name, &[]);
        for number in 0..each {
            let body = padded(&format!("{queue} {number}"), bytes);
            let properties = Properties::default().with_delivery_mode(delivery_mode);
            kept.publish_with("", &name, &body, properties);
        }
    }
    queues
}

fn assert_all_there(kept: &Kept, queues: usize, each: usize) {
    for queue in 0..queues {
        let expected: Vec<_> = (0..each).map(|number| format!("{queue} {number}")).collect();
        let found = kept.drain(&format!("q{queue}"));
        assert_eq!(found.iter().map(|body| body.trim_end()).collect::<Vec<_>>(), expected);
    }
    let held = kept.world.broker.held();
    assert_eq!((held.resident, held.paged_messages, held.paged_bytes), (0, 0, 0));
}

#[test]
fn queues_that_are_not_long_let_go_if_nothing_else_can() {
    for (each, bytes, persistent) in
        [(5, 20_000, true), (1, 100_000, true), (50, 2000, true), (5, 20_000, false)]
    {
        let mut kept = paging(41, WATERMARK);
        let queues = fill(&mut kept, each, bytes, persistent);
        assert!(kept.world.broker.held().resident > LEAST as u64);
        kept.page();
        let held = kept.world.broker.held();
        assert!(held.resident < WATERMARK, "{each} {bytes} {persistent} {held:?}");
        assert!(
            held.paged_messages > 0 && held.paged_messages < (queues * each) as u64,
            "no more than needed"
        );
        assert_all_there(&kept, queues, each);
    }
}

#[test]
fn long_queues_go_first() {
    let mut kept = paging(42, WATERMARK);
    let body = padded("x", 100_000);
    for number in 0..100 {
        let name = format!("q{number}");
        kept.durable(&name, &[]);
        kept.publish("", &name, &body);
    }
    let long = kept.durable("long", &[]);
    (0..300).for_each(|_| drop(kept.publish("", "long", &body)));
    assert!(kept.world.broker.held().resident > LEAST as u64);
    kept.page();
    let held = kept.world.broker.held();
    assert!(held.resident < WATERMARK, "{held:?}");
    assert_eq!(long.view().paged, held.paged_messages);
}

#[test]
fn what_heads_keep_leaves_too_and_comes_back_in_front() {
    let mut kept = paging(43, WATERMARK);
    // Each is long, but not by much.
    let queues = fill(&mut kept, 10, 20_000, true) * 4;
    for queue in queues / 4..queues {
        let name = format!("q{queue}");
        kept.durable(&name, &[]);
        for number in 0..10 {
            kept.publish("", &name, &padded(&format!("{queue} {number}"), 20_000));
        }
        kept.page();
    }
    assert!(kept.world.broker.held().resident < LEAST as u64 + (4 << 20), "{:?}", kept.world.broker.held());
    assert_all_there(&kept, queues, 10);
}

#[test]
fn nothing_is_tried_again_and_again_where_nothing_can_leave() {
    let mut kept = paging(44, WATERMARK);
    // Too little in each to be worth a write.
    let queues = fill(&mut kept, 1, 10_000, false);
    assert!(kept.page(), "it is tried once");
    let held = kept.world.broker.held();
    assert!(held.resident > LEAST as u64 && held.paged_messages == 0, "{held:?}");
    assert!(!kept.page());
    kept.publish_with("", "q0", "0 1", Properties::default());
    assert!(!kept.page(), "nor after each message");
    for (queue, each) in (0..queues).map(|queue| (queue, if queue == 0 { 2 } else { 1 })) {
        assert_eq!(kept.drain(&format!("q{queue}")).len(), each);
    }
}

#[test]
fn a_full_disk_stops_only_what_has_to_be_written() {
    let mut kept = paging(45, WATERMARK);
    let queues = fill(&mut kept, 5, 20_000, false);
    let body = padded("x", 100_000);
    for queue in 0..queues / 2 {
        let name = format!("stored{queue}");
        kept.durable(&name, &[]);
        kept.publish("", &name, &body);
    }
    kept.disk.set_faults(store::disk::simulated::Faults { write: 1000, sync: 0, names: 0 });
    kept.page();
    let failures = kept.world.broker.metrics().paging_failures.get();
    assert_eq!(failures, 1, "the first one tells for all");
    let held = kept.world.broker.held();
    assert_eq!(held.paged_messages, queues as u64 / 2, "{held:?}");
    kept.disk.set_faults(Default::default());
    kept.world.wait(30_000);
    kept.page();
    (0..queues / 2).for_each(|queue| assert_eq!(kept.drain(&format!("stored{queue}")).len(), 1));
    assert_all_there(&kept, queues, 5);
}
