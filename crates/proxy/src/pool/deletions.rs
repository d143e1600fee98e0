//! Virtual hosts that a broker deletes while clients use them.
//!
//! A broker closes all connections of a deleted virtual host with 320 CONNECTION_FORCED, just as when it stops. Clients
//! must survive a stop. Most of them have no state upstream, so they would not notice that the virtual host was
//! deleted.

use std::collections::VecDeque;

use amqp::{Fault, ReplyCode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Pool;

/// Deleted virtual hosts that were not fetched yet.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    queue: Mutex<VecDeque<DeletedVirtualHost>>,
    /// Notified when `queue` has an entry.
    news: Notify,
}

/// A virtual host that was deleted upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedVirtualHost {
    /// The virtual host's name.
    pub name: Box<str>,
    /// The broker's reply text, without `CONNECTION_FORCED - ` in front.
    pub reason: Box<str>,
}

impl Pool {
    /// Waits until a broker reports that it has deleted a virtual host. The caller should report the reason to all
    /// clients in it; a virtual host may be reported once for every upstream connection that was open to it.
    pub async fn deleted_virtual_host(&self) -> DeletedVirtualHost {
        loop {
            // There is one waiter: a leftover permit only causes one extra iteration.
            if let Some(deleted) = self.deletions.queue.lock().pop_front() {
                return deleted;
            }
            self.deletions.news.notified().await;
        }
    }

    /// Handles the fault with which a broker has closed a connection to a virtual host.
    pub(crate) fn closed_with(&self, virtual_host: &str, fault: &Fault) {
        if !is_deletion(virtual_host, fault) {
            return;
        }
        let deleted = DeletedVirtualHost { name: virtual_host.into(), reason: (&*fault.text).into() };
        let mut queue = self.deletions.queue.lock();
        // All its connections are closed at once.
        if !queue.contains(&deleted) {
            queue.push_back(deleted);
        }
        drop(queue);
        self.deletions.news.notify_one();
    }
}

/// Whether the fault is the one that RabbitMQ sends to the connections of a deleted virtual host
/// (`rabbit_connection_tracking`). The text says that the virtual host is down if it stops before its
/// connections are enumerated.
fn is_deletion(virtual_host: &str, fault: &Fault) -> bool {
    let rest = fault.text.strip_prefix("vhost '").and_then(|rest| rest.strip_prefix(virtual_host));
    fault.code == ReplyCode::ConnectionForced && matches!(rest, Some("' is deleted" | "' is down"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_host_deletion_is_distinguished_from_a_shutdown() {
        let is_it = |code, text: &'static str| is_deletion("/", &Fault::new(code, text));
        assert!(is_it(ReplyCode::ConnectionForced, "vhost '/' is deleted"));
        assert!(is_it(ReplyCode::ConnectionForced, "vhost '/' is down"));
        assert!(!is_it(ReplyCode::ConnectionForced, "vhost '/other' is deleted"));
        assert!(!is_it(
            ReplyCode::ConnectionForced,
            "broker forced connection closure with reason 'shutdown'"
        ));
        assert!(!is_it(ReplyCode::NotAllowed, "vhost '/' is deleted"));
    }
}
