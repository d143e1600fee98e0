//! Queues that a crash has left behind: those that were to go with a connection, and are durable all the same.

use std::sync::Arc;

use broker::{Broker, Queue};
use hashbrown::HashSet;

use super::hub::{GROUP_PREFIX, NOBODY, QUEUE_PREFIX};
use super::session_ownership::Owner;

/// Deletes queues of clients without a stored session, and queues of shared subscriptions that no stored session shares
/// (`groups`). Must be called before any client is served.
pub(super) fn delete(broker: &Broker, sessions: &HashSet<Owner>, groups: &HashSet<(Arc<str>, Box<str>)>) {
    for vhost in broker.vhosts() {
        let of_nobody = |queue: &Queue| {
            let name = queue.name();
            if name.starts_with(GROUP_PREFIX) {
                return !groups.contains(&(vhost.name().into(), (**name).into()));
            }
            // Other queues have been declared for a persistent session, or by somebody else.
            let client = client_of(name).filter(|_| queue.properties().auto_delete);
            client.is_some_and(|client| {
                !sessions.contains(&Owner { vhost: vhost.name().into(), client_id: client.into() })
            })
        };
        for queue in vhost.all_queues().into_iter().filter(|queue| of_nobody(queue)) {
            let _ = vhost.delete_queue(NOBODY, queue.name(), true, false);
        }
    }
}

/// The client identifier in the name of a client's own queue.
fn client_of(queue: &str) -> Option<&str> {
    let rest = queue.strip_prefix(QUEUE_PREFIX)?;
    rest.strip_suffix("qos1").or_else(|| rest.strip_suffix("qos0"))
}
