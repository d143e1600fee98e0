//! Failures on this host: of local queues, and of a forwarder.

use amqp::FieldTable;
use broker::{SessionId, VirtualHostLimits};
use transport::Outbox;

use super::deferring::{collect, limited};
use super::forwarding::{LONG, disk, numbers, take};
use super::*;
use crate::alarms::Resource;

impl Simulated {
    /// Deletes a local queue, which nobody does in production.
    fn delete_local(&self, name: &str) {
        self.spool.local.vhost().delete_queue(SessionId(0), name, false, false).unwrap();
    }
}

/// Its messages that the forwarder does not hold.
fn ready(queue: &SpoolQueue) -> u64 {
    queue.queue().message_count()
}

#[tokio::test(start_paused = true)]
async fn messages_that_cannot_be_parked_stay_where_they_are_and_are_reported() {
    let disk = disk();
    let mut site = Simulated::new(&disk, config());
    let local = site.queue();
    site.delete_local("parked");
    spool_some(&site.spool, &local, "gone", "k", 0..3);
    let bytes = site.status().bytes;
    site.pass(LONG).await;
    let status = site.status();
    assert_eq!((status.messages, status.bytes, status.parked, site.spool.parked()), (3, bytes, 0, 0));
    assert_eq!(status.trouble.as_deref(), Some("INTERNAL_ERROR - no local queue for parked messages"));
    assert_eq!(ready(&local), 3);
    site.write_all();
    site.spool.drain(LONG).await;
    drop((site, local));
    let mut after = Simulated::new(&disk, config());
    drop(after.queue());
    after.pass(LONG).await;
    assert_eq!((after.status().messages, after.spool.parked(), after.status().bytes), (0, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_gone_from_the_disk_do_not_keep_a_drain_from_ending() {
    let disk = disk();
    let mut before = Simulated::new(&disk, config());
    let local = before.spool.queue("/", USER).unwrap();
    for _ in 0..300 {
        spool_large(&before.spool, &local, "gone", 9_000);
    }
    before.write_all();
    while matches!(before.rounds.retire(), store::Retirement::Done) {}
    let disk = disk.crash();
    before.spool.drain(Duration::ZERO).await;
    drop((before, local));

    let mut after = Simulated::new(&disk, config());
    assert!(after.status().bytes > 300 * 9_000);
    for name in disk.files().into_iter().filter(|name| name.ends_with(".segment")) {
        disk.damage(&name, Vec::clear);
    }
    drop(after.queue());
    after.spool.set_mode(super::super::ForwardingMode::Draining);
    for _ in 0..60 {
        while after.broker.page(after.spool.local.timestamp(transport::now())) {}
        after.pass(Duration::from_secs(10)).await;
    }
    let status = after.status();
    assert_eq!((status.messages, status.bytes), (0, 0));
    assert!(after.spool.local.is_drained());
}

/// Puts something that is not a record into a user's local queue.
fn spool_garbage(spool: &Spool, queue: &SpoolQueue) {
    let (mut publisher, properties) = (spool.local.publisher(), persistent(None));
    let (name, body) = (queue.queue().name(), broker::Body::Copied(b"garbage"));
    let publish = Publish { exchange: "", routing_key: name, properties: &properties, body };
    assert!(publisher.publish(publish, Timestamp::default()).unwrap());
    spool.local.accepted(queue, 7, 0);
    publisher.flush_all(Timestamp::default());
    queue.waker().wake();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_parked_and_counts_as_such() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    spool_garbage(&site.spool, &local);
    spool_some(&site.spool, &local, "", "q", 0..3);
    site.pass(LONG).await;
    let status = site.status();
    assert_eq!((status.parked, site.spool.parked(), status.messages, status.bytes), (1, 1, 0, 0));
    assert_eq!(take(&upstream).0, numbers(0..3));
}

#[tokio::test(start_paused = true)]
async fn parked_messages_that_take_their_share_stop_their_user_alone_until_an_operator_has_seen_to_them() {
    let mut site = Simulated::new(&disk(), SpoolConfig { max_bytes: 100_000, ..config() });
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let other = site.spool.queue("/", "other").unwrap();
    other.logged_in(Arc::new(Credentials::plain("other", "secret")));
    for _ in 0..80 {
        spool_large(&site.spool, &local, "gone", 1_000);
    }
    for _ in 0..3 {
        site.pass(LONG).await;
    }
    let (status, outbox) = (site.spool.local.status(&local), Arc::new(Outbox::new(1)));
    assert_eq!(status.messages + site.spool.parked(), 80, "none is dropped");
    // Three quarters of half of the limit.
    assert!((33..38).contains(&site.spool.parked()), "{}", site.spool.parked());
    assert!(status.trouble.unwrap_or_default().contains("half of spool_max_bytes"));
    assert!(site.spool.local.block(&local, &outbox).is_some());
    assert!(site.spool.local.block(&other, &outbox).is_none());
    spool_some(&site.spool, &other, "", "q", 0..10);
    site.pass(Duration::from_secs(1)).await;
    assert_eq!(take(&upstream).0, numbers(0..10));
    // The other user's refused messages can still be parked, and it continues.
    spool_large(&site.spool, &other, "gone", 1_000);
    spool_some(&site.spool, &other, "", "q", 10..20);
    site.pass(LONG).await;
    assert_eq!((take(&upstream).0, other.messages()), (numbers(10..20), 0));
    assert_eq!(site.spool.local.status(&other).parked, 1);
    assert!(site.spool.local.block(&other, &outbox).is_none());
    // Once the user's parked messages are dropped, it continues as well, and the other's stay.
    let own = SpoolSelection { user: Some(USER), vhost: None };
    let dropped = site.spool.purge_parked(own);
    site.pass(Duration::from_secs(5)).await;
    assert_eq!(site.spool.local.status(&local).messages + site.spool.parked() + dropped, 81);
    assert!(site.spool.local.parked().bytes_of("/", "other") > 1_000);

    assert!(site.spool.purge_parked(SpoolSelection::default()) > 0);
    site.pass(Duration::from_secs(5)).await;
    let status = site.spool.local.status(&local);
    assert_eq!((status.messages, status.trouble), (0, None));
    assert!(site.spool.local.block(&local, &outbox).is_none());
}

/// While a disk fails, everything written for it is held in memory.
#[tokio::test(start_paused = true)]
async fn messages_that_are_published_again_and_again_are_written_once() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    spool_some(&site.spool, &local, "gone", "k", 0..3);
    site.pass(LONG).await;
    site.upstream.stop_confirming();
    spool_some(&site.spool, &local, "", "q", 0..200);
    site.pass(LONG).await;
    let (store, connections) = (Arc::clone(site.spool.store().unwrap()), site.isolated.lock().len());
    let end = store.end();
    for _ in 0..5 {
        site.upstream.lose();
        site.pass(LONG).await;
        assert_eq!(site.spool.parked_messages().len(), 3);
    }
    assert!(site.isolated.lock().len() >= connections + 5 && site.status().messages == 200);
    assert_eq!(store.end(), end);
}

#[tokio::test(start_paused = true)]
async fn publishers_go_on_once_nothing_waits_that_could_not_be_parked() {
    let mut site = Simulated::new(&disk(), SpoolConfig { max_bytes: 100_000, ..config() });
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    for _ in 0..80 {
        spool_large(&site.spool, &local, "gone", 1_000);
    }
    for _ in 0..3 {
        site.pass(LONG).await;
    }
    let (parked, outbox) = (site.spool.parked(), Arc::new(Outbox::new(1)));
    assert!(parked > 0 && site.spool.local.block(&local, &outbox).is_some());
    site.declare_fanout("gone", "q");
    for _ in 0..5 {
        site.pass(LONG).await;
    }
    assert_eq!((site.status().messages, site.spool.parked()), (0, parked), "an operator may look at them");
    assert!(upstream.message_count() >= 80 - parked);
    assert!(site.spool.local.block(&local, &outbox).is_none());
}

#[tokio::test(start_paused = true)]
async fn messages_that_cannot_move_to_a_backlog_come_again_in_order() {
    let mut site = Simulated::new(&disk(), config());
    let (local, _full) = (site.queue(), site.declare("full", &limited(0)));
    let limits = |max_queues| VirtualHostLimits { max_queues, max_connections: None };
    let vhost = Arc::clone(site.spool.local.vhost());
    vhost.set_limits(limits(Some(2)));
    spool_some(&site.spool, &local, "", "full", 0..6000);
    site.pass(LONG).await;
    let trouble = site.status().trouble.unwrap_or_default();
    assert!(trouble.contains("no local queue for messages that wait for their destination"), "{trouble}");
    assert_eq!((site.status().messages, ready(&local), local.backlogs().len()), (6000, 6000, 0));
    vhost.set_limits(limits(None));
    drop(site.queue());
    site.pass(LONG).await;
    assert_eq!((site.status().trouble, local.backlogs().len()), (None, 1));
    site.upstream.vhost().delete_queue(SessionId(77), "full", false, false).unwrap();
    let full = site.declare("full", &FieldTable::new());
    assert_eq!(collect(&mut site, &full, 6000).await, numbers(0..6000));
    site.pass(LONG).await;
    assert_eq!((site.status().messages, site.status().bytes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn parked_messages_that_cannot_be_forwarded_again_stay_parked() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    spool_some(&site.spool, &local, "gone", "k", 0..3);
    site.pass(LONG).await;
    site.delete_local(local.queue().name());
    assert_eq!(
        (site.spool.requeue_parked(SpoolSelection::default()), site.spool.parked(), site.status().bytes),
        (0, 3, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_forwarder_that_panics_blocks_its_publishers_and_is_reported() {
    let mut site = Simulated::new(&disk(), config());
    site.is_broken.store(true, Ordering::Relaxed);
    let (local, other) = (site.queue(), site.spool.queue("/", "other").unwrap());
    spool_some(&site.spool, &local, "", "q", 0..3);
    for _ in 0..2 {
        site.pass(LONG).await;
        let status = site.spool.local.status(&local);
        assert_eq!(status.trouble.as_deref(), Some("its forwarder has failed; restart Leveret"));
        let outbox = Arc::new(Outbox::new(1));
        assert!(site.spool.local.block(&local, &outbox).is_some());
        assert!(site.spool.local.block(&other, &outbox).is_none());
        assert_eq!(site.spool.local.loaded().total(), 0);
        // A client's login does not clear the failure.
        drop(site.queue());
        site.spool.local.check_limits();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_does_not_reset_message_ages() {
    let mut site = Simulated::new(&disk(), config());
    let local = site.queue();
    site.upstream.stop_confirming();
    spool_at(&site.spool, &local, ("", "q"), 1, 0..3);
    site.pass(Duration::from_millis(10)).await;
    let age = site.status().oldest_seconds.unwrap();
    site.is_reachable.store(false, Ordering::Relaxed);
    site.upstream.lose();
    site.pass(Duration::from_millis(1)).await;
    assert!(site.status().trouble.is_some());
    assert!(site.status().oldest_seconds >= Some(age), "{:?}", site.status().oldest_seconds);
    site.spool.local.check_limits();
    assert!(local.alarms.is_raised(Resource::Spool));
}

#[tokio::test(start_paused = true)]
async fn a_login_that_is_refused_for_now_is_tried_again_soon() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    let text = "connection refused for user 'edge': user connection limit (1) is reached";
    *site.upstream.refusal.lock() = Some(OpenError::Refused(Fault::new(ReplyCode::NotAllowed, text)));
    spool_some(&site.spool, &local, "", "q", 0..3);
    site.pass(LONG).await;
    assert!(site.status().trouble.is_some());
    *site.upstream.refusal.lock() = None;
    site.pass(Duration::from_secs(6)).await;
    assert_eq!(take(&upstream).0, numbers(0..3));
}

/// The pool remembers an accepted password for a while.
#[tokio::test(start_paused = true)]
async fn an_old_password_that_was_presented_last_does_not_keep_the_new_one_from_being_used() {
    let mut site = Simulated::new(&disk(), config());
    let upstream = site.declare("q", &FieldTable::new());
    let local = site.spool.queue("/", USER).unwrap();
    let [old, new] = ["old", "new"].map(|password| Credentials::plain(USER, password));
    for credentials in [&old, &new, &old] {
        local.logged_in(Arc::new(credentials.copy()));
    }
    site.refused.lock().push(old);
    spool_some(&site.spool, &local, "", "q", 0..3);
    site.pass(Duration::from_secs(1)).await;
    assert_eq!(take(&upstream).0, numbers(0..3));
    // Without other known credentials it waits, and continues with the next login.
    site.refused.lock().push(new);
    site.upstream.lose();
    site.pass(LONG).await;
    spool_some(&site.spool, &local, "", "q", 3..5);
    let before = site.isolated.lock().len();
    site.pass(Duration::from_secs(50)).await;
    assert!(site.isolated.lock().len() - before <= 4, "{} attempts", site.isolated.lock().len() - before);
    assert!(site.status().trouble.is_some());
    drop(site.queue());
    site.pass(Duration::from_secs(1)).await;
    assert_eq!(take(&upstream).0, numbers(3..5));
}

#[test]
fn few_credentials_are_known_at_once() {
    let credentials: Vec<_> =
        (0..9).map(|number| Arc::new(Credentials::plain(USER, number.to_string()))).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _runtime = runtime.enter();
    let site = Simulated::new(&disk(), config());
    let local = site.spool.queue("/", USER).unwrap();
    credentials.iter().for_each(|each| local.logged_in(Arc::clone(each)));
    let mut tried = Vec::new();
    loop {
        let first = local.credentials().unwrap();
        tried.push(first.clone());
        if !local.login_refused(&first) {
            break;
        }
    }
    assert!(tried == credentials[5..].iter().rev().cloned().collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn each_accepted_login_counts() {
    let site = Simulated::new(&disk(), config());
    let local = site.queue();
    let before = local.logins();
    drop(site.queue());
    assert_ne!(local.logins(), before, "the login may have come while an equal one was being refused");
}

#[tokio::test(start_paused = true)]
async fn ages_are_not_looked_at_with_each_message_that_leaves() {
    let site = Simulated::new(&disk(), SpoolConfig { max_bytes: 5_000, ..config() });
    let (old, local) = (site.spool.queue("/", "old").unwrap(), &site.spool.local);
    spool_at(&site.spool, &old, ("", "q"), 1, 0..200);
    local.changed(&old);
    assert!(site.spool.alarms().is_raised(Resource::Spool) && !old.alarms.is_raised(Resource::Spool));
    local.check_limits();
    assert!(old.alarms.is_raised(Resource::Spool));
}

#[tokio::test(start_paused = true)]
async fn a_password_that_a_forwarder_was_refused_counts_for_no_virtual_host() {
    let site = Simulated::new(&disk(), config());
    let (local, now) = (&site.spool.local, site.spool.local.timestamp(transport::now()));
    let credentials = Arc::new(Credentials::plain(USER, "secret"));
    for vhost in ["/", "other"] {
        local.logins().accepted(vhost, &credentials, now);
        assert!(local.logins().are_remembered(Some(vhost), &credentials, now).await);
    }
    let refusal =
        Fault::new(ReplyCode::AccessRefused, "Login was refused using authentication mechanism PLAIN");
    *site.upstream.refusal.lock() = Some(OpenError::Refused(refusal));
    spool_some(&site.spool, &site.queue(), "", "q", 0..1);
    while site.status().trouble.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for vhost in ["/", "other"] {
        assert!(!local.logins().are_remembered(Some(vhost), &credentials, now).await, "{vhost}");
    }
}

#[tokio::test(start_paused = true)]
async fn newer_credentials_replace_a_connection_after_a_while_without_copies() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    // Constant work, so that the connection stays in use.
    site.declare("full", &super::deferring::limited(0));
    spool_some(&site.spool, &local, "", "full", 10..11);
    for number in 0..10 {
        if number == 2 {
            local.logged_in(Arc::new(Credentials::plain(USER, "new")));
        }
        let connections = site.isolated.lock().len();
        assert_eq!(connections, if number > 6 { 2 } else { connections.min(1) }, "at {number}");
        spool_some(&site.spool, &local, "", "q", number..number + 1);
        site.pass(Duration::from_secs(5)).await;
    }
    assert_eq!((take(&upstream).0, site.isolated.lock().len()), (numbers(0..10), 2));
}

#[tokio::test(start_paused = true)]
async fn a_message_is_parked_if_newer_credentials_are_refused_as_well() {
    let mut site = Simulated::new(&disk(), config());
    let (local, upstream) = (site.queue(), site.declare("q", &FieldTable::new()));
    spool_some(&site.spool, &local, "", "q", 0..1);
    site.pass(Duration::from_secs(1)).await;
    let permissions = broker::Permissions { write: "^(?!amq.fanout)".into(), ..broker::Permissions::all() };
    site.upstream.vhost().set_permissions(USER, Some(&permissions)).unwrap();
    local.logged_in(Arc::new(Credentials::plain(USER, "new")));
    spool_some(&site.spool, &local, "amq.fanout", "k", 1..2);
    spool_some(&site.spool, &local, "", "q", 2..3);
    site.pass(Duration::from_secs(1)).await;
    assert_eq!((site.isolated.lock().len(), site.spool.parked(), site.status().messages), (2, 1, 0));
    let mut bodies = take(&upstream).0;
    bodies.dedup();
    assert_eq!(bodies, ["0", "2"]);
    // Nothing newer is known, which also holds for the next message.
    spool_some(&site.spool, &local, "amq.fanout", "k", 3..4);
    site.pass(Duration::from_secs(1)).await;
    assert_eq!((site.isolated.lock().len(), site.spool.parked()), (2, 2));
}
