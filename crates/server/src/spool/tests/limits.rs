//! The limits in bytes: each user's share, and limits that change with a restart.

use amqp::FieldTable;
use transport::Outbox;

use super::deferring::limited;
use super::forwarding::{LONG, disk};
use super::*;
use crate::alarms::Resource;

const MAX: u64 = 100_000;

fn limited_spool() -> SpoolConfig {
    SpoolConfig { max_bytes: MAX, ..config() }
}

impl Simulated {
    fn user(&self, user: &str) -> Arc<SpoolQueue> {
        let queue = self.spool.queue("/", user).unwrap();
        queue.logged_in(Arc::new(Credentials::plain(user, "secret")));
        queue
    }

    /// Publishes for a user until it is blocked.
    fn spool_until_blocked(&self, queue: &SpoolQueue, routing_key: &str) {
        let mut messages = 0;
        while !self.is_blocked(queue) {
            spool_some(&self.spool, queue, "", routing_key, 0..1);
            self.spool.local.changed(queue);
            messages += 1;
            assert!(messages < 10_000, "never blocked");
        }
    }

    fn bytes(&self, queue: &SpoolQueue) -> u64 {
        self.spool.local.status(queue).bytes
    }

    fn is_blocked(&self, queue: &SpoolQueue) -> bool {
        self.spool.local.block(queue, &Arc::new(Outbox::new(1))).is_some()
    }
}

#[tokio::test(start_paused = true)]
async fn users_whose_queue_is_full_leave_the_others_some_of_the_spool() {
    let mut site = Simulated::new(&disk(), limited_spool());
    let [upstream, ..] = [("q", None), ("full 1", Some(0)), ("full 2", Some(0))]
        .map(|(name, max_length)| site.declare(name, &max_length.map_or_else(FieldTable::new, limited)));
    let [one, two, other] = ["one", "two", "other"].map(|user| site.user(user));
    let share = |left: u64| left / 4 * 3;
    site.spool_until_blocked(&one, "full 1");
    let of_one = site.bytes(&one);
    assert!(of_one.abs_diff(share(MAX)) < 200, "{of_one}");
    assert!(!site.is_blocked(&two) && !site.is_blocked(&other));
    site.spool_until_blocked(&two, "full 2");
    let of_two = site.bytes(&two);
    assert!(of_two.abs_diff(share(MAX - of_one)) < 200, "{of_two}");
    // Messages that wait for the full queue are deferred, and still count.
    site.pass(LONG).await;
    let status = site.spool.local.status(&one);
    assert_eq!((status.bytes, status.max_bytes), (of_one, share(MAX - of_two)));
    assert!(site.is_blocked(&one) && site.is_blocked(&two) && !site.is_blocked(&other));
    assert!(!site.spool.alarms().is_raised(Resource::Spool), "it is not full");
    spool_some(&site.spool, &other, "", "q", 0..20);
    site.pass(Duration::from_secs(1)).await;
    assert!(!site.is_blocked(&other));
    assert_eq!(upstream.message_count(), 20);

    // One user continues, which leaves more for the other.
    site.upstream.vhost().delete_queue(broker::SessionId(77), "full 1", false, false).unwrap();
    site.declare("full 1", &FieldTable::new());
    site.pass(LONG).await;
    assert_eq!((one.messages(), site.bytes(&two)), (0, of_two));
    assert!(!site.is_blocked(&one) && !site.is_blocked(&two));
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_narrower_limits_applies_them_to_existing_messages() {
    let disk = disk();
    let mut site = Simulated::new(&disk, SpoolConfig { max_age: Duration::from_secs(1 << 40), ..config() });
    let (one, parking) = (site.user("one"), site.user("parking"));
    for _ in 0..60 {
        spool_large(&site.spool, &parking, "gone", 1_000);
    }
    for _ in 0..3 {
        site.pass(LONG).await;
    }
    assert_eq!(site.spool.parked(), 60);
    site.is_reachable.store(false, Ordering::Relaxed);
    spool_at(&site.spool, &one, ("", "q"), 1, 0..1000);
    site.pass(LONG).await;
    assert!(!site.is_blocked(&one));
    site.spool.drain(LONG).await;
    drop((one, parking, site));

    // More than half is parked: further messages are not, and the other user exceeds its share.
    let site = Simulated::new(&disk, limited_spool());
    site.is_reachable.store(false, Ordering::Relaxed);
    let one = site.spool.local.existing_queue("/", "one").unwrap();
    assert!(one.alarms.is_raised(Resource::SpoolShare) && !site.spool.local.has_parking_capacity(&one));
    drop((one, site));

    // Its age limit as well, as soon as the oldest message has been read.
    let mut site = Simulated::new(&disk, SpoolConfig { max_age: Duration::from_secs(1 << 20), ..config() });
    site.is_reachable.store(false, Ordering::Relaxed);
    let one = site.spool.local.existing_queue("/", "one").unwrap();
    site.pass(Duration::from_secs(2)).await;
    assert!(one.alarms.is_raised(Resource::Spool) && !one.alarms.is_raised(Resource::SpoolShare));
}
