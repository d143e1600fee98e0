//! Forwarding of spooled messages to the upstream.

use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::{Binding, ExchangeDeclare, Queue, QueueDeclare, SessionId};

use super::*;

pub(super) const LONG: Duration = Duration::from_secs(30);

impl Simulated {
    pub(super) fn declare(&self, name: &str, arguments: &FieldTable) -> Arc<Queue> {
        let encoded = arguments.encode();
        let declare = QueueDeclare {
            name,
            passive: false,
            durable: false,
            exclusive: false,
            auto_delete: false,
            arguments: RawTable::check(&encoded).unwrap(),
            type_name: None,
            capacity: None,
        };
        self.upstream.vhost().declare_queue(SessionId(77), &declare, Timestamp::default()).unwrap().queue
    }

    /// Declares an upstream exchange that routes everything to a queue.
    pub(super) fn declare_fanout(&self, exchange: &str, queue: &str) {
        let vhost = self.upstream.vhost();
        let declare = ExchangeDeclare { name: exchange, kind: "fanout", ..ExchangeDeclare::default() };
        vhost.declare_exchange(&declare).unwrap();
        let binding = Binding { source: exchange, destination: queue, ..Binding::default() };
        vhost.bind_queue(SessionId(77), &binding).unwrap();
    }
}

/// The bodies of a queue's messages in ascending order, without duplicates.
fn take_distinct(queue: &Queue) -> Vec<String> {
    let mut bodies = take(queue).0;
    bodies.sort_unstable_by_key(|body| body.parse::<u32>().unwrap());
    bodies.dedup();
    bodies
}

/// The bodies and the ids of a queue's messages.
pub(super) fn take(queue: &Queue) -> (Vec<String>, Vec<String>) {
    let mut taken = (Vec::new(), Vec::new());
    while let Some(got) = queue.get(true, Timestamp::default()) {
        let message = got.delivery.message();
        taken.0.push(String::from_utf8(message.body().to_vec()).unwrap());
        let headers = Properties::decode(message.properties()).unwrap().headers.unwrap().decode();
        taken.1.push(headers.get("x-leveret-spool-id").and_then(FieldValue::as_text).unwrap().to_owned());
    }
    taken
}

pub(super) fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

pub(super) fn disk() -> SimDisk {
    SimDisk::new(1, 1 << 30)
}

#[tokio::test(start_paused = true)]
async fn the_id_leaves_all_other_headers_as_they_were_published() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let entry = |name: &str, value: i32| FieldTable::from_iter([(name, FieldValue::I32(value))]).encode();
    let headers = [("twice", 1), ("other", 2), ("twice", 3)].map(|(name, value)| entry(name, value)).concat();
    let mut properties = Vec::new();
    let published = Properties::default().with_headers(RawTable::check(&headers).unwrap());
    published.with_correlation_id(amqp::properties::ShortBytes(&[0xff])).encode(&mut properties);
    spool_bodies(&site.spool, &local, ("", "q"), 0, &properties, [b"0".to_vec()].into_iter());
    site.pass(LONG).await;
    let got = upstream.get(true, Timestamp::default()).unwrap();
    let found = Properties::decode(got.delivery.message().properties()).unwrap();
    assert_eq!(found.correlation_id, Some(amqp::properties::ShortBytes(&[0xff])));
    let found = found.headers.unwrap();
    assert!(found.bytes().starts_with(&headers) && found.decode().get("x-leveret-spool-id").is_some());
}

#[tokio::test(start_paused = true)]
async fn messages_arrive_in_order_each_with_an_id_of_its_own() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    spool_some(&site.spool, &local, "", "q", 0..500);
    site.pass(LONG).await;
    let (bodies, mut ids) = take(&upstream);
    assert_eq!(bodies, numbers(0..500));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 500);
    let [status] = &site.spool.status()[..] else { panic!() };
    assert_eq!((status.messages, status.bytes, status.forwarded, status.oldest_seconds), (0, 0, 500, None));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_used_now_and_then_stays() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    for number in 0..12 {
        spool_some(&site.spool, &local, "", "q", number..number + 1);
        site.pass(Duration::from_secs(3)).await;
        assert_eq!((upstream.message_count(), site.isolated.lock().len()), (u64::from(number) + 1, 1));
    }
    site.pass(LONG).await;
    spool_some(&site.spool, &local, "", "q", 12..13);
    site.pass(Duration::from_secs(3)).await;
    assert_eq!(site.isolated.lock().len(), 2, "an unused one is closed");
}

#[tokio::test(start_paused = true)]
async fn messages_wait_until_somebody_logs_in_and_while_no_upstream_answers() {
    let mut site = Simulated::new(&disk(), config());
    let upstream = site.declare("q", &FieldTable::new());
    let local = site.spool.queue("/", USER).unwrap();
    spool_some(&site.spool, &local, "", "q", 0..3);
    site.pass(LONG).await;
    assert_eq!(upstream.message_count(), 0);
    assert!(site.spool.status()[0].trouble.as_ref().unwrap().contains("logged in"));
    site.is_reachable.store(false, Ordering::Relaxed);
    drop(site.queue());
    site.pass(LONG).await;
    assert_eq!(site.spool.status()[0].trouble.as_deref(), Some("CONNECTION_FORCED - no upstream reachable"));
    site.is_reachable.store(true, Ordering::Relaxed);
    site.pass(LONG).await;
    assert_eq!(take(&upstream).0, numbers(0..3));
    assert_eq!(site.spool.status()[0].trouble, None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_costs_nothing() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    for part in 0..10 {
        spool_some(&site.spool, &local, "", "q", 20 * part..20 * (part + 1));
        site.pass(Duration::from_millis(1)).await;
        site.upstream.lose();
    }
    site.pass(LONG).await;
    let mut bodies = take(&upstream).0;
    bodies.dedup();
    let mut seen = std::collections::HashSet::new();
    bodies.retain(|body| seen.insert(body.clone()));
    assert_eq!(bodies, numbers(0..200));
}

#[tokio::test(start_paused = true)]
async fn refused_messages_are_parked_and_block_nobody() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    spool_some(&site.spool, &local, "", "q", 0..2);
    spool_some(&site.spool, &local, "gone", "k", 2..5);
    spool_some(&site.spool, &local, "", "q", 5..7);
    site.pass(LONG).await;
    // Messages in flight with the first refused one may be duplicated.
    let mut bodies = take(&upstream).0;
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies, ["0", "1", "5", "6"]);
    let [status] = &site.spool.status()[..] else { panic!() };
    assert_eq!((status.messages, status.parked, site.spool.parked()), (0, 3, 3));
    let parked = site.spool.local.parked().queue().get(true, Timestamp::default()).unwrap();
    let headers =
        Properties::decode(parked.delivery.message().properties()).unwrap().headers.unwrap().decode();
    let text = |key: &str| headers.get(key).and_then(FieldValue::as_text).unwrap().to_owned();
    assert_eq!(text("x-leveret-exchange"), "gone");
    assert_eq!(text("x-leveret-refused-reason"), "NOT_FOUND - no exchange 'gone' in vhost '/'");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_delays_only_its_own_messages() {
    let mut site = Simulated::new(&disk(), config());
    let arguments =
        [("x-max-length", FieldValue::I64(1)), ("x-overflow", FieldValue::text("reject-publish"))];
    let (local, free) = (site.queue(), site.declare("free", &FieldTable::new()));
    let full = site.declare("full", &arguments.into_iter().collect());
    spool_some(&site.spool, &local, "", "full", 0..5);
    spool_some(&site.spool, &local, "", "free", 5..10);
    site.pass(LONG).await;
    assert_eq!((take(&free).0, full.message_count()), (numbers(5..10), 1));
    assert_eq!(site.spool.status()[0].deferred, 4);
    let mut bodies = Vec::new();
    for _ in 0..20 {
        bodies.extend(take(&full).0);
        site.pass(LONG).await;
    }
    assert_eq!((bodies, site.spool.status()[0].deferred), (numbers(0..5), 0));
}

#[tokio::test(start_paused = true)]
async fn a_restart_forwards_messages_spooled_before_it() {
    let disk = disk();
    let mut before = Simulated::new(&disk, config());
    let local = before.spool.queue("/", USER).unwrap();
    spool_some(&before.spool, &local, "", "q", 0..100);
    before.write_all();
    before.spool.drain(LONG).await;
    let bytes = before.spool.status()[0].bytes;
    drop(before);
    let mut after = Simulated::new(&disk, config());
    let status = after.spool.status();
    assert_eq!((&*status[0].vhost, &*status[0].user, status[0].messages), ("/", USER, 100));
    assert_eq!(status[0].bytes, bytes);
    let upstream = after.declare("q", &FieldTable::new());
    drop(after.queue());
    after.pass(LONG).await;
    assert_eq!(take(&upstream).0, numbers(0..100));
}

#[tokio::test(start_paused = true)]
async fn publishers_are_blocked_while_the_spool_is_full() {
    let mut site = Simulated::new(&disk(), SpoolConfig { max_bytes: 5_000, ..config() });
    let upstream = site.declare("q", &FieldTable::new());
    let local = site.spool.queue("/", USER).unwrap();
    spool_some(&site.spool, &local, "", "q", 0..100);
    site.pass(LONG).await;
    assert!(site.spool.alarms().is_raised(crate::alarms::Resource::Spool));
    drop(site.queue());
    site.pass(LONG).await;
    assert_eq!(upstream.message_count(), 100);
    assert!(!site.spool.alarms().is_raised(crate::alarms::Resource::Spool));
}

#[tokio::test(start_paused = true)]
async fn an_old_message_blocks_the_publishers_of_its_own_queue_alone() {
    let mut site = Simulated::new(&disk(), config());
    let (old, young) = (site.spool.queue("/", "gone").unwrap(), site.queue());
    spool_at(&site.spool, &old, ("", "q"), 1, 0..1);
    site.pass(LONG).await;
    let outbox = Arc::new(transport::Outbox::new(1));
    let local = &site.spool.local;
    local.check_limits();
    let blocked = local.block(&old, &outbox).unwrap();
    assert_eq!((blocked.1, site.spool.blocked_connections()), ("spool has reached a limit", 1));
    assert!(local.block(&young, &outbox).is_none());
}

#[tokio::test(start_paused = true)]
async fn parked_messages_count_against_the_limit_until_they_are_dropped() {
    let mut site = Simulated::new(&disk(), SpoolConfig { max_bytes: 5_000, ..config() });
    let local = site.queue();
    spool_some(&site.spool, &local, "gone", "k", 0..30);
    site.pass(LONG).await;
    assert_eq!((site.spool.parked(), site.spool.status()[0].bytes), (30, 0));
    let is_full = |site: &Simulated| site.spool.alarms().is_raised(crate::alarms::Resource::Spool);
    site.spool.set_mode(super::super::ForwardingMode::Paused);
    spool_some(&site.spool, &local, "", "q", 0..70);
    site.pass(LONG).await;
    assert!(is_full(&site));
    assert_eq!(site.spool.purge_parked(SpoolSelection::default()), 30);
    assert!(!is_full(&site));
}

#[tokio::test(start_paused = true)]
async fn a_forwarder_gets_on_while_the_others_use_all_memory() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    site.spool.local.loaded().changed(usize::MAX / 2, 0);
    spool_some(&site.spool, &local, "", "q", 0..2000);
    site.pass(Duration::from_millis(1)).await;
    assert!(upstream.message_count() > 1000, "many in flight, not one at a time");
    site.pass(LONG).await;
    assert_eq!(take(&upstream).0, numbers(0..2000));
    site.spool.local.loaded().changed(0, usize::MAX / 2);
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgets_the_queues_of_users_without_messages() {
    let disk = disk();
    let mut site = Simulated::new(&disk, config());
    let (used, _unused) = (site.queue(), site.spool.queue("/", "gone").unwrap());
    site.is_reachable.store(false, Ordering::Relaxed);
    spool_some(&site.spool, &used, "", "q", 0..3);
    site.pass(LONG).await;
    site.write_all();
    assert_eq!(site.spool.status().len(), 2);
    drop(site);
    let site = Simulated::new(&disk, config());
    let [status] = &site.spool.status()[..] else { panic!() };
    assert_eq!((&*status.user, status.messages), (USER, 3));
}

/// Users whose login is refused hold one message each in memory, and leave the rest to the others.
#[tokio::test(start_paused = true)]
async fn users_without_a_way_to_the_upstream_take_no_memory_of_others() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    spool_some(&site.spool, &local, "", "q", 0..1000);
    site.pass(Duration::from_millis(1)).await;
    let fault = Fault::new(ReplyCode::AccessRefused, "the user is gone");
    *site.upstream.refusal.lock() = Some(OpenError::Refused(fault));
    site.upstream.lose();
    spool_some(&site.spool, &local, "", "q", 1000..5000);
    site.pass(LONG).await;
    assert!(site.status().messages >= 4000);
    assert!(site.spool.local.loaded().total() < 1000, "{}", site.spool.local.loaded().total());
    assert!(site.spool.local.loaded().allows(64 << 20));
    *site.upstream.refusal.lock() = None;
    drop(site.queue());
    site.pass(LONG).await;
    let mut bodies = take(&upstream).0;
    let mut seen = std::collections::HashSet::new();
    bodies.retain(|body| seen.insert(body.clone()));
    assert_eq!(bodies, numbers(0..5000));
}

#[tokio::test(start_paused = true)]
async fn a_login_ends_the_pause_after_a_refused_one_at_once() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let fault = Fault::new(ReplyCode::AccessRefused, "another password");
    *site.upstream.refusal.lock() = Some(OpenError::Refused(fault));
    spool_some(&site.spool, &local, "", "q", 0..3);
    site.pass(Duration::from_secs(1)).await;
    assert!(site.status().trouble.is_some());
    *site.upstream.refusal.lock() = None;
    // The same credentials: the upstream accepts them now.
    drop(site.queue());
    site.pass(Duration::from_millis(10)).await;
    assert_eq!((take(&upstream).0, site.status().trouble), (numbers(0..3), None));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_costs_the_connection_is_parked_and_the_others_go_on() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let fault = Fault::new(ReplyCode::ChannelError, "the broker cannot bear it");
    site.upstream.closes_for("poison", fault);
    spool_some(&site.spool, &local, "", "q", 0..20);
    spool_some(&site.spool, &local, "", "poison", 20..21);
    spool_some(&site.spool, &local, "", "q", 21..40);
    for _ in 0..4 {
        site.pass(LONG).await;
    }
    let bodies = take_distinct(&upstream);
    assert_eq!(bodies, [numbers(0..20), numbers(21..40)].concat());
    let [parked] = &site.spool.parked_messages()[..] else { panic!() };
    assert_eq!(
        (&*parked.routing_key, &*parked.reason),
        ("poison", "CHANNEL_ERROR - the broker cannot bear it")
    );
    assert_eq!(site.status().messages, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_at_which_the_upstream_fails_stops_no_others() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    site.upstream.closes_for("poison", Fault::new(ReplyCode::InternalError, "unexpected error"));
    spool_some(&site.spool, &local, "", "poison", 0..1);
    spool_some(&site.spool, &local, "", "q", 1..20);
    site.pass(Duration::from_secs(10)).await;
    assert_eq!(site.spool.parked(), 0, "the upstream may have failed for another reason");
    for _ in 0..4 {
        site.pass(LONG).await;
    }
    let bodies = take_distinct(&upstream);
    assert_eq!((bodies, site.spool.parked(), site.status().messages), (numbers(1..20), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_may_be_another_clients_parks_nothing_before_it_comes_again_in_isolation() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    site.upstream.closes_for("q", Fault::new(ReplyCode::FrameError, "malformed"));
    spool_some(&site.spool, &local, "", "q", 0..1);
    site.pass(Duration::from_millis(10)).await;
    assert_eq!(*site.isolated.lock(), [false]);
    site.upstream.closes_for("poison", Fault::new(ReplyCode::FrameError, "malformed"));
    site.pass(LONG).await;
    assert_eq!((take(&upstream).0, site.spool.parked()), (numbers(0..1), 0));
    assert_eq!(*site.isolated.lock(), [false, true]);

    spool_some(&site.spool, &local, "", "poison", 1..2);
    site.pass(LONG).await;
    site.pass(LONG).await;
    assert_eq!((site.spool.parked(), site.status().messages), (1, 0));
    // The next message may be another such message.
    for number in 2..4 {
        spool_some(&site.spool, &local, "", "q", number..number + 1);
        site.pass(LONG).await;
        site.pass(LONG).await;
    }
    assert_eq!(take(&upstream).0, numbers(2..4));
    assert_eq!(*site.isolated.lock(), [false, true, false, true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_shared_connection_that_was_stalled_is_followed_by_an_isolated_one() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let text = "upstream connection lost: stalled: the broker has answered nothing on it for 8 s";
    site.upstream.closes_for("q", Fault::new(ReplyCode::ConnectionForced, text));
    spool_some(&site.spool, &local, "", "q", 0..1);
    site.pass(Duration::from_millis(10)).await;
    site.upstream.closes_for("nothing", Fault::new(ReplyCode::ConnectionForced, text));
    site.pass(LONG).await;
    assert_eq!((take(&upstream).0, site.spool.parked()), (numbers(0..1), 0));
    assert_eq!(*site.isolated.lock(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_has_stalled_connections_gets_one_message_at_a_time() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let text = "upstream connection lost: stalled: the broker has answered nothing on it for 8 s";
    site.upstream.closes_for("q", Fault::new(ReplyCode::ConnectionForced, text));
    spool_some(&site.spool, &local, "", "q", 0..20);
    while site.isolated.lock().len() < 2 {
        site.pass(Duration::from_millis(10)).await;
    }
    site.pass(Duration::from_millis(10)).await;
    // The next connection accepts publishes and confirms nothing.
    site.upstream.closes_for("nothing", Fault::new(ReplyCode::ConnectionForced, text));
    site.upstream.stop_confirming();
    site.pass(LONG).await;
    assert_eq!((site.status().messages, site.status().deferred), (20, 19));
    // The connection after that confirms again.
    site.upstream.resume_confirming();
    site.upstream.lose();
    site.pass(LONG).await;
    assert_eq!((take(&upstream).0, site.status().messages), (numbers(0..20), 0));
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_shuts_down_parks_nothing() {
    let mut site = Simulated::new(&disk(), config());
    let (local, _upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    site.upstream.closes_for("poison", Fault::new(ReplyCode::ConnectionForced, "shutdown"));
    spool_some(&site.spool, &local, "", "poison", 0..1);
    for _ in 0..20 {
        site.pass(LONG).await;
    }
    assert_eq!((site.spool.parked(), site.status().messages), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_in_an_outage_waits_for_no_confirm() {
    let mut site = Simulated::new(&disk(), config());
    let (local, _upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    site.upstream.stop_confirming();
    spool_some(&site.spool, &local, "", "q", 0..5);
    site.pass(Duration::from_secs(1)).await;
    site.is_reachable.store(false, Ordering::Relaxed);
    site.pass(Duration::from_secs(1)).await;
    assert_eq!(site.status().trouble.as_deref(), Some("no upstream reachable"));
    let begun = tokio::time::Instant::now();
    site.spool.drain(LONG).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_confirms_nothing_is_reported() {
    let mut site = Simulated::new(&disk(), config());
    let (local, _upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    site.upstream.stop_confirming();
    spool_some(&site.spool, &local, "", "q", 0..5);
    site.pass(LONG).await;
    assert_eq!(site.status().trouble.as_deref(), Some("the upstream confirms nothing"));
}

/// Power failures at random: nothing that was on disk is lost, and the order is kept across the restart.
#[tokio::test(start_paused = true)]
async fn nothing_on_disk_is_lost_in_a_power_failure() {
    for seed in 0..200 {
        crash_once(seed).await;
    }
}

async fn crash_once(seed: u64) {
    let mut random = SimRandom::new(seed);
    let disk = SimDisk::new(seed, 1 << 30);
    let mut before = Simulated::new(&disk, config());
    let (local, first) = (before.queue(), before.declare("q", &FieldTable::new()));
    let store = Arc::clone(before.spool.local.store().unwrap());
    let (mut spooled, mut ends) = (0, Vec::new());
    for _ in 0..random.below(30) {
        match random.below(4) {
            0 | 1 => {
                let more = 1 + random.below(20) as u32;
                spool_some(&before.spool, &local, "", "q", spooled..spooled + more);
                spooled += more;
                ends.push((store.end(), spooled));
            }
            2 => drop(before.rounds.step()),
            _ => tokio::time::sleep(Duration::from_millis(random.below(3))).await,
        }
    }
    let durable = store.durable();
    let confirmed = ends.iter().take_while(|(end, _)| *end <= durable).last().map_or(0, |(_, count)| *count);
    let mut arrived = take(&first).0;
    let crashed = disk.crash();
    before.spool.drain(Duration::ZERO).await;
    drop(before);
    let mut after = Simulated::new(&crashed, config());
    let second = after.declare("q", &FieldTable::new());
    drop(after.queue());
    after.pass(LONG).await;
    arrived.extend(take(&second).0);
    let mut seen = std::collections::HashSet::new();
    arrived.retain(|body| seen.insert(body.clone()));
    assert!(arrived.len() as u32 >= confirmed, "seed {seed}: {} of {confirmed}", arrived.len());
    assert_eq!(arrived, numbers(0..arrived.len() as u32), "seed {seed}");
    assert_eq!(after.spool.status()[0].messages, 0, "seed {seed}");
}
