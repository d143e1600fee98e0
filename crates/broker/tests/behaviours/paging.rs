//! Messages of long queues leave memory for the disk, and come back in their positions.

use std::sync::Arc;

use amqp::{FieldValue, Properties};
use broker::*;

use crate::disk_world::{DiskWorld, WakeCounter, paging, paging_as};
use crate::world::*;

/// Bytes of a body: hundreds of them make a long queue.
const BODY: usize = 2000;
pub(crate) const MANY: usize = 600;

pub(crate) fn body(number: usize) -> String {
    format!("{number:<BODY$}")
}

pub(crate) fn bodies(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(body).collect()
}

/// Alternates between runs of persistent and transient messages.
fn is_persistent(number: usize) -> bool {
    !(number / 7).is_multiple_of(3)
}

pub(crate) fn properties(number: usize) -> Properties<'static> {
    Properties::default().with_delivery_mode(if is_persistent(number) { 2 } else { 1 })
}

pub(crate) fn publish(disk_world: &mut DiskWorld, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        disk_world.publish_with("", "q", &body(number), properties(number));
    }
}

/// A queue with [`MANY`] messages, most of which are on disk only.
pub(crate) fn backlog(seed: u64, arguments: &[(&str, FieldValue)]) -> (DiskWorld, Arc<Queue>) {
    let mut disk_world = paging(seed, 0);
    let queue = disk_world.durable("q", arguments);
    publish(&mut disk_world, 0..MANY);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    (disk_world, queue)
}

pub(crate) fn assert_mostly_on_disk(disk_world: &DiskWorld) {
    let paging_status = disk_world.world.broker.paging_status();
    assert!(
        paging_status.paged_messages > MANY as u64 * 2 / 3 && paging_status.resident < 200 << 10,
        "{paging_status:?}"
    );
    assert_eq!(paging_status.paged_bytes, paging_status.paged_messages * BODY as u64);
}

pub(crate) fn files_of_transient(disk_world: &DiskWorld) -> usize {
    disk_world.disk.files().iter().filter(|name| name.starts_with("transient/")).count()
}

fn persistent(disk_world: &mut DiskWorld, count: usize) {
    (0..count).for_each(|number| drop(disk_world.publish("", "q", &body(number))));
}

#[test]
fn a_backlog_comes_back_whole_and_in_order() {
    let (mut disk_world, queue) = backlog(1, &[]);
    assert_eq!(queue.message_count(), MANY as u64);
    let first: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, true)).take(MANY / 2).collect();
    assert_eq!(first.iter().map(text).collect::<Vec<_>>(), bodies(0..MANY / 2));
    publish(&mut disk_world, MANY..MANY + 50);
    assert_eq!(disk_world.drain("q"), bodies(MANY / 2..MANY + 50));
    disk_world.page();
    let paging_status = disk_world.world.broker.paging_status();
    assert_eq!((paging_status.resident, paging_status.paged_messages, paging_status.paged_bytes), (0, 0, 0));
    assert_eq!(files_of_transient(&disk_world), 0);
    publish(&mut disk_world, 0..MANY);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    assert_eq!(disk_world.drain("q"), bodies(0..MANY));
}

#[test]
fn a_queue_that_is_not_durable_pages_too() {
    let mut disk_world = paging(2, 0);
    disk_world.world.queue("q");
    publish(&mut disk_world, 0..MANY);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    assert_eq!(disk_world.drain("q"), bodies(0..MANY));
}

#[test]
fn below_the_watermark_everything_stays_in_memory_unless_the_queue_is_lazy() {
    let mut disk_world = paging(3, u64::MAX);
    disk_world.durable("q", &[]);
    publish(&mut disk_world, 0..MANY);
    assert!(!disk_world.page());
    assert_eq!(disk_world.world.broker.paging_status().paged_messages, 0);
    disk_world.queue("q").purge();
    disk_world.world.vhost.delete_queue(ME, "q", false, false).unwrap();
    disk_world.durable("q", &[("x-queue-mode", FieldValue::text("lazy"))]);
    publish(&mut disk_world, 0..MANY);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
    assert_eq!(disk_world.drain("q"), bodies(0..MANY));
}

#[test]
fn a_policy_makes_a_queue_lazy_unless_its_own_argument_says_otherwise() {
    for (mode, pages) in [(None, true), (Some("default"), false)] {
        let mut disk_world = paging(23, u64::MAX);
        let argument = mode.map(|mode| ("x-queue-mode", FieldValue::text(mode)));
        disk_world.durable("q", argument.as_slice());
        publish(&mut disk_world, 0..MANY);
        set_policy(&disk_world, r#"{"queue-mode": "lazy"}"#);
        disk_world.page();
        assert_eq!(disk_world.world.broker.paging_status().paged_messages > MANY as u64 / 2, pages);
        assert_eq!(disk_world.drain("q"), bodies(0..MANY));
    }
}

fn set_policy(disk_world: &DiskWorld, definition: &str) {
    let definition =
        PolicyDefinition::parse(&serde_json::from_str(definition).unwrap(), Compatibility::V3_10).unwrap();
    let (name, priority, apply_to) = ("p".into(), 0, ApplyTo::All);
    let pattern = Pattern::new(".*").unwrap();
    disk_world
        .world
        .vhost
        .set_policy(Policy { name, pattern, apply_to, priority, definition }, disk_world.world.now);
}

#[test]
fn above_the_watermark_idle_queues_page_out_and_stop_below_it() {
    let mut disk_world = paging(4, (MANY * BODY * 3 / 2) as u64);
    disk_world.durable("q", &[]);
    publish(&mut disk_world, 0..MANY);
    assert!(!disk_world.page());
    disk_world.durable("other", &[]);
    (0..MANY).for_each(|number| drop(disk_world.publish("", "other", &body(number))));
    disk_world.page();
    let paging_status = disk_world.world.broker.paging_status();
    assert!(
        paging_status.resident < paging_status.watermark
            && paging_status.resident > paging_status.watermark / 2,
        "{paging_status:?}"
    );
    assert_eq!((disk_world.drain("q"), disk_world.drain("other")), (bodies(0..MANY), bodies(0..MANY)));
}

#[test]
fn a_consumer_is_served_from_disk() {
    let (disk_world, queue) = backlog(5, &[]);
    let (id, consumer) = disk_world.world.consume(&queue, 100, 0);
    for done in 1.. {
        disk_world.page();
        let got = consumer.got.lock().len();
        assert_eq!(got, (100 * done).min(MANY));
        if got == MANY {
            break;
        }
        *consumer.capacity.lock() = 100;
        queue.resume(id, disk_world.world.now);
    }
    assert_eq!(consumer.bodies(), bodies(0..MANY));
}

#[test]
fn messages_on_disk_are_read_while_writes_are_refused() {
    let (mut disk_world, queue) = backlog(1, &[]);
    disk_world.store.set_disk_free_limit(1 << 30);
    for number in MANY..2 * MANY {
        disk_world.publish_with("", "q", &body(number), Properties::default());
    }
    disk_world.page();
    let failures = || disk_world.world.broker.metrics().paging_failures.get();
    let failed = failures();
    assert!(failed > 0);
    let fetched: Vec<_> =
        std::iter::from_fn(|| disk_world.fetch(&queue, true)).map(|got| text(&got)).collect();
    assert_eq!(fetched, bodies(0..2 * MANY));
    assert_eq!(failures(), failed, "a write is tried again after a pause");
}

#[test]
fn get_waits_for_a_message_on_disk_instead_of_reporting_empty() {
    let (disk_world, queue) = backlog(6, &[]);
    let reported = Arc::new(WakeCounter::default());
    let waiter: Arc<dyn Waiter> = reported.clone();
    let in_memory = std::iter::from_fn(|| queue.get(true, disk_world.world.now)).count();
    assert!(in_memory < MANY / 3);
    for _ in 0..3 {
        assert!(matches!(queue.fetch(true, disk_world.world.now, &waiter), Fetched::Later));
    }
    assert_eq!(reported.times(), 0);
    disk_world.page();
    assert_eq!(reported.times(), 1);
    let Fetched::Got(got) = queue.fetch(true, disk_world.world.now, &waiter) else { panic!("it is there") };
    assert_eq!(text(&got.delivery), body(in_memory));
    assert_eq!(got.remaining as usize, MANY - in_memory - 1);
}

#[test]
fn a_waiting_get_is_woken_when_the_queue_is_purged_or_deleted() {
    for delete in [false, true] {
        let (disk_world, queue) = backlog(7, &[]);
        while queue.get(true, disk_world.world.now).is_some() {}
        let reported = Arc::new(WakeCounter::default());
        let waiter: Arc<dyn Waiter> = reported.clone();
        assert!(matches!(queue.fetch(true, disk_world.world.now, &waiter), Fetched::Later));
        if delete {
            disk_world.world.vhost.delete_queue(ME, "q", false, false).unwrap();
        } else {
            queue.purge();
        }
        assert_eq!(reported.times(), 1);
        assert!(matches!(queue.fetch(true, disk_world.world.now, &waiter), Fetched::Empty));
        // The requested load finds nothing to load.
        disk_world.page();
        assert_eq!((queue.message_count(), files_of_transient(&disk_world)), (0, 0));
    }
}

#[test]
fn requeued_messages_are_delivered_before_messages_on_disk() {
    let (disk_world, queue) = backlog(8, &[]);
    let paging_status: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(200).collect();
    queue.requeue(paging_status, Returned::Failed, disk_world.world.now);
    let back: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, true)).collect();
    assert_eq!(back.iter().map(text).collect::<Vec<_>>(), bodies(0..MANY));
    assert!(back.iter().enumerate().all(|(number, delivery)| delivery.redelivered() == (number < 200)));
}

#[test]
fn expired_messages_on_disk_are_dead_lettered_in_their_order() {
    let arguments = [
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ("x-message-ttl", FieldValue::I32(1000)),
    ];
    let (mut disk_world, queue) = backlog(9, &arguments);
    let dead = disk_world.durable("dead", &[]);
    disk_world.world.now = disk_world.world.now.after(1000);
    // As in a server: handles due deadlines, and the disk work that they cause.
    while queue.message_count() > 0 {
        disk_world.world.wait(0);
        assert!(disk_world.page());
    }
    assert_eq!(dead.message_count(), MANY as u64);
    assert_eq!(disk_world.drain("dead"), bodies(0..MANY));
}

#[test]
fn a_limit_drops_the_head_even_if_that_is_on_disk() {
    let limits = [("x-max-length", MANY / 3), ("x-max-length-bytes", MANY / 3 * BODY)];
    for (limit, most) in limits {
        let (mut disk_world, queue) = backlog(10, &[]);
        set_policy(&disk_world, &format!(r#"{{"{}": {most}}}"#, limit.trim_start_matches("x-")));
        disk_world.page();
        assert_eq!(queue.message_count() as usize, MANY / 3);
        publish(&mut disk_world, MANY..MANY + 10);
        disk_world.page();
        assert_eq!(disk_world.drain("q"), bodies(MANY + 10 - MANY / 3..MANY + 10));
    }
}

#[test]
fn a_full_queue_with_most_messages_on_disk_refuses_more() {
    let full = [
        ("x-max-length-bytes", FieldValue::I32((MANY * BODY) as i32)),
        ("x-overflow", FieldValue::text("reject-publish")),
    ];
    let (mut disk_world, queue) = backlog(11, &full);
    assert_eq!(disk_world.publish("", "q", "x").refused, [0]);
    assert!(disk_world.fetch(&queue, true).is_some());
    assert!(disk_world.publish("", "q", &body(MANY)).refused.is_empty());
    assert_eq!(disk_world.drain("q"), bodies(1..=MANY));
}

/// Restarts after a crash, with the messages on disk either in the journal or in the queue's own segments.
fn restart(mut disk_world: DiskWorld, retired: bool) -> DiskWorld {
    if retired {
        disk_world.retire()
    } else {
        disk_world.sync()
    }
    disk_world.crash()
}

#[test]
fn a_restart_brings_back_numbers_and_leaves_the_messages_on_disk() {
    for retired in [false, true] {
        let (disk_world, queue) = backlog(12, &[]);
        let taken: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(25).collect();
        // Scattered, so that a start has to count within a segment.
        let (acked, left): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|delivery| text(delivery).trim_end().ends_with('3'));
        queue.ack(acked, disk_world.world.now);
        drop(left);
        let mut disk_world = restart(disk_world, retired);
        let survives = |number: &usize| is_persistent(*number) && (*number >= 25 || number % 10 != 3);
        let expected: Vec<_> = (0..MANY).filter(survives).collect();
        let paging_status = disk_world.world.broker.paging_status();
        assert_eq!(paging_status.paged_messages, expected.len() as u64, "nothing is in memory");
        assert_eq!(paging_status.paged_bytes, (expected.len() * BODY) as u64);
        assert_eq!(disk_world.queue("q").message_count(), expected.len() as u64);
        disk_world.publish("", "q", &body(MANY));
        let queue = disk_world.queue("q");
        let back: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, true)).collect();
        let numbers = expected.iter().copied().chain([MANY]);
        assert_eq!(back.iter().map(text).collect::<Vec<_>>(), bodies(numbers));
        let redelivered = back.iter().filter(|delivery| delivery.redelivered()).count();
        assert_eq!(redelivered, expected.iter().filter(|number| **number < 25).count());
        disk_world.sync();
        assert_eq!(disk_world.crash().drain("q"), Vec::<String>::new());
    }
}

#[test]
fn a_restart_keeps_expiry_and_death_reasons_of_messages_on_disk() {
    for retired in [false, true] {
        let mut disk_world = paging(19, 0);
        let arguments = [
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("dead")),
            ("x-message-ttl", FieldValue::I32(10_000)),
        ];
        disk_world.durable("q", &arguments);
        disk_world.durable("dead", &[]);
        persistent(&mut disk_world, MANY);
        disk_world.page();
        disk_world.world.now = disk_world.world.now.after(4000);
        let mut disk_world = restart(disk_world, retired);
        assert_eq!(disk_world.world.broker.paging_status().paged_messages, MANY as u64);
        let queue = disk_world.queue("q");
        disk_world.world.wait(5999);
        disk_world.page();
        assert_eq!(queue.message_count(), MANY as u64, "a moment before");
        disk_world.world.wait(1);
        while queue.message_count() > 0 {
            disk_world.world.wait(0);
            assert!(disk_world.page());
        }
        let disk_world = restart(disk_world, retired);
        assert!(disk_world.world.broker.paging_status().paged_messages > MANY as u64 / 2);
        let dead = disk_world.queue("dead");
        let letters: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&dead, true)).collect();
        assert_eq!(letters.iter().map(text).collect::<Vec<_>>(), bodies(0..MANY));
        let reason = |letter: &Delivery| headers_of(letter).get("x-first-death-reason").cloned();
        assert!(letters.iter().all(|letter| reason(letter) == Some(FieldValue::text("expired"))));
    }
}

#[test]
fn priorities_hold_on_disk_and_after_a_restart() {
    for restart in [None, Some(false), Some(true)] {
        let mut disk_world = paging(13, 0);
        disk_world.durable("q", &[("x-max-priority", FieldValue::I32(4))]);
        for number in 0..MANY {
            let properties = Properties::default().with_delivery_mode(2).with_priority((number % 5) as u8);
            disk_world.publish_with("", "q", &body(number), properties);
            disk_world.page();
        }
        match restart {
            None => {}
            Some(false) => disk_world.sync(),
            Some(true) => disk_world.retire(),
        }
        if restart.is_some() {
            disk_world = disk_world.crash();
            assert_eq!(disk_world.world.broker.paging_status().paged_bytes, (MANY * BODY) as u64);
        }
        let expected = (0..5).rev().flat_map(|priority| (priority..MANY).step_by(5));
        assert_eq!(disk_world.drain("q"), bodies(expected));
    }
}

#[test]
fn the_order_of_quorum_queues_of_rabbitmq_4_holds_on_disk_and_after_a_restart() {
    for restart in [None, Some(false), Some(true)] {
        let mut disk_world = paging_as(Compatibility::V4, 21, 0);
        let queue = disk_world.durable("q", &[("x-queue-type", FieldValue::text("quorum"))]);
        let priority_of = |number: usize| [None, Some(0), Some(5), Some(4), Some(40)][number % 5];
        for number in 0..MANY {
            let priority = priority_of(number);
            let properties = Properties { delivery_mode: Some(2), priority, ..Properties::default() };
            disk_world.publish_with("", "q", &body(number), properties);
            disk_world.page();
        }
        assert!(disk_world.world.broker.paging_status().paged_messages > MANY as u64 / 2);
        let rank = |number: &usize| priority_of(*number).map_or(4, |priority| priority.min(31));
        let mut expected: Vec<usize> = (0..MANY).collect();
        expected.sort_by_key(|number| std::cmp::Reverse(rank(number)));
        // All of one priority and some of the next are delivered, and return.
        let taken: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(150).collect();
        match restart {
            None => {
                taken
                    .into_iter()
                    .rev()
                    .for_each(|one| queue.requeue(vec![one], Returned::Failed, disk_world.world.now));
                expected[..150].reverse();
            }
            Some(false) => disk_world.sync(),
            Some(true) => disk_world.retire(),
        }
        if restart.is_some() {
            disk_world = disk_world.crash();
            assert_eq!(disk_world.world.broker.paging_status().paged_bytes, (MANY * BODY) as u64);
        }
        // A new message is behind returned ones, however high its priority.
        disk_world.publish_with(
            "",
            "q",
            &body(MANY),
            Properties::default().with_delivery_mode(2).with_priority(31),
        );
        expected.insert(150, MANY);
        assert_eq!(expected[..150].iter().filter(|number| rank(number) == 31).count(), 120);
        let queue = disk_world.queue("q");
        assert_eq!(queue.priorities().map(|counts| counts.returned), Some(150));
        assert_eq!(disk_world.drain("q"), bodies(expected));
        assert_eq!(queue.message_count(), 0);
    }
}

#[test]
fn the_delivery_limit_applies_to_messages_a_restart_left_on_disk() {
    let mut disk_world = paging(14, 0);
    let quorum = [("x-queue-type", FieldValue::text("quorum")), ("x-delivery-limit", FieldValue::I32(1))];
    disk_world.durable("q", &quorum);
    persistent(&mut disk_world, MANY);
    for _ in 0..2 {
        let queue = disk_world.queue("q");
        let taken = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(200).count();
        assert_eq!(taken, 200);
        disk_world.sync();
        disk_world = disk_world.crash();
    }
    disk_world.page();
    assert_eq!(disk_world.drain("q"), bodies(200..MANY), "delivered more often than allowed");
}

#[test]
fn messages_over_a_newer_delivery_limit_are_loaded_from_disk() {
    let mut disk_world = paging(37, 0);
    let queue = disk_world.durable("q", &[("x-queue-type", FieldValue::text("quorum"))]);
    persistent(&mut disk_world, MANY);
    for _ in 0..3 {
        let taken: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).take(200).collect();
        queue.requeue(taken, Returned::Failed, disk_world.world.now);
    }
    disk_world.sync();
    let disk_world = disk_world.crash();
    set_policy(&disk_world, r#"{"delivery-limit": 1}"#);
    assert_eq!(disk_world.queue("q").delivery_limit(), Some(1));
    disk_world.page();
    assert_eq!(disk_world.drain("q"), bodies(0..MANY));
}

#[test]
fn a_message_of_many_queues_counts_once_in_memory() {
    let mut disk_world = paging(17, u64::MAX);
    for at in 0..50 {
        let name = format!("q{at}");
        disk_world.durable(&name, &[]);
        disk_world.world.bind(&name, "amq.fanout", "");
    }
    disk_world.publish("amq.fanout", "", &"x".repeat(100_000));
    let resident = disk_world.world.broker.paging_status().resident;
    assert!((100_000..110_000).contains(&resident), "{resident}");
}

#[test]
fn a_large_message_that_has_left_frees_no_memory_for_others() {
    let mut disk_world = paging(24, 0);
    let queue = disk_world.durable("q", &[]);
    disk_world.publish_with("", "q", &"x".repeat(MANY * BODY), properties(0));
    disk_world.page();
    assert_eq!(disk_world.world.broker.paging_status().paged_messages, 0, "the first one stays");
    assert!(disk_world.fetch(&queue, true).is_some());
    publish(&mut disk_world, 0..MANY);
    disk_world.page();
    assert_mostly_on_disk(&disk_world);
}
