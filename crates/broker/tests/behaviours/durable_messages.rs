//! Persistent messages of durable queues survive a restart and a power failure.

use std::collections::BTreeSet;

use amqp::{FieldValue, Properties};
use broker::*;
use store::disk::simulated::{Faults, SimRandom};
use store::journal::CommitOutcome;

use crate::disk_world::{DiskWorld, disk_world, paging};
use crate::world::*;

#[test]
fn messages_on_disk_are_restored_unchanged_and_in_order() {
    let mut disk_world = disk_world(1);
    disk_world.durable("q", &[]);
    let properties = Properties::default().with_delivery_mode(2).with_message_id("id".into());
    let first = disk_world.publish_with("", "q", "one", properties);
    let until = disk_world.publish("", "q", "two").until;
    assert!(first.until < until && until > Some(disk_world.store.durable()));
    disk_world.sync();
    assert!(until <= Some(disk_world.store.durable()));
    let disk_world = disk_world.crash();
    let one = disk_world.world.get(&disk_world.queue("q"));
    assert_eq!((text(&one).as_str(), one.redelivered(), one.message().routing_key()), ("one", false, "q"));
    let properties = Properties::decode(one.message().properties()).unwrap();
    assert_eq!(properties.message_id, Some("id".into()));
    assert_eq!(disk_world.drain("q"), ["two"]);
}

#[test]
fn settled_messages_are_not_restored() {
    let mut disk_world = disk_world(2);
    let queue = disk_world.durable("q", &[]);
    ["acked", "taken", "dropped", "left"].iter().for_each(|body| drop(disk_world.publish("", "q", body)));
    queue.ack(vec![disk_world.world.get(&queue)], disk_world.world.now);
    assert!(queue.get(true, disk_world.world.now).is_some());
    queue.reject(vec![disk_world.world.get(&queue)], Returned::Failed, disk_world.world.now);
    disk_world.sync();
    assert_eq!(disk_world.crash().drain("q"), ["left"]);
}

#[test]
fn unsettled_deliveries_are_restored_as_redelivered() {
    let mut disk_world = disk_world(3);
    let queue = disk_world.durable("q", &[]);
    ["got", "consumed", "fresh"].iter().for_each(|body| drop(disk_world.publish("", "q", body)));
    let got = disk_world.world.get(&queue);
    let (_, consumer) = disk_world.world.consume(&queue, 1, 0);
    assert_eq!((text(&got).as_str(), consumer.bodies()), ("got", vec!["consumed".to_owned()]));
    disk_world.sync();
    let disk_world = disk_world.crash();
    let back: Vec<_> = std::iter::from_fn(|| disk_world.queue("q").get(true, disk_world.world.now)).collect();
    let flags: Vec<_> = back.iter().map(|got| (text(&got.delivery), got.delivery.redelivered())).collect();
    let expected = [("got", true), ("consumed", true), ("fresh", false)];
    assert_eq!(flags, expected.map(|(body, redelivered)| (body.to_owned(), redelivered)));
}

#[test]
fn a_delivery_limit_counts_across_restarts() {
    let mut disk_world = disk_world(4);
    let limited = [("x-queue-type", FieldValue::text("quorum")), ("x-delivery-limit", FieldValue::I32(1))];
    disk_world.durable("q", &limited);
    disk_world.publish("", "q", "poison");
    for attempt in 0..2 {
        let delivery = disk_world.world.get(&disk_world.queue("q"));
        assert_eq!(delivery.redelivered(), attempt > 0);
        disk_world.sync();
        disk_world = disk_world.crash();
    }
    assert_eq!(disk_world.drain("q"), Vec::<String>::new(), "delivered more often than allowed");
}

/// As in RabbitMQ, a reduced limit drops no message before its next failure.
#[test]
fn a_start_drops_no_message_that_failed_more_often_than_a_newer_limit_allows() {
    let mut disk_world = disk_world(36);
    let queue = disk_world.durable("q", &[("x-queue-type", FieldValue::text("quorum"))]);
    disk_world.publish("", "q", "kept");
    for _ in 0..25 {
        queue.requeue(vec![disk_world.world.get(&queue)], Returned::Released, disk_world.world.now);
    }
    disk_world.sync();
    let disk_world = disk_world.crash_into(Compatibility::V4);
    let queue = disk_world.queue("q");
    assert_eq!((queue.delivery_limit(), queue.message_count()), (Some(20), 1));
    queue.requeue(vec![disk_world.world.get(&queue)], Returned::Failed, disk_world.world.now);
    assert_eq!(queue.message_count(), 0, "that was its next failure");
}

/// As in RabbitMQ, quorum queues store messages whatever their delivery mode is; other queues of the same messages do not.
#[test]
fn a_quorum_queue_stores_transient_messages_too() {
    let quorum = [("x-queue-type", FieldValue::text("quorum"))];
    // The order of the queues decides which of them is the last to refer to a message.
    for (seed, names) in [(5, ["a-quorum", "b"]), (6, ["b-quorum", "a"])] {
        let [quorum_name, classic] = names;
        let mut disk_world = disk_world(seed);
        disk_world.durable(quorum_name, &quorum);
        disk_world.durable(classic, &[]);
        names.iter().for_each(|name| disk_world.world.bind(name, "amq.fanout", ""));
        let transient = |disk_world: &mut DiskWorld, body| {
            disk_world.publish_with("amq.fanout", "", body, Properties::default().with_delivery_mode(1)).until
        };
        assert!(transient(&mut disk_world, "acked").is_some(), "the acknowledgement is stored");
        disk_world.publish("amq.fanout", "", "persistent");
        transient(&mut disk_world, "delivered");
        transient(&mut disk_world, "left");
        let queue = disk_world.queue(quorum_name);
        let taken: Vec<_> = (0..3).map(|_| disk_world.world.get(&queue)).collect();
        queue.ack(vec![taken.into_iter().next().unwrap()], disk_world.world.now);
        disk_world.sync();
        let mut disk_world = disk_world.crash();
        assert_eq!(disk_world.drain(classic), ["persistent"]);
        let back: Vec<_> =
            std::iter::from_fn(|| disk_world.queue(quorum_name).get(false, disk_world.world.now)).collect();
        let flags: Vec<_> =
            back.iter().map(|got| (text(&got.delivery), got.delivery.redelivered())).collect();
        let expected = [("persistent", true), ("delivered", true), ("left", false)];
        assert_eq!(flags, expected.map(|(body, redelivered)| (body.to_owned(), redelivered)));
        back.into_iter()
            .for_each(|got| _ = disk_world.queue(quorum_name).ack(vec![got.delivery], disk_world.world.now));
        disk_world.retire();
        let disk_world = disk_world.crash();
        assert_eq!(disk_world.drain(quorum_name), Vec::<String>::new());
        let live = disk_world.store.journal().segments().iter().map(|segment| segment.live).sum::<u64>();
        assert_eq!(live, 0, "no queue refers to a message any more");
    }
}

#[test]
fn a_transient_message_of_a_quorum_queue_is_stored_as_a_dead_letter_where_that_is_a_quorum_queue() {
    let mut disk_world = disk_world(7);
    let dead = |to: &str| {
        [
            ("x-queue-type", FieldValue::text("quorum")),
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text(to)),
        ]
    };
    disk_world.durable("to-quorum", &dead("quorum"));
    disk_world.durable("to-classic", &dead("classic"));
    disk_world.durable("quorum", &[("x-queue-type", FieldValue::text("quorum"))]);
    disk_world.durable("classic", &[]);
    for from in ["to-quorum", "to-classic"] {
        disk_world.publish_with("", from, "m", Properties::default());
        let queue = disk_world.queue(from);
        queue.reject(vec![disk_world.world.get(&queue)], Returned::Failed, disk_world.world.now);
    }
    disk_world.sync();
    let disk_world = disk_world.crash();
    assert_eq!(disk_world.drain("quorum"), ["m"]);
    assert!(["to-quorum", "to-classic", "classic"].iter().all(|queue| disk_world.drain(queue).is_empty()));
}

#[test]
fn each_of_many_queues_has_its_own() {
    let mut disk_world = disk_world(5);
    for name in ["a", "b", "c"] {
        disk_world.durable(name, &[]);
        disk_world.world.bind(name, "amq.fanout", "");
    }
    disk_world.world.queue("transient");
    disk_world.world.bind("transient", "amq.fanout", "");
    disk_world.publish("amq.fanout", "", "one");
    disk_world.publish("amq.fanout", "", "two");
    let queue = disk_world.queue("b");
    queue.ack(vec![disk_world.world.get(&queue)], disk_world.world.now);
    disk_world.world.vhost.delete_queue(ME, "c", false, false).unwrap();
    disk_world.sync();
    let disk_world = disk_world.crash();
    let live = disk_world.store.journal().segments().iter().map(|segment| segment.live).sum::<u64>();
    assert_eq!(live, 3, "no message of the deleted queue is needed");
    assert_eq!(
        (disk_world.drain("a"), disk_world.drain("b")),
        (vec!["one".into(), "two".into()], vec!["two".to_owned()])
    );
    assert!(
        disk_world.world.vhost.queue(ME, "c").is_err()
            && disk_world.world.vhost.queue(ME, "transient").is_err()
    );
}

#[test]
fn transient_messages_and_queues_write_nothing_to_disk() {
    let mut disk_world = disk_world(6);
    disk_world.durable("durable", &[]);
    disk_world.world.queue("transient");
    let before = disk_world.store.end();
    let of_transient = disk_world.publish_with("", "durable", "m", Properties::default());
    let in_transient = disk_world.publish("", "transient", "m");
    assert_eq!((of_transient.until, in_transient.until), (None, None));
    let queue = disk_world.queue("durable");
    queue.ack(vec![disk_world.world.get(&queue)], disk_world.world.now);
    queue.purge();
    assert_eq!(disk_world.store.end(), before);
}

#[test]
fn a_dead_letter_is_in_one_place_wherever_the_power_fails() {
    for seed in 0..20 {
        let mut disk_world = disk_world(seed);
        let dlx = [
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ];
        let queue = disk_world.durable("q", &dlx);
        disk_world.durable("dead", &[]);
        disk_world.publish("", "q", "m");
        disk_world.sync();
        queue.reject(vec![disk_world.world.get(&queue)], Returned::Failed, disk_world.world.now);
        // The kernel may have written any part of the last round.
        disk_world.disk.set_faults(Faults { sync: 500, write: 300, names: 0 });
        disk_world.rounds.step();
        let found = disk_world.crash();
        let (original, letter) = (found.drain("q").len(), found.drain("dead").len());
        assert_eq!(original + letter, 1, "seed {seed}: {original} in the queue, {letter} as a letter");
        disk_world.disk.set_faults(Faults::default());
        disk_world.sync();
        let found = disk_world.crash();
        assert_eq!((found.drain("q").len(), found.drain("dead").len()), (0, 1), "seed {seed}");
    }
}

#[test]
fn time_goes_on_while_the_broker_is_down() {
    let mut disk_world = disk_world(7);
    let dlx = [
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ("x-message-ttl", FieldValue::I32(10_000)),
    ];
    disk_world.durable("q", &dlx);
    disk_world.durable("dead", &[]);
    let persistent = Properties::default().with_delivery_mode(2);
    disk_world.publish_with("", "q", "short", persistent.with_expiration("1000"));
    disk_world.publish("", "q", "long");
    disk_world.sync();
    disk_world.world.now = disk_world.world.now.after(2000);
    let mut disk_world = disk_world.crash();
    assert_eq!((disk_world.queue("q").message_count(), disk_world.queue("dead").message_count()), (1, 1));
    disk_world.world.wait(9000);
    disk_world.sync();
    let disk_world = disk_world.crash();
    assert_eq!(
        (disk_world.drain("q"), disk_world.drain("dead")),
        (vec![], vec!["short".into(), "long".to_owned()])
    );
}

#[test]
fn priorities_and_lengths_hold_after_a_restart() {
    let mut disk_world = disk_world(8);
    disk_world.durable("ranked", &[("x-max-priority", FieldValue::I32(3))]);
    disk_world.durable("short", &[("x-max-length", FieldValue::I32(2))]);
    for (body, priority) in [("low", 0), ("high", 3), ("middle", 1)] {
        let properties = Properties::default().with_delivery_mode(2).with_priority(priority);
        disk_world.publish_with("", "ranked", body, properties);
        disk_world.publish("", "short", body);
    }
    disk_world.sync();
    let mut disk_world = disk_world.crash();
    assert_eq!(disk_world.drain("ranked"), ["high", "middle", "low"]);
    disk_world.publish("", "short", "new");
    assert_eq!(disk_world.drain("short"), ["middle", "new"]);
}

#[test]
fn purged_messages_are_not_restored_once_purge_ok_may_be_sent() {
    let mut disk_world = disk_world(9);
    let queue = disk_world.durable("q", &[]);
    let held = {
        disk_world.publish("", "q", "held");
        disk_world.world.get(&queue)
    };
    disk_world.publish("", "q", "purged");
    let (count, until) = queue.purge();
    assert!(count == 1 && until > Some(disk_world.store.durable()));
    disk_world.sync();
    let disk_world = disk_world.crash();
    assert_eq!(disk_world.drain("q"), ["held"], "it was with a client");
    drop(held);
}

#[test]
fn a_purge_of_an_empty_queue_waits_for_an_earlier_purge() {
    let mut disk_world = disk_world(9);
    let queue = disk_world.durable("q", &[]);
    disk_world.publish("", "q", "purged");
    disk_world.sync();
    let (_, first) = queue.purge();
    let (count, second) = queue.purge();
    assert_eq!(count, 0);
    assert!(second >= first && first > Some(disk_world.store.durable()), "{first:?} {second:?}");
    disk_world.sync();
    assert!(queue.purge().1 <= Some(disk_world.store.durable()), "nothing to wait for");
}

#[test]
fn a_queue_with_the_name_of_a_deleted_one_is_empty() {
    let mut disk_world = disk_world(10);
    disk_world.durable("q", &[]);
    disk_world.publish("", "q", "old");
    disk_world.world.vhost.delete_queue(ME, "q", false, false).unwrap();
    disk_world.durable("q", &[]);
    disk_world.publish("", "q", "new");
    disk_world.sync();
    assert_eq!(disk_world.crash().drain("q"), ["new"]);
}

#[test]
fn a_failing_disk_confirms_nothing_and_its_messages_are_written_later() {
    let mut disk_world = disk_world(11);
    disk_world.durable("q", &[]);
    disk_world.sync();
    disk_world.disk.set_faults(Faults { sync: 1000, write: 0, names: 0 });
    let until = disk_world.publish("", "q", "m").until;
    assert!(matches!(disk_world.rounds.step(), CommitOutcome::Failed(_)));
    assert!(disk_world.store.failing().is_some() && until > Some(disk_world.store.durable()));
    disk_world.disk.set_faults(Faults::default());
    disk_world.sync();
    assert!(disk_world.store.failing().is_none() && until <= Some(disk_world.store.durable()));
    assert_eq!(disk_world.crash().drain("q"), ["m"]);
}

/// Random publishes and settlements, with occasional power failures: all messages that were on disk are restored, in
/// order, except those whose settlement was on disk.
#[test]
fn no_confirmed_message_is_lost_and_none_settled_comes_back() {
    for seed in 0..4 {
        random_life(seed, disk_world(seed), 0);
    }
}

/// The same with long messages, most of which are on disk only.
#[test]
fn no_confirmed_message_is_lost_while_most_are_paged_out() {
    for seed in 0..8 {
        random_life(seed, paging(seed, 0), 20_000);
    }
}

fn random_life(seed: u64, mut disk_world: DiskWorld, bytes: usize) {
    let mut random = SimRandom::new(seed);
    disk_world.durable("q", &[]);
    disk_world.sync();
    let (mut next, mut held) = (0u32, Vec::<Delivery>::new());
    // By message number: published, known to be on disk, settled, settlement known to be on disk.
    let (mut published, mut confirmed) = (BTreeSet::new(), BTreeSet::new());
    let (mut settled, mut gone) = (BTreeSet::new(), BTreeSet::new());
    let number = |delivery: &Delivery| text(delivery).trim_end().parse::<u32>().unwrap();
    for _ in 0..60 {
        match random.below(8) {
            0..=2 => {
                for _ in 0..=random.below(5) {
                    disk_world.publish("", "q", &format!("{next:<bytes$}"));
                    published.insert(next);
                    next += 1;
                }
            }
            3 => held.extend(disk_world.fetch(&disk_world.queue("q"), false)),
            4 if !held.is_empty() => {
                let delivery = held.swap_remove(random.below(held.len() as u64) as usize);
                settled.insert(number(&delivery));
                disk_world.queue("q").ack(vec![delivery], disk_world.world.now);
            }
            5 if !held.is_empty() => {
                let delivery = held.swap_remove(0);
                disk_world.queue("q").requeue(vec![delivery], Returned::Failed, disk_world.world.now);
            }
            6 => {
                if random.below(2) == 0 {
                    disk_world.sync()
                } else {
                    disk_world.retire()
                }
                disk_world.page();
                confirmed.clone_from(&published);
                gone.clone_from(&settled);
            }
            7 if random.below(3) == 0 => {
                disk_world.disk.set_faults(Faults { sync: 300, write: 300, names: 0 });
                if matches!(disk_world.rounds.step(), CommitOutcome::Committed) {
                    confirmed.clone_from(&published);
                    gone.clone_from(&settled);
                }
                disk_world = disk_world.crash();
                held.clear();
                let queue = disk_world.queue("q");
                let found: Vec<_> = std::iter::from_fn(|| disk_world.fetch(&queue, false)).collect();
                let numbers: Vec<_> = found.iter().map(number).collect();
                assert!(numbers.is_sorted(), "seed {seed}: {numbers:?}");
                let there: BTreeSet<_> = numbers.iter().copied().collect();
                assert_eq!(there.len(), numbers.len(), "seed {seed}: twice");
                let lost: Vec<_> =
                    confirmed.difference(&settled).filter(|one| !there.contains(one)).collect();
                assert!(lost.is_empty(), "seed {seed}: lost {lost:?}");
                let back: Vec<_> = there.intersection(&gone).collect();
                assert!(back.is_empty(), "seed {seed}: back {back:?}");
                queue.requeue(found, Returned::Failed, disk_world.world.now);
                // Messages neither confirmed nor found count as never published; messages found count as not
                // settled.
                published.clone_from(&there);
                confirmed.clear();
                settled.retain(|one| !there.contains(one));
            }
            _ => {}
        }
    }
}
