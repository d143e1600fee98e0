//! Queues that a crash left behind: durable queues that were to be deleted with a connection.

use std::sync::Arc;

use broker::{Broker, Catalogue, CatalogueError, Queue, Section, VirtualHost};
use hashbrown::{HashMap, HashSet};

use super::disk;
use super::hub::{GROUP_PREFIX, NOBODY, QUEUE_PREFIX};
use super::session_ownership::Owner;

/// The names of a virtual host and of a queue of a shared subscription there.
pub(super) type GroupQueueKey = (Arc<str>, Box<str>);

/// Records that MQTT has declared the queue of a shared subscription, to be deleted with the last session that shares it.
/// A queue without this record was declared by an application or migrated here, and the next start leaves it alone.
pub(super) fn note_group(vhost: &VirtualHost, queue: &Queue) {
    let Some(number) = queue.number() else { return };
    let key = disk::key(&[vhost.name(), queue.name()]);
    vhost.note(|catalogue| catalogue.put(Section::MqttGroups, key, number.to_be_bytes().into()));
}

/// Deletes the record of [`note_group`].
pub(super) fn forget_group(vhost: &VirtualHost, queue: &str) {
    vhost.note(|catalogue| catalogue.delete(Section::MqttGroups, disk::key(&[vhost.name(), queue])));
}

/// The queues that [`note_group`] has recorded, with their numbers.
pub(super) fn noted_groups(catalogue: &Catalogue) -> Result<HashMap<GroupQueueKey, u64>, CatalogueError> {
    let mut noted = HashMap::new();
    catalogue.scan(Section::MqttGroups, |key, value| {
        if let Some(([vhost, queue], number)) = disk::names(key).zip(value.try_into().ok()) {
            noted.insert((vhost.into(), queue.into()), u64::from_be_bytes(number));
        }
    })?;
    Ok(noted)
}

/// Deletes queues of clients without a stored session, and those `noted` queues of shared subscriptions that no stored
/// session shares (`groups`). Must be called before any client is served.
pub(super) fn delete(
    broker: &Broker,
    sessions: &HashSet<Owner>,
    groups: &HashSet<GroupQueueKey>,
    noted: HashMap<GroupQueueKey, u64>,
) {
    for vhost in broker.vhosts() {
        let of_nobody = |queue: &Queue| {
            let name = queue.name();
            if name.starts_with(GROUP_PREFIX) {
                let group = (vhost.name().into(), (**name).into());
                let is_ours = noted.get(&group).is_some_and(|number| queue.number() == Some(*number));
                let is_shared = groups.contains(&group);
                if !is_ours && !is_shared {
                    let (vhost, messages) = (vhost.name(), queue.message_count());
                    tracing::info!(
                        vhost,
                        queue = &**name,
                        messages,
                        "queue of an unknown shared subscription kept"
                    );
                }
                return is_ours && !is_shared;
            }
            // Other queues were declared for a persistent session, or by other applications.
            let client = client_of(name).filter(|_| queue.properties().auto_delete);
            client.is_some_and(|client| {
                !sessions.contains(&Owner { vhost: vhost.name().into(), client_id: client.into() })
            })
        };
        for queue in vhost.all_queues().into_iter().filter(|queue| of_nobody(queue)) {
            let _ = vhost.delete_queue(NOBODY, queue.name(), true, false);
        }
    }
    for ((vhost, name), number) in noted {
        // The others were deleted already, and somebody else may have declared queues of their names since.
        if let Some(vhost) = broker.vhost(&vhost)
            && vhost.queue(NOBODY, &name).ok().and_then(|queue| queue.number()) != Some(number)
        {
            forget_group(&vhost, &name);
        }
    }
}

/// The client identifier in the name of a client's own queue.
fn client_of(queue: &str) -> Option<&str> {
    let rest = queue.strip_prefix(QUEUE_PREFIX)?;
    rest.strip_suffix("qos1").or_else(|| rest.strip_suffix("qos0"))
}
