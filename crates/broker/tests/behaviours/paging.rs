//! Messages of long queues leave memory for the disk, and come back in their positions.

use std::sync::Arc;

use amqp::{FieldValue, Properties};
use broker::*;

use crate::kept::{Kept, Told, paging, paging_as};
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

/// Alternates between stretches of persistent and transient messages.
fn is_persistent(number: usize) -> bool {
    !(number / 7).is_multiple_of(3)
}

pub(crate) fn properties(number: usize) -> Properties<'static> {
    Properties::default().with_delivery_mode(if is_persistent(number) { 2 } else { 1 })
}

pub(crate) fn publish(kept: &mut Kept, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        kept.publish_with("", "q", &body(number), properties(number));
    }
}

/// A queue with [`MANY`] messages, most of which are on disk only.
pub(crate) fn backlog(seed: u64, arguments: &[(&str, FieldValue)]) -> (Kept, Arc<Queue>) {
    let mut kept = paging(seed, 0);
    let queue = kept.durable("q", arguments);
    publish(&mut kept, 0..MANY);
    kept.page();
    assert_mostly_on_disk(&kept);
    (kept, queue)
}

pub(crate) fn assert_mostly_on_disk(kept: &Kept) {
    let held = kept.world.broker.held();
    assert!(held.paged_messages > MANY as u64 * 2 / 3 && held.resident < 200 << 10, "{held:?}");
    assert_eq!(held.paged_bytes, held.paged_messages * BODY as u64);
}

pub(crate) fn files_of_transient(kept: &Kept) -> usize {
    kept.disk.files().iter().filter(|name| name.starts_with("transient/")).count()
}

fn persistent(kept: &mut Kept, count: usize) {
    (0..count).for_each(|number| drop(kept.publish("", "q", &body(number))));
}

#[test]
fn a_backlog_comes_back_whole_and_in_order() {
    let (mut kept, queue) = backlog(1, &[]);
    assert_eq!(queue.message_count(), MANY as u64);
    let first: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, true)).take(MANY / 2).collect();
    assert_eq!(first.iter().map(text).collect::<Vec<_>>(), bodies(0..MANY / 2));
    publish(&mut kept, MANY..MANY + 50);
    assert_eq!(kept.drain("q"), bodies(MANY / 2..MANY + 50));
    kept.page();
    let held = kept.world.broker.held();
    assert_eq!((held.resident, held.paged_messages, held.paged_bytes), (0, 0, 0));
    assert_eq!(files_of_transient(&kept), 0);
    publish(&mut kept, 0..MANY);
    kept.page();
    assert_mostly_on_disk(&kept);
    assert_eq!(kept.drain("q"), bodies(0..MANY));
}

#[test]
fn a_queue_that_is_not_durable_pages_too() {
    let mut kept = paging(2, 0);
    kept.world.queue("q");
    publish(&mut kept, 0..MANY);
    kept.page();
    assert_mostly_on_disk(&kept);
    assert_eq!(kept.drain("q"), bodies(0..MANY));
}

#[test]
fn below_the_watermark_everything_stays_in_memory_unless_the_queue_is_lazy() {
    let mut kept = paging(3, u64::MAX);
    kept.durable("q", &[]);
    publish(&mut kept, 0..MANY);
    assert!(!kept.page());
    assert_eq!(kept.world.broker.held().paged_messages, 0);
    kept.queue("q").purge();
    kept.world.vhost.delete_queue(ME, "q", false, false).unwrap();
    kept.durable("q", &[("x-queue-mode", FieldValue::text("lazy"))]);
    publish(&mut kept, 0..MANY);
    kept.page();
    assert_mostly_on_disk(&kept);
    assert_eq!(kept.drain("q"), bodies(0..MANY));
}

#[test]
fn a_policy_makes_a_queue_lazy_unless_its_own_argument_says_otherwise() {
    for (mode, pages) in [(None, true), (Some("default"), false)] {
        let mut kept = paging(23, u64::MAX);
        let argument = mode.map(|mode| ("x-queue-mode", FieldValue::text(mode)));
        kept.durable("q", argument.as_slice());
        publish(&mut kept, 0..MANY);
        set_policy(&kept, r#"{"queue-mode": "lazy"}"#);
        kept.page();
        assert_eq!(kept.world.broker.held().paged_messages > MANY as u64 / 2, pages);
        assert_eq!(kept.drain("q"), bodies(0..MANY));
    }
}

fn set_policy(kept: &Kept, definition: &str) {
    let definition =
        PolicyDefinition::parse(&serde_json::from_str(definition).unwrap(), Compatibility::V3_10).unwrap();
    let (name, priority, apply_to) = ("p".into(), 0, ApplyTo::All);
    let pattern = Pattern::new(".*").unwrap();
    kept.world.vhost.set_policy(Policy { name, pattern, apply_to, priority, definition }, kept.world.now);
}

#[test]
fn above_the_watermark_queues_that_nobody_touches_let_go_and_stop_below_it() {
    let mut kept = paging(4, (MANY * BODY * 3 / 2) as u64);
    kept.durable("q", &[]);
    publish(&mut kept, 0..MANY);
    assert!(!kept.page());
    kept.durable("other", &[]);
    (0..MANY).for_each(|number| drop(kept.publish("", "other", &body(number))));
    kept.page();
    let held = kept.world.broker.held();
    assert!(held.resident < held.watermark && held.resident > held.watermark / 2, "{held:?}");
    assert_eq!((kept.drain("q"), kept.drain("other")), (bodies(0..MANY), bodies(0..MANY)));
}

#[test]
fn a_consumer_is_served_from_disk_as_it_goes_on() {
    let (kept, queue) = backlog(5, &[]);
    let (id, consumer) = kept.world.consume(&queue, 100, 0);
    for done in 1.. {
        kept.page();
        let got = consumer.got.lock().len();
        assert_eq!(got, (100 * done).min(MANY));
        if got == MANY {
            break;
        }
        *consumer.room.lock() = 100;
        queue.resume(id, kept.world.now);
    }
    assert_eq!(consumer.bodies(), bodies(0..MANY));
}

#[test]
fn get_waits_for_a_message_on_disk_and_is_not_told_that_there_is_none() {
    let (kept, queue) = backlog(6, &[]);
    let reported = Arc::new(Told::default());
    let waiter: Arc<dyn Waiter> = reported.clone();
    let in_memory = std::iter::from_fn(|| queue.get(true, kept.world.now)).count();
    assert!(in_memory < MANY / 3);
    for _ in 0..3 {
        assert!(matches!(queue.fetch(true, kept.world.now, &waiter), Fetched::Later));
    }
    assert_eq!(reported.times(), 0);
    kept.page();
    assert_eq!(reported.times(), 1);
    let Fetched::Got(got) = queue.fetch(true, kept.world.now, &waiter) else { panic!("it is there") };
    assert_eq!(text(&got.delivery), body(in_memory));
    assert_eq!(got.remaining as usize, MANY - in_memory - 1);
}

#[test]
fn who_waits_is_told_when_the_queue_is_purged_or_deleted() {
    for delete in [false, true] {
        let (kept, queue) = backlog(7, &[]);
        while queue.get(true, kept.world.now).is_some() {}
        let reported = Arc::new(Told::default());
        let waiter: Arc<dyn Waiter> = reported.clone();
        assert!(matches!(queue.fetch(true, kept.world.now, &waiter), Fetched::Later));
        if delete {
            kept.world.vhost.delete_queue(ME, "q", false, false).unwrap();
        } else {
            queue.purge();
        }
        assert_eq!(reported.times(), 1);
        assert!(matches!(queue.fetch(true, kept.world.now, &waiter), Fetched::Empty));
        // The load that was requested has nothing to do.
        kept.page();
        assert_eq!((queue.message_count(), files_of_transient(&kept)), (0, 0));
    }
}

#[test]
fn requeued_messages_return_before_what_is_on_disk() {
    let (kept, queue) = backlog(8, &[]);
    let held: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, false)).take(200).collect();
    queue.requeue(held, Returned::Failed, kept.world.now);
    let back: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, true)).collect();
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
    let (mut kept, queue) = backlog(9, &arguments);
    let dead = kept.durable("dead", &[]);
    kept.world.now = kept.world.now.after(1000);
    // As in a server: handles due deadlines, and the disk work that they cause.
    while queue.message_count() > 0 {
        kept.world.wait(0);
        assert!(kept.page());
    }
    assert_eq!(dead.message_count(), MANY as u64);
    assert_eq!(kept.drain("dead"), bodies(0..MANY));
}

#[test]
fn a_limit_drops_the_head_even_if_that_is_on_disk() {
    let limits = [("x-max-length", MANY / 3), ("x-max-length-bytes", MANY / 3 * BODY)];
    for (limit, most) in limits {
        let (mut kept, queue) = backlog(10, &[]);
        set_policy(&kept, &format!(r#"{{"{}": {most}}}"#, limit.trim_start_matches("x-")));
        kept.page();
        assert_eq!(queue.message_count() as usize, MANY / 3);
        publish(&mut kept, MANY..MANY + 10);
        kept.page();
        assert_eq!(kept.drain("q"), bodies(MANY + 10 - MANY / 3..MANY + 10));
    }
}

#[test]
fn a_full_queue_refuses_what_is_too_much_though_most_of_it_is_on_disk() {
    let full = [
        ("x-max-length-bytes", FieldValue::I32((MANY * BODY) as i32)),
        ("x-overflow", FieldValue::text("reject-publish")),
    ];
    let (mut kept, queue) = backlog(11, &full);
    assert_eq!(kept.publish("", "q", "x").refused, [0]);
    assert!(kept.fetch(&queue, true).is_some());
    assert!(kept.publish("", "q", &body(MANY)).refused.is_empty());
    assert_eq!(kept.drain("q"), bodies(1..=MANY));
}

/// Restarts after a crash, with the messages on disk either in the journal or in the queue's own segments.
fn restart(mut kept: Kept, retired: bool) -> Kept {
    if retired {
        kept.retire()
    } else {
        kept.sync()
    }
    kept.crash()
}

#[test]
fn a_restart_brings_back_numbers_and_leaves_the_messages_on_disk() {
    for retired in [false, true] {
        let (kept, queue) = backlog(12, &[]);
        let taken: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, false)).take(25).collect();
        // Scattered, so that a start has to count within a segment.
        let (acked, left): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|delivery| text(delivery).trim_end().ends_with('3'));
        queue.ack(acked, kept.world.now);
        drop(left);
        let mut kept = restart(kept, retired);
        let survives = |number: &usize| is_persistent(*number) && (*number >= 25 || number % 10 != 3);
        let expected: Vec<_> = (0..MANY).filter(survives).collect();
        let held = kept.world.broker.held();
        assert_eq!(held.paged_messages, expected.len() as u64, "nothing is in memory");
        assert_eq!(held.paged_bytes, (expected.len() * BODY) as u64);
        assert_eq!(kept.queue("q").message_count(), expected.len() as u64);
        kept.publish("", "q", &body(MANY));
        let queue = kept.queue("q");
        let back: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, true)).collect();
        let numbers = expected.iter().copied().chain([MANY]);
        assert_eq!(back.iter().map(text).collect::<Vec<_>>(), bodies(numbers));
        let redelivered = back.iter().filter(|delivery| delivery.redelivered()).count();
        assert_eq!(redelivered, expected.iter().filter(|number| **number < 25).count());
        kept.sync();
        assert_eq!(kept.crash().drain("q"), Vec::<String>::new());
    }
}

#[test]
fn a_restart_keeps_when_messages_on_disk_expire_and_what_they_died_of() {
    for retired in [false, true] {
        let mut kept = paging(19, 0);
        let arguments = [
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("dead")),
            ("x-message-ttl", FieldValue::I32(10_000)),
        ];
        kept.durable("q", &arguments);
        kept.durable("dead", &[]);
        persistent(&mut kept, MANY);
        kept.page();
        kept.world.now = kept.world.now.after(4000);
        let mut kept = restart(kept, retired);
        assert_eq!(kept.world.broker.held().paged_messages, MANY as u64);
        let queue = kept.queue("q");
        kept.world.wait(5999);
        kept.page();
        assert_eq!(queue.message_count(), MANY as u64, "a moment before");
        kept.world.wait(1);
        while queue.message_count() > 0 {
            kept.world.wait(0);
            assert!(kept.page());
        }
        let kept = restart(kept, retired);
        assert!(kept.world.broker.held().paged_messages > MANY as u64 / 2);
        let dead = kept.queue("dead");
        let letters: Vec<_> = std::iter::from_fn(|| kept.fetch(&dead, true)).collect();
        assert_eq!(letters.iter().map(text).collect::<Vec<_>>(), bodies(0..MANY));
        let reason = |letter: &Delivery| headers_of(letter).get("x-first-death-reason").cloned();
        assert!(letters.iter().all(|letter| reason(letter) == Some(FieldValue::text("expired"))));
    }
}

#[test]
fn priorities_hold_on_disk_and_after_a_restart() {
    for restart in [None, Some(false), Some(true)] {
        let mut kept = paging(13, 0);
        kept.durable("q", &[("x-max-priority", FieldValue::I32(4))]);
        for number in 0..MANY {
            let properties = Properties::default().with_delivery_mode(2).with_priority((number % 5) as u8);
            kept.publish_with("", "q", &body(number), properties);
            kept.page();
        }
        match restart {
            None => {}
            Some(false) => kept.sync(),
            Some(true) => kept.retire(),
        }
        if restart.is_some() {
            kept = kept.crash();
            assert_eq!(kept.world.broker.held().paged_bytes, (MANY * BODY) as u64);
        }
        let expected = (0..5).rev().flat_map(|priority| (priority..MANY).step_by(5));
        assert_eq!(kept.drain("q"), bodies(expected));
    }
}

#[test]
fn the_order_of_quorum_queues_of_rabbitmq_4_holds_on_disk_and_after_a_restart() {
    for restart in [None, Some(false), Some(true)] {
        let mut kept = paging_as(Compatibility::V4, 21, 0);
        let queue = kept.durable("q", &[("x-queue-type", FieldValue::text("quorum"))]);
        let priority_of = |number: usize| [None, Some(0), Some(5), Some(4), Some(40)][number % 5];
        for number in 0..MANY {
            let priority = priority_of(number);
            let properties = Properties { delivery_mode: Some(2), priority, ..Properties::default() };
            kept.publish_with("", "q", &body(number), properties);
            kept.page();
        }
        assert!(kept.world.broker.held().paged_messages > MANY as u64 / 2);
        let rank = |number: &usize| priority_of(*number).map_or(4, |priority| priority.min(31));
        let mut expected: Vec<usize> = (0..MANY).collect();
        expected.sort_by_key(|number| std::cmp::Reverse(rank(number)));
        // All of one priority and some of the next are delivered, and come back.
        let taken: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, false)).take(150).collect();
        match restart {
            None => {
                taken
                    .into_iter()
                    .rev()
                    .for_each(|one| queue.requeue(vec![one], Returned::Failed, kept.world.now));
                expected[..150].reverse();
            }
            Some(false) => kept.sync(),
            Some(true) => kept.retire(),
        }
        if restart.is_some() {
            kept = kept.crash();
            assert_eq!(kept.world.broker.held().paged_bytes, (MANY * BODY) as u64);
        }
        // A newcomer is behind what came back, however high its priority.
        kept.publish_with(
            "",
            "q",
            &body(MANY),
            Properties::default().with_delivery_mode(2).with_priority(31),
        );
        expected.insert(150, MANY);
        assert_eq!(expected[..150].iter().filter(|number| rank(number) == 31).count(), 120);
        let queue = kept.queue("q");
        assert_eq!(queue.priorities().map(|counts| counts.returned), Some(150));
        assert_eq!(kept.drain("q"), bodies(expected));
        assert_eq!(queue.message_count(), 0);
    }
}

#[test]
fn a_delivery_limit_counts_for_what_a_restart_left_on_disk() {
    let mut kept = paging(14, 0);
    let quorum = [("x-queue-type", FieldValue::text("quorum")), ("x-delivery-limit", FieldValue::I32(1))];
    kept.durable("q", &quorum);
    persistent(&mut kept, MANY);
    for _ in 0..2 {
        let queue = kept.queue("q");
        let taken = std::iter::from_fn(|| kept.fetch(&queue, false)).take(200).count();
        assert_eq!(taken, 200);
        kept.sync();
        kept = kept.crash();
    }
    kept.page();
    assert_eq!(kept.drain("q"), bodies(200..MANY), "delivered more often than allowed");
}

#[test]
fn a_message_of_many_queues_counts_once_in_memory() {
    let mut kept = paging(17, u64::MAX);
    for at in 0..50 {
        let name = format!("q{at}");
        kept.durable(&name, &[]);
        kept.world.bind(&name, "amq.fanout", "");
    }
    kept.publish("amq.fanout", "", &"x".repeat(100_000));
    let resident = kept.world.broker.held().resident;
    assert!((100_000..110_000).contains(&resident), "{resident}");
}

#[test]
fn a_large_message_that_has_left_makes_no_room_for_others() {
    let mut kept = paging(24, 0);
    let queue = kept.durable("q", &[]);
    kept.publish_with("", "q", &"x".repeat(MANY * BODY), properties(0));
    kept.page();
    assert_eq!(kept.world.broker.held().paged_messages, 0, "the first one stays");
    assert!(kept.fetch(&queue, true).is_some());
    publish(&mut kept, 0..MANY);
    kept.page();
    assert_mostly_on_disk(&kept);
}
