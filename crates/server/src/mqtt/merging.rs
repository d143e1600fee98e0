//! Upgrades stored sessions of earlier versions whose filters contain dots. Those versions did not distinguish
//! `.` and `/` in topics: `v1.2/x` was bound and published as `v1.2.x`, which is now the key of `v1/2/x` alone
//! ([`mqtt::topic::topic_to_routing_key`]).
//!
//! When such a session is loaded, its filters are bound with their present keys, so that it misses no later message, and
//! the old bindings are removed. Messages already in its queue are delivered as before: below the queue position
//! [`DetachedSession::merged_below`], topics and filters are compared in their [merged] form.
//!
//! A shared subscription's queue is named after its key. The queue with the old name is consumed beside the new one for
//! as long as the session shares it. The same holds for a filter with a literal level `*`, whose queue earlier versions
//! named like that of the filter with `+` in its place.

use broker::{Binding, Queue, QueueDeclare, QueueKind, Timestamp, VirtualHost};
use hashbrown::{HashMap, HashSet};
use mqtt::QoS;
use mqtt::topic::{TopicFilter, filter_to_binding_key, merged};

use super::detached::DetachedSession;
use super::hub::{Hub, NOBODY, group_queue, group_queue_name, queue_name};
use super::leftovers;
use super::session_ownership::Owner;
use super::subscriptions::has_star;

use std::sync::Arc;

/// The queue that an earlier version created for a shared subscription, if its name differs from the present
/// one. `None` if the filter is not that of a shared subscription.
pub(super) fn merged_group_queue(filter: TopicFilter<'_>) -> Option<String> {
    let is_renamed = filter.filter().contains('.') || has_star(filter.filter());
    let group = filter.group().filter(|_| is_renamed)?;
    Some(group_queue_name(group, &filter_to_binding_key(&merged(filter.filter()))))
}

impl Hub {
    /// Rebinds loaded sessions where necessary. Adds sessions that must be written to `changed`, and returns
    /// the old queues that sessions share.
    pub(super) fn separate_dots(
        &self,
        found: &mut HashMap<Owner, DetachedSession>,
        changed: &mut HashSet<Owner>,
        now: Timestamp,
    ) -> HashMap<Owner, Vec<Box<str>>> {
        let mut groups_before = HashMap::new();
        let exchange = &*self.config.exchange;
        // The name of an old queue may be the present name for another filter.
        let groups: HashSet<(Arc<str>, String)> = found
            .iter()
            .flat_map(|(owner, detached_session)| {
                let queues = detached_session.session.shared_filters().filter_map(group_queue);
                queues.map(|queue| (Arc::clone(&owner.vhost), queue))
            })
            .collect();
        for (owner, detached_session) in found {
            let Some(vhost) = self.broker().vhost(&owner.vhost) else { continue };
            let has_dots = detached_session.session.subscriptions().any(|(filter, _)| filter.contains('.'));
            if has_dots && std::mem::take(&mut detached_session.is_merged) {
                separate_own((&vhost, exchange), owner, detached_session);
                changed.insert(owner.clone());
            }
            let queue = vhost.queue(NOBODY, &queue_name(&owner.client_id, 1)).ok();
            // An empty queue may have restarted its positions.
            detached_session.merged_below =
                detached_session.merged_below.min(queue.map_or(0, |queue| queue.next_position()));
            for filter in detached_session.session.shared_filters() {
                let Some(before) = merged_group_queue(filter) else { continue };
                if !groups.contains(&(Arc::clone(&owner.vhost), before.clone()))
                    && let Ok(queue) = vhost.queue(NOBODY, &before)
                {
                    separate_group((&vhost, exchange), filter, &queue, now);
                    groups_before.entry(owner.clone()).or_insert_with(Vec::new).push(before.into());
                }
            }
        }
        groups_before
    }

    /// Declares missing queues of a loaded session's shared subscriptions: an earlier version deleted such a queue at
    /// shutdown if the first client that shared it had a session without expiry.
    pub(super) fn declare_groups(
        &self,
        vhost: &Arc<VirtualHost>,
        detached_session: &DetachedSession,
        now: Timestamp,
    ) {
        for filter in detached_session.session.shared_filters() {
            if group_queue(filter).is_some_and(|name| vhost.queue(NOBODY, &name).is_err()) {
                declare_group((vhost, &self.config.exchange), filter, now);
            }
        }
    }
}

/// A virtual host, and the exchange there that queues of sessions are bound to.
type At<'a> = (&'a Arc<VirtualHost>, &'a str);

/// Rebinds the client's own queue.
fn separate_own(at: At<'_>, owner: &Owner, detached_session: &mut DetachedSession) {
    let (vhost, _) = at;
    let name = queue_name(&owner.client_id, 1);
    let Ok(queue) = vhost.queue(NOBODY, &name) else { return };
    detached_session.merged_below = queue.next_position();
    let own = || {
        let all = detached_session.session.subscriptions();
        all.filter(|(_, one)| one.options.qos != QoS::AtMostOnce && !one.is_shared).map(|(filter, _)| filter)
    };
    let keys: HashSet<String> = own().map(filter_to_binding_key).collect();
    for filter in own().filter(|filter| filter.contains('.')) {
        rebind(at, &name, filter, |before| keys.contains(before));
    }
}

/// Replaces the queue of a group by another one.
fn separate_group(at: At<'_>, filter: TopicFilter<'_>, before: &Arc<Queue>, now: Timestamp) {
    if declare_group(at, filter, now) {
        unbind(at, before.name(), &filter_to_binding_key(&merged(filter.filter())));
    }
}

/// Declares and binds the queue of a shared subscription. Returns whether it exists then.
fn declare_group(at: At<'_>, filter: TopicFilter<'_>, now: Timestamp) -> bool {
    let (vhost, _) = at;
    let Some(name) = group_queue(filter) else { return false };
    let type_name = Some(QueueKind::Classic.name());
    let declare = QueueDeclare { name: &name, durable: true, type_name, ..QueueDeclare::default() };
    match vhost.declare_queue(NOBODY, &declare, now) {
        Ok(declared) => leftovers::note_group(vhost, &declared.queue),
        Err(error) => {
            tracing::warn!(vhost = vhost.name(), queue = name, %error, "queue of a shared subscription not found");
            return false;
        }
    }
    bind(at, &name, &filter_to_binding_key(filter.filter()));
    true
}

fn rebind(at: At<'_>, queue: &str, filter: &str, is_needed: impl Fn(&str) -> bool) {
    bind(at, queue, &filter_to_binding_key(filter));
    let before = filter_to_binding_key(&merged(filter));
    if !is_needed(&before) {
        unbind(at, queue, &before);
    }
}

fn bind((vhost, source): At<'_>, queue: &str, routing_key: &str) {
    let binding = Binding { source, destination: queue, routing_key, arguments: Default::default() };
    if let Err(error) = vhost.bind_queue(NOBODY, &binding) {
        tracing::warn!(vhost = vhost.name(), queue, routing_key, %error, "cannot bind session queue");
    }
}

fn unbind((vhost, source): At<'_>, queue: &str, routing_key: &str) {
    let binding = Binding { source, destination: queue, routing_key, arguments: Default::default() };
    // It may already have been unbound.
    let _ = vhost.unbind_queue(NOBODY, &binding);
}
