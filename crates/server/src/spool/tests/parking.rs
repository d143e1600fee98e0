//! Parked messages, in the hands of an operator.

use amqp::FieldTable;

use super::forwarding::{LONG, disk, numbers, take};
use super::*;

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
    assert_eq!(site.spool.requeue_parked(), 3000);
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
    assert_eq!(site.spool.purge_parked(), 5);
    assert_eq!((site.spool.parked(), site.spool.local.parked().bytes()), (0, 0));
}
