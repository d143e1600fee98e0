//! Operations on parked messages.

use amqp::FieldTable;

use super::forwarding::{LONG, disk, numbers, take};
use super::*;
use crate::clock::tests::corrected;

#[tokio::test(start_paused = true)]
async fn all_parked_messages_are_forwarded_again_in_order() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    spool_some(&site.spool, &local, "", "q", 0..1);
    spool_some(&site.spool, &local, "late", "k", 1..3001);
    for _ in 0..4 {
        site.pass(LONG).await;
    }
    assert_eq!((site.spool.parked(), site.status().messages, site.status().bytes), (3000, 0, 0));
    let upstream = site.declare("q", &FieldTable::new());
    site.declare_fanout("late", "q");
    assert_eq!(site.spool.requeue_parked(SpoolSelection::default()), 3000);
    assert_eq!((site.spool.parked(), site.status().messages), (0, 3000));
    for _ in 0..4 {
        site.pass(LONG).await;
    }
    let mut bodies = take(&upstream).0;
    let mut seen = std::collections::HashSet::new();
    bodies.retain(|body| seen.insert(body.clone()));
    assert_eq!(bodies, numbers(1..3001));
    assert_eq!((site.status().bytes, site.spool.local.parked().bytes()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn listing_parked_messages_leaves_them_as_they_are() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    spool_some(&site.spool, &local, "gone", "k", 0..5);
    site.pass(LONG).await;
    let bytes = site.spool.local.parked().bytes();
    for _ in 0..2 {
        let listed = site.spool.parked_messages();
        assert_eq!(listed.len(), 5);
        assert!(listed.iter().all(|message| message.exchange == "gone" && message.body_bytes == 1));
        assert_eq!((site.spool.parked(), site.spool.local.parked().bytes()), (5, bytes));
    }
    assert_eq!(site.spool.purge_parked(SpoolSelection::default()), 5);
    assert_eq!((site.spool.parked(), site.spool.local.parked().bytes()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn operators_see_the_times_of_parked_messages_by_the_wall_clock() {
    let now = transport::now();
    let clock = corrected(now, -7_200_000);
    let mut site = Simulated::with_clock(clock, &disk(), config());
    let local = site.queue();
    spool_some(&site.spool, &local, "gone", "k", 0..1);
    site.pass(LONG).await;
    let (first, last) = (clock.wall(now).0 as i64, clock.wall(transport::now()).0 as i64);
    let [parked] = &site.spool.parked_messages()[..] else { panic!() };
    assert!((first..=last).contains(&parked.accepted_at), "{parked:?} {first} {last}");
    assert!((parked.accepted_at..=last).contains(&parked.refused_at), "{parked:?} {first} {last}");
}

/// The queue of another user, who has also logged in.
fn queue_of_another(site: &Simulated) -> Arc<SpoolQueue> {
    let queue = site.spool.queue("/", "other").unwrap();
    queue.logged_in(Arc::new(Credentials::plain("other", "secret")));
    queue
}

const OTHER: SpoolSelection<'_> = SpoolSelection { user: Some("other"), vhost: Some("/") };

/// More messages than one step reads, of two users alternately.
async fn parked_of_two(site: &mut Simulated) {
    let (one, other) = (site.queue(), queue_of_another(site));
    for part in 0..5 {
        spool_some(&site.spool, &one, "late", "k", 500 * part..500 * (part + 1));
        spool_some(&site.spool, &other, "late", "k", 10_000 + 10 * part..10_000 + 10 * (part + 1));
        for _ in 0..3 {
            site.pass(LONG).await;
        }
    }
    assert_eq!(site.spool.parked(), 2550);
}

#[tokio::test(start_paused = true)]
async fn parked_messages_of_one_user_are_forwarded_again_and_the_others_stay_in_order() {
    let disk = disk();
    let mut site = Simulated::new(&disk, config());
    parked_of_two(&mut site).await;
    let upstream = site.declare("q", &FieldTable::new());
    site.declare_fanout("late", "q");
    assert_eq!(site.spool.requeue_parked(OTHER), 50);
    site.pass(LONG).await;
    assert_eq!((take(&upstream).0, site.spool.parked()), (numbers(10_000..10_050), 2500));
    assert_eq!(site.spool.requeue_parked(SpoolSelection { user: None, vhost: Some("elsewhere") }), 0);
    site.write_all();
    let crashed = disk.crash();
    site.spool.drain(Duration::ZERO).await;
    let upstream = site.upstream.clone();
    drop(site);

    let mut after = Simulated::on(Arc::new(crashed), upstream, config());
    let local = after.queue();
    assert_eq!((after.spool.parked(), after.spool.requeue_parked(SpoolSelection::default())), (2500, 2500));
    for _ in 0..4 {
        after.pass(LONG).await;
    }
    let queue = after.upstream.queues().into_iter().find(|queue| &**queue.name() == "q").unwrap();
    assert_eq!((take(&queue).0, local.messages()), (numbers(0..2500), 0));
}

#[tokio::test(start_paused = true)]
async fn parked_messages_of_one_user_are_dropped_and_the_others_stay() {
    let mut site = Simulated::new(&disk(), config());
    parked_of_two(&mut site).await;
    let bytes = site.spool.local.parked().bytes();
    assert_eq!((site.spool.purge_parked(OTHER), site.spool.parked()), (50, 2500));
    assert!(site.spool.local.parked().bytes() < bytes);
    assert!(site.spool.parked_messages().iter().all(|message| message.user == USER));
    assert_eq!(
        (site.spool.purge_parked(OTHER), site.spool.purge_parked(SpoolSelection::default())),
        (0, 2500)
    );
    assert_eq!((site.spool.parked(), site.spool.local.parked().bytes()), (0, 0));
}

/// Drops waiting messages on another thread, as the HTTP API does, while the forwarders run.
async fn purge_waiting(site: &mut Simulated, selection: SpoolSelection<'static>) -> u64 {
    let spool = Arc::clone(&site.spool);
    let purge = std::thread::spawn(move || spool.purge_waiting(selection));
    while !purge.is_finished() {
        site.pass(Duration::from_millis(1)).await;
    }
    purge.join().unwrap()
}

#[tokio::test(start_paused = true)]
async fn messages_waiting_for_a_login_an_upstream_or_a_confirm_can_be_purged() {
    let mine = SpoolSelection { user: Some(USER), vhost: None };
    let mut site = Simulated::new(&disk(), config());
    let upstream = site.declare("q", &FieldTable::new());
    let (local, other) = (site.spool.queue("/", USER).unwrap(), queue_of_another(&site));
    site.upstream.stop_confirming();
    spool_some(&site.spool, &local, "", "q", 0..10);
    spool_some(&site.spool, &other, "", "q", 10..15);
    site.pass(LONG).await;
    assert_eq!(purge_waiting(&mut site, mine).await, 10, "nobody has logged in");
    assert_eq!((local.messages(), other.messages()), (0, 5));

    let local = site.queue();
    spool_some(&site.spool, &local, "", "q", 0..10);
    site.pass(LONG).await;
    assert_eq!(purge_waiting(&mut site, mine).await, 10, "all are in flight");
    assert_eq!((local.messages(), other.messages()), (0, 5));

    site.is_reachable.store(false, Ordering::Relaxed);
    spool_some(&site.spool, &local, "", "q", 0..10);
    site.pass(LONG).await;
    assert_eq!(purge_waiting(&mut site, mine).await, 10, "no upstream answers");
    let status = site.spool.local.status(&local);
    assert_eq!((status.messages, status.bytes, status.oldest_seconds), (0, 0, None));

    site.is_reachable.store(true, Ordering::Relaxed);
    site.upstream.resume_confirming();
    site.upstream.lose();
    spool_some(&site.spool, &local, "", "q", 20..25);
    for _ in 0..3 {
        site.pass(LONG).await;
    }
    let mut bodies = take(&upstream).0;
    bodies.sort_unstable();
    assert_eq!(bodies, numbers(10..15).into_iter().chain(numbers(20..25)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn purging_messages_that_wait_for_a_full_queue_drains_the_spool() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    site.declare("full", &super::deferring::limited(0));
    spool_some(&site.spool, &local, "", "full", 0..6000);
    site.pass(LONG).await;
    assert_eq!(local.backlogs().len(), 1);
    site.spool.set_mode(super::super::ForwardingMode::Draining);
    assert!(!site.spool.local.is_drained());
    assert_eq!(purge_waiting(&mut site, SpoolSelection::default()).await, 6000);
    assert!(site.spool.local.is_drained());
    site.pass(LONG).await;
    let status = site.status();
    assert_eq!((status.messages, status.bytes, status.deferred, local.backlogs().len()), (0, 0, 0, 0));
}
