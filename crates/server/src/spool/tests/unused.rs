//! Queues of users that have gone.

use amqp::FieldTable;

use super::*;
use crate::spool::local::UNUSED_MAX;

#[tokio::test(start_paused = true)]
async fn a_queue_without_messages_and_clients_goes_and_comes_again() {
    let mut site = Simulated::new(&SimDisk::new(1, 1 << 30), config());
    let upstream = site.declare("q", &FieldTable::new());
    site.is_reachable.store(false, Ordering::Relaxed);
    // One queue with a client, one with a message, and one with neither.
    let with_client = site.spool.queue("/", "client").unwrap();
    spool_some(&site.spool, &site.spool.queue("/", "messages").unwrap(), "", "q", 0..1);
    drop(site.spool.queue("/", "gone").unwrap());
    site.pass(UNUSED_MAX / 2).await;
    assert_eq!(site.spool.status().len(), 3);
    site.pass(UNUSED_MAX).await;
    let mut users: Vec<_> = site.spool.status().into_iter().map(|status| status.user).collect();
    users.sort();
    assert_eq!(users, [Box::from("client"), Box::from("messages")]);
    drop(with_client);
    // The removed queue can be created again.
    site.is_reachable.store(true, Ordering::Relaxed);
    let again = site.spool.queue("/", "gone").unwrap();
    again.logged_in(Arc::new(Credentials::plain("gone", "secret")));
    spool_some(&site.spool, &again, "", "q", 0..3);
    site.pass(LONG).await;
    assert_eq!(upstream.message_count(), 3);
    // The forwarders of removed queues have ended.
    let running = site.spool.forwarders.lock().iter().filter(|forwarder| !forwarder.is_finished()).count();
    assert_eq!(running, 3);
}

const LONG: Duration = Duration::from_secs(30);
