//! Persistent messages of durable queues survive a restart and a power failure.

use std::collections::BTreeSet;

use amqp::{FieldValue, Properties};
use broker::*;
use store::disk::simulated::{Dice, Faults};
use store::journal::CommitOutcome;

use crate::kept::{Kept, kept, paging};
use crate::world::*;

#[test]
fn what_is_on_disk_comes_back_in_order_and_as_it_was() {
    let mut kept = kept(1);
    kept.durable("q", &[]);
    let properties = Properties::default().with_delivery_mode(2).with_message_id("id".into());
    let first = kept.publish_with("", "q", "one", properties);
    let until = kept.publish("", "q", "two").until;
    assert!(first.until < until && until > Some(kept.store.durable()));
    kept.sync();
    assert!(until <= Some(kept.store.durable()));
    let kept = kept.crash();
    let one = kept.world.get(&kept.queue("q"));
    assert_eq!((text(&one).as_str(), one.redelivered(), one.message().routing_key()), ("one", false, "q"));
    let properties = Properties::decode(one.message().properties()).unwrap();
    assert_eq!(properties.message_id, Some("id".into()));
    assert_eq!(kept.drain("q"), ["two"]);
}

#[test]
fn what_is_settled_on_disk_stays_away() {
    let mut kept = kept(2);
    let queue = kept.durable("q", &[]);
    ["acked", "taken", "dropped", "left"].iter().for_each(|body| drop(kept.publish("", "q", body)));
    queue.ack(vec![kept.world.get(&queue)], kept.world.now);
    assert!(queue.get(true, kept.world.now).is_some());
    queue.reject(vec![kept.world.get(&queue)], Returned::Failed, kept.world.now);
    kept.sync();
    assert_eq!(kept.crash().drain("q"), ["left"]);
}

#[test]
fn what_was_delivered_and_not_settled_comes_back_as_redelivered() {
    let mut kept = kept(3);
    let queue = kept.durable("q", &[]);
    ["got", "consumed", "fresh"].iter().for_each(|body| drop(kept.publish("", "q", body)));
    let got = kept.world.get(&queue);
    let (_, consumer) = kept.world.consume(&queue, 1, 0);
    assert_eq!((text(&got).as_str(), consumer.bodies()), ("got", vec!["consumed".to_owned()]));
    kept.sync();
    let kept = kept.crash();
    let back: Vec<_> = std::iter::from_fn(|| kept.queue("q").get(true, kept.world.now)).collect();
    let flags: Vec<_> = back.iter().map(|got| (text(&got.delivery), got.delivery.redelivered())).collect();
    let expected = [("got", true), ("consumed", true), ("fresh", false)];
    assert_eq!(flags, expected.map(|(body, redelivered)| (body.to_owned(), redelivered)));
}

#[test]
fn a_delivery_limit_counts_across_restarts() {
    let mut kept = kept(4);
    let limited = [("x-queue-type", FieldValue::text("quorum")), ("x-delivery-limit", FieldValue::I32(1))];
    kept.durable("q", &limited);
    kept.publish("", "q", "poison");
    for attempt in 0..2 {
        let delivery = kept.world.get(&kept.queue("q"));
        assert_eq!(delivery.redelivered(), attempt > 0);
        kept.sync();
        kept = kept.crash();
    }
    assert_eq!(kept.drain("q"), Vec::<String>::new(), "delivered more often than allowed");
}

/// As in RabbitMQ, quorum queues store messages whatever their delivery mode is; other queues of the same messages do not.
#[test]
fn a_quorum_queue_stores_transient_messages_too() {
    let quorum = [("x-queue-type", FieldValue::text("quorum"))];
    // The order of the queues decides which of them is the last to refer to a message.
    for (seed, names) in [(5, ["a-quorum", "b"]), (6, ["b-quorum", "a"])] {
        let [quorum_name, classic] = names;
        let mut kept = kept(seed);
        kept.durable(quorum_name, &quorum);
        kept.durable(classic, &[]);
        names.iter().for_each(|name| kept.world.bind(name, "amq.fanout", ""));
        let transient = |kept: &mut Kept, body| {
            kept.publish_with("amq.fanout", "", body, Properties::default().with_delivery_mode(1)).until
        };
        assert!(transient(&mut kept, "acked").is_some(), "there is something to wait for");
        kept.publish("amq.fanout", "", "persistent");
        transient(&mut kept, "delivered");
        transient(&mut kept, "left");
        let queue = kept.queue(quorum_name);
        let taken: Vec<_> = (0..3).map(|_| kept.world.get(&queue)).collect();
        queue.ack(vec![taken.into_iter().next().unwrap()], kept.world.now);
        kept.sync();
        let mut kept = kept.crash();
        assert_eq!(kept.drain(classic), ["persistent"]);
        let back: Vec<_> =
            std::iter::from_fn(|| kept.queue(quorum_name).get(false, kept.world.now)).collect();
        let flags: Vec<_> =
            back.iter().map(|got| (text(&got.delivery), got.delivery.redelivered())).collect();
        let expected = [("persistent", true), ("delivered", true), ("left", false)];
        assert_eq!(flags, expected.map(|(body, redelivered)| (body.to_owned(), redelivered)));
        back.into_iter().for_each(|got| _ = kept.queue(quorum_name).ack(vec![got.delivery], kept.world.now));
        kept.retire();
        let kept = kept.crash();
        assert_eq!(kept.drain(quorum_name), Vec::<String>::new());
        let live = kept.store.journal().segments().iter().map(|segment| segment.live).sum::<u64>();
        assert_eq!(live, 0, "nobody refers to a message any more");
    }
}

#[test]
fn a_transient_message_of_a_quorum_queue_is_stored_as_a_dead_letter_where_that_is_a_quorum_queue() {
    let mut kept = kept(7);
    let dead = |to: &str| {
        [
            ("x-queue-type", FieldValue::text("quorum")),
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text(to)),
        ]
    };
    kept.durable("to-quorum", &dead("quorum"));
    kept.durable("to-classic", &dead("classic"));
    kept.durable("quorum", &[("x-queue-type", FieldValue::text("quorum"))]);
    kept.durable("classic", &[]);
    for from in ["to-quorum", "to-classic"] {
        kept.publish_with("", from, "m", Properties::default());
        let queue = kept.queue(from);
        queue.reject(vec![kept.world.get(&queue)], Returned::Failed, kept.world.now);
    }
    kept.sync();
    let kept = kept.crash();
    assert_eq!(kept.drain("quorum"), ["m"]);
    assert!(["to-quorum", "to-classic", "classic"].iter().all(|queue| kept.drain(queue).is_empty()));
}

#[test]
fn each_of_many_queues_has_its_own() {
    let mut kept = kept(5);
    for name in ["a", "b", "c"] {
        kept.durable(name, &[]);
        kept.world.bind(name, "amq.fanout", "");
    }
    kept.world.queue("transient");
    kept.world.bind("transient", "amq.fanout", "");
    kept.publish("amq.fanout", "", "one");
    kept.publish("amq.fanout", "", "two");
    let queue = kept.queue("b");
    queue.ack(vec![kept.world.get(&queue)], kept.world.now);
    kept.world.vhost.delete_queue(ME, "c", false, false).unwrap();
    kept.sync();
    let kept = kept.crash();
    let live = kept.store.journal().segments().iter().map(|segment| segment.live).sum::<u64>();
    assert_eq!(live, 3, "of the deleted queue nothing is needed");
    assert_eq!(
        (kept.drain("a"), kept.drain("b")),
        (vec!["one".into(), "two".into()], vec!["two".to_owned()])
    );
    assert!(kept.world.vhost.queue(ME, "c").is_err() && kept.world.vhost.queue(ME, "transient").is_err());
}

#[test]
fn what_is_not_to_last_costs_nothing() {
    let mut kept = kept(6);
    kept.durable("durable", &[]);
    kept.world.queue("transient");
    let before = kept.store.end();
    let of_transient = kept.publish_with("", "durable", "m", Properties::default());
    let in_transient = kept.publish("", "transient", "m");
    assert_eq!((of_transient.until, in_transient.until), (None, None));
    let queue = kept.queue("durable");
    queue.ack(vec![kept.world.get(&queue)], kept.world.now);
    queue.purge();
    assert_eq!(kept.store.end(), before);
}

#[test]
fn a_dead_letter_is_in_one_place_wherever_the_power_fails() {
    for seed in 0..20 {
        let mut kept = kept(seed);
        let dlx = [
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ];
        let queue = kept.durable("q", &dlx);
        kept.durable("dead", &[]);
        kept.publish("", "q", "m");
        kept.sync();
        queue.reject(vec![kept.world.get(&queue)], Returned::Failed, kept.world.now);
        // The kernel has written an arbitrary part of the last round.
        kept.disk.set_faults(Faults { sync: 500, write: 300, names: 0 });
        kept.rounds.step();
        let found = kept.crash();
        let (original, letter) = (found.drain("q").len(), found.drain("dead").len());
        assert_eq!(original + letter, 1, "seed {seed}: {original} in the queue, {letter} as a letter");
        kept.disk.set_faults(Faults::default());
        kept.sync();
        let found = kept.crash();
        assert_eq!((found.drain("q").len(), found.drain("dead").len()), (0, 1), "seed {seed}");
    }
}

#[test]
fn time_goes_on_while_the_broker_is_down() {
    let mut kept = kept(7);
    let dlx = [
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
        ("x-message-ttl", FieldValue::I32(10_000)),
    ];
    kept.durable("q", &dlx);
    kept.durable("dead", &[]);
    let persistent = Properties::default().with_delivery_mode(2);
    kept.publish_with("", "q", "short", persistent.with_expiration("1000"));
    kept.publish("", "q", "long");
    kept.sync();
    kept.world.now = kept.world.now.after(2000);
    let mut kept = kept.crash();
    assert_eq!((kept.queue("q").message_count(), kept.queue("dead").message_count()), (1, 1));
    kept.world.wait(9000);
    kept.sync();
    let kept = kept.crash();
    assert_eq!((kept.drain("q"), kept.drain("dead")), (vec![], vec!["short".into(), "long".to_owned()]));
}

#[test]
fn priorities_and_lengths_hold_after_a_restart() {
    let mut kept = kept(8);
    kept.durable("ranked", &[("x-max-priority", FieldValue::I32(3))]);
    kept.durable("short", &[("x-max-length", FieldValue::I32(2))]);
    for (body, priority) in [("low", 0), ("high", 3), ("middle", 1)] {
        let properties = Properties::default().with_delivery_mode(2).with_priority(priority);
        kept.publish_with("", "ranked", body, properties);
        kept.publish("", "short", body);
    }
    kept.sync();
    let mut kept = kept.crash();
    assert_eq!(kept.drain("ranked"), ["high", "middle", "low"]);
    kept.publish("", "short", "new");
    assert_eq!(kept.drain("short"), ["middle", "new"]);
}

#[test]
fn what_was_purged_stays_away_once_its_ok_may_be_sent() {
    let mut kept = kept(9);
    let queue = kept.durable("q", &[]);
    let held = {
        kept.publish("", "q", "held");
        kept.world.get(&queue)
    };
    kept.publish("", "q", "purged");
    let (count, until) = queue.purge();
    assert!(count == 1 && until > Some(kept.store.durable()));
    kept.sync();
    let kept = kept.crash();
    assert_eq!(kept.drain("q"), ["held"], "it was with a client");
    drop(held);
}

#[test]
fn a_purge_that_finds_nothing_waits_for_what_another_has_purged() {
    let mut kept = kept(9);
    let queue = kept.durable("q", &[]);
    kept.publish("", "q", "purged");
    kept.sync();
    let (_, first) = queue.purge();
    let (count, second) = queue.purge();
    assert_eq!(count, 0);
    assert!(second >= first && first > Some(kept.store.durable()), "{first:?} {second:?}");
    kept.sync();
    assert!(queue.purge().1 <= Some(kept.store.durable()), "nothing to wait for");
}

#[test]
fn a_queue_with_the_name_of_a_deleted_one_is_empty() {
    let mut kept = kept(10);
    kept.durable("q", &[]);
    kept.publish("", "q", "old");
    kept.world.vhost.delete_queue(ME, "q", false, false).unwrap();
    kept.durable("q", &[]);
    kept.publish("", "q", "new");
    kept.sync();
    assert_eq!(kept.crash().drain("q"), ["new"]);
}

#[test]
fn a_disk_that_fails_confirms_nothing_and_what_was_published_is_there_once_it_works() {
    let mut kept = kept(11);
    kept.durable("q", &[]);
    kept.sync();
    kept.disk.set_faults(Faults { sync: 1000, write: 0, names: 0 });
    let until = kept.publish("", "q", "m").until;
    assert!(matches!(kept.rounds.step(), CommitOutcome::Failed(_)));
    assert!(kept.store.failing().is_some() && until > Some(kept.store.durable()));
    kept.disk.set_faults(Faults::default());
    kept.sync();
    assert!(kept.store.failing().is_none() && until <= Some(kept.store.durable()));
    assert_eq!(kept.crash().drain("q"), ["m"]);
}

/// Random publishes and settlements, with occasional power failures: everything that was on disk is there, in
/// order, and everything whose settlement was on disk is not.
#[test]
fn no_confirmed_message_is_lost_and_none_settled_comes_back() {
    for seed in 0..4 {
        random_life(seed, kept(seed), 0);
    }
}

/// The same with long messages, most of which are on disk only.
#[test]
fn no_confirmed_message_is_lost_while_most_are_paged_out() {
    for seed in 0..8 {
        random_life(seed, paging(seed, 0), 20_000);
    }
}

fn random_life(seed: u64, mut kept: Kept, bytes: usize) {
    let mut dice = Dice::new(seed);
    kept.durable("q", &[]);
    kept.sync();
    let (mut next, mut held) = (0u32, Vec::<Delivery>::new());
    // By message number: published, known to be on disk, settled, settlement known to be on disk.
    let (mut published, mut confirmed) = (BTreeSet::new(), BTreeSet::new());
    let (mut settled, mut gone) = (BTreeSet::new(), BTreeSet::new());
    let number = |delivery: &Delivery| text(delivery).trim_end().parse::<u32>().unwrap();
    for _ in 0..60 {
        match dice.below(8) {
            0..=2 => {
                for _ in 0..=dice.below(5) {
                    kept.publish("", "q", &format!("{next:<bytes$}"));
                    published.insert(next);
                    next += 1;
                }
            }
            3 => held.extend(kept.fetch(&kept.queue("q"), false)),
            4 if !held.is_empty() => {
                let delivery = held.swap_remove(dice.below(held.len() as u64) as usize);
                settled.insert(number(&delivery));
                kept.queue("q").ack(vec![delivery], kept.world.now);
            }
            5 if !held.is_empty() => {
                let delivery = held.swap_remove(0);
                kept.queue("q").requeue(vec![delivery], Returned::Failed, kept.world.now);
            }
            6 => {
                if dice.below(2) == 0 {
                    kept.sync()
                } else {
                    kept.retire()
                }
                kept.page();
                confirmed.clone_from(&published);
                gone.clone_from(&settled);
            }
            7 if dice.below(3) == 0 => {
                kept.disk.set_faults(Faults { sync: 300, write: 300, names: 0 });
                if matches!(kept.rounds.step(), CommitOutcome::Committed) {
                    confirmed.clone_from(&published);
                    gone.clone_from(&settled);
                }
                kept = kept.crash();
                held.clear();
                let queue = kept.queue("q");
                let found: Vec<_> = std::iter::from_fn(|| kept.fetch(&queue, false)).collect();
                let numbers: Vec<_> = found.iter().map(number).collect();
                assert!(numbers.is_sorted(), "seed {seed}: {numbers:?}");
                let there: BTreeSet<_> = numbers.iter().copied().collect();
                assert_eq!(there.len(), numbers.len(), "seed {seed}: twice");
                let lost: Vec<_> =
                    confirmed.difference(&settled).filter(|one| !there.contains(one)).collect();
                assert!(lost.is_empty(), "seed {seed}: lost {lost:?}");
                let back: Vec<_> = there.intersection(&gone).collect();
                assert!(back.is_empty(), "seed {seed}: back {back:?}");
                queue.requeue(found, Returned::Failed, kept.world.now);
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
