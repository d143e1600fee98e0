//! Upstream queues that are full for long.

use amqp::{FieldTable, FieldValue};
use broker::Queue;

use super::dying_disk::DyingDisk;
use super::forwarding::{LONG, disk, numbers, take};
use super::*;

/// Arguments of a queue that holds no more than this many messages.
pub(super) fn limited(messages: i64) -> FieldTable {
    [("x-max-length", FieldValue::I64(messages)), ("x-overflow", FieldValue::text("reject-publish"))]
        .into_iter()
        .collect()
}

/// Empties a queue repeatedly until `count` distinct messages have arrived.
pub(super) async fn collect(site: &mut Simulated, queue: &Queue, count: usize) -> Vec<String> {
    let mut bodies = Vec::new();
    for _ in 0..20_000 {
        bodies.extend(take(queue).0);
        if bodies.len() >= count {
            break;
        }
        site.pass(Duration::from_millis(100)).await;
    }
    bodies
}

/// The first arrival of each message, in order.
fn firsts(mut bodies: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    bodies.retain(|body| seen.insert(body.clone()));
    bodies
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_blocks_no_other_however_many_messages_wait_for_it() {
    let mut site = Simulated::new(&disk(), config());
    let (local, free) = (site.queue(), site.declare("free", &FieldTable::new()));
    let full = site.declare("full", &limited(0));
    for part in 0..20 {
        spool_some(&site.spool, &local, "", "full", 1000 * part..1000 * (part + 1));
        spool_some(&site.spool, &local, "", "free", part..part + 1);
        site.pass(Duration::from_secs(1)).await;
    }
    site.pass(LONG).await;
    assert_eq!(take(&free).0, numbers(0..20));
    let status = site.status();
    assert_eq!((status.messages, status.deferred), (20_000, 20_000));
    assert!(site.spool.local.loaded().total() < 1 << 20, "most of them are on disk");
    // Another queue is declared in its place, as operators do.
    site.upstream.vhost().delete_queue(broker::SessionId(77), "full", false, false).unwrap();
    drop(full);
    let full = site.declare("full", &FieldTable::new());
    let bodies = collect(&mut site, &full, 20_000).await;
    assert_eq!(bodies, numbers(0..20_000));
    site.pass(LONG).await;
    let status = site.status();
    assert_eq!((status.messages, status.deferred, status.bytes, status.oldest_seconds), (0, 0, 0, None));
    assert!(local.backlogs().is_empty(), "the local queue of its backlog is gone");
    spool_some(&site.spool, &local, "", "full", 0..1);
    site.pass(Duration::from_millis(10)).await;
    assert_eq!(take(&full).0, numbers(0..1));
}

/// Each attempt puts another copy into the queue that has space.
#[tokio::test(start_paused = true)]
async fn messages_that_one_of_two_queues_nacks_are_parked_with_few_copies() {
    let max = Duration::from_secs(600);
    let mut site = Simulated::new(&disk(), SpoolConfig { nacked_max: Some(max), ..config() });
    let (local, full) = (site.queue(), site.declare("room", &FieldTable::new()));
    site.declare("full", &limited(0));
    site.declare_fanout("both", "room");
    let binding = broker::Binding { source: "both", destination: "full", ..broker::Binding::default() };
    site.upstream.vhost().bind_queue(broker::SessionId(77), &binding).unwrap();
    for number in 0..100 {
        spool_some(&site.spool, &local, "both", &number.to_string(), number..number + 1);
        site.pass(Duration::from_millis(10)).await;
    }
    site.pass(LONG).await;
    assert_eq!((site.spool.parked(), site.status().messages), (0, 100));
    for _ in 0..2 * max.as_secs() / LONG.as_secs() {
        site.pass(LONG).await;
    }
    assert_eq!((site.spool.parked(), site.status().messages, site.status().parked), (100, 0, 100));
    let reasons = site.spool.parked_messages();
    assert!(reasons.iter().all(|message| message.reason.starts_with("NACKED - basic.nack")), "{reasons:?}");
    let copies = take(&full).0;
    assert_eq!(firsts(copies.clone()).len(), 100);
    assert!(copies.len() < 100 * 100, "{} copies", copies.len());
}

#[tokio::test(start_paused = true)]
async fn a_restart_restores_the_backlog_of_a_full_queue_in_order() {
    let disk = disk();
    let mut before = Simulated::new(&disk, config());
    let local = before.queue();
    before.declare("full", &limited(0));
    spool_some(&before.spool, &local, "", "full", 0..6000);
    before.pass(LONG).await;
    spool_some(&before.spool, &local, "", "full", 6000..7000);
    assert_eq!(local.backlogs().len(), 1);
    before.write_all();
    before.spool.drain(LONG).await;
    let status = before.status();
    drop((before, local));
    let mut after = Simulated::new(&disk, config());
    assert_eq!((after.status().messages, after.status().bytes), (7000, status.bytes));
    let upstream = after.declare("full", &FieldTable::new());
    drop(after.queue());
    let bodies = collect(&mut after, &upstream, 7000).await;
    assert_eq!(bodies, numbers(0..7000));
    after.pass(LONG).await;
    assert_eq!((after.status().messages, after.status().bytes), (0, 0));
}

/// Power failures while messages move to backlogs and return: nothing is lost, and each destination's order is kept.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_or_reordered_in_a_power_failure_while_a_queue_is_full() {
    for seed in 0..20 {
        crash_once(seed).await;
    }
}

async fn crash_once(seed: u64) {
    let mut random = SimRandom::new(seed);
    let disk = SimDisk::new(seed, 1 << 30);
    let mut site = Simulated::new(&disk, config());
    let local = site.queue();
    let (mut queue, mut other) =
        (site.declare("full", &limited(0)), site.declare("other", &FieldTable::new()));
    let store = Arc::clone(site.spool.local.store().unwrap());
    let (mut spooled, mut ends, mut arrived, mut others) = (0, Vec::new(), Vec::new(), Vec::new());
    for _ in 0..25 {
        match random.below(5) {
            0 | 1 => {
                let more = 300 + random.below(1500) as u32;
                spool_some(&site.spool, &local, "", "full", spooled..spooled + more);
                spool_some(&site.spool, &local, "", "other", spooled..spooled + 1);
                spooled += more;
                ends.push((store.end(), spooled));
            }
            2 => drop(site.rounds.step()),
            // The queue has space, or none.
            3 => {
                arrived.extend(take(&queue).0);
                site.upstream.vhost().delete_queue(broker::SessionId(77), "full", false, false).unwrap();
                queue = site.declare("full", &limited(random.below(2) as i64 * 100_000));
            }
            _ => tokio::time::sleep(Duration::from_millis(random.below(200))).await,
        }
    }
    let durable = store.durable();
    let confirmed = ends.iter().take_while(|(end, _)| *end <= durable).last().map_or(0, |(_, count)| *count);
    arrived.extend(take(&queue).0);
    others.extend(take(&other).0);
    let crashed = disk.crash();
    site.spool.drain(Duration::ZERO).await;
    drop((site, local));
    let mut after = Simulated::new(&crashed, config());
    (queue, other) = (after.declare("full", &FieldTable::new()), after.declare("other", &FieldTable::new()));
    drop(after.queue());
    for _ in 0..200 {
        after.pass(Duration::from_secs(1)).await;
        arrived.extend(take(&queue).0);
        if after.spool.status().iter().all(|status| status.messages == 0) {
            break;
        }
    }
    arrived.extend(take(&queue).0);
    others.extend(take(&other).0);
    let arrived = firsts(arrived);
    assert!(arrived.len() as u32 >= confirmed, "seed {seed}: {} of {confirmed}", arrived.len());
    assert_eq!(arrived, numbers(0..arrived.len() as u32), "seed {seed}");
    let others: Vec<u32> = firsts(others).iter().map(|body| body.parse().unwrap()).collect();
    assert!(others.is_sorted(), "seed {seed}");
    assert!(
        after.spool.status().iter().all(|status| (status.messages, status.bytes) == (0, 0)),
        "seed {seed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_takes_no_memory_from_others_when_there_is_none_left() {
    let mut site = Simulated::new(&disk(), config());
    let (local, free) = (site.queue(), site.declare("free", &FieldTable::new()));
    site.declare("full", &limited(0));
    // Other forwarders hold all of it, except for the minimum that each may hold.
    site.spool.local.loaded().changed(128 << 20, 0);
    spool_some(&site.spool, &local, "", "full", 0..3900);
    spool_some(&site.spool, &local, "", "free", 0..1);
    for _ in 0..3 {
        site.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(take(&free).0, numbers(0..1));
    assert_eq!((site.status().messages, site.status().deferred), (3900, 3900));
}

/// Messages in a backlog are parked, since their exchange is deleted, and the process is killed at any write meanwhile.
#[tokio::test(start_paused = true)]
async fn parked_messages_of_a_backlog_survive_a_crash_at_any_point() {
    const MESSAGES: u64 = 4500;
    let mut deaths = 0;
    for seed in 0..10 {
        let mut random = SimRandom::new(seed);
        let dying = DyingDisk::new(SimDisk::new(seed, 1 << 30));
        let mut site = Simulated::on(Arc::new(dying.clone()), Upstream::new(), config());
        let local = site.queue();
        site.declare("full", &limited(0));
        site.declare_fanout("e", "full");
        spool_some(&site.spool, &local, "e", "k", 0..MESSAGES as u32);
        for _ in 0..5 {
            site.pass(Duration::from_secs(1)).await;
        }
        assert_eq!((site.status().deferred, local.backlogs().len()), (MESSAGES, 1));
        site.upstream.vhost().delete_exchange("e", false).unwrap();
        dying.die_after(random.below(60), random.chance(500));
        let mut found = None;
        for _ in 0..400 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for _ in 0..random.below(3) {
                drop(site.rounds.step());
            }
            found = dying.take_found();
            if found.is_some() {
                deaths += 1;
                break;
            }
        }
        let found = found.unwrap_or_else(|| dying.die(true));
        site.spool.drain(Duration::ZERO).await;
        drop((site, local));
        let after = Simulated::new(&found, config());
        let left: u64 = after.spool.status().iter().map(|status| status.messages).sum();
        assert_eq!(left + after.spool.parked(), MESSAGES, "seed {seed}");
    }
    assert!(deaths > 5, "{deaths}");
}

#[tokio::test(start_paused = true)]
async fn a_large_message_for_a_suspicious_exchange_waits_for_no_other_event() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    spool_some(&site.spool, &local, "e", "k", 0..1);
    site.pass(LONG).await;
    assert_eq!(site.spool.parked(), 1);
    let exchange = broker::ExchangeDeclare { name: "e", kind: "fanout", ..Default::default() };
    site.upstream.vhost().declare_exchange(&exchange).unwrap();
    // Opens both channels.
    spool_some(&site.spool, &local, "e", "k", 1..2);
    site.pass(Duration::from_millis(10)).await;
    assert_eq!((site.spool.parked(), site.status().messages), (1, 0));
    // It moves to a backlog first, and from there at once to the upstream, for which it is too large.
    spool_large(&site.spool, &local, "e", 5 << 20);
    for _ in 0..20 {
        site.pass(Duration::from_millis(1)).await;
    }
    assert_eq!((site.spool.parked(), site.status().messages), (2, 0));
}
