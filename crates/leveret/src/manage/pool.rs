//! The pool as the API shows it.

use admin::DetachedSession;
use proxy::{AddressState, Pool, UpstreamView};
use serde_json::{Value, json};
use server::{
    DetachedMqttSession, ForwardingMode, GroupStatus, MultiplexedBindingStatus, MultiplexedQueueStatus,
    MultiplexedTotals, ParkedMessage, RetainedStatus, Server, SpoolStatus,
};

/// Limits of the pool, which do not change while the process runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolLimits {
    /// Maximum number of upstream connections.
    pub(crate) connections: u32,
    /// Maximum bytes kept for replay until an upstream acknowledges them.
    pub(crate) replay_bytes: u64,
}

/// The limits and their current usage.
pub(super) fn limits(pool: &Pool, limits: &PoolLimits) -> Value {
    let metrics = pool.metrics();
    json!({
        "connections": {"total": limits.connections, "in_use": metrics.upstream_connections},
        "replay_bytes": {"total": limits.replay_bytes, "in_use": metrics.replay_buffer_bytes},
    })
}

/// The upstream addresses.
pub(super) fn upstreams(pool: &Pool) -> Vec<Value> {
    let show = |AddressState { address, is_up, connections, cause }| json!({"address": address, "up": is_up, "connections": connections, "cause": cause});
    pool.addresses().into_iter().map(show).collect()
}

/// An upstream connection.
pub(super) fn connection(view: &UpstreamView) -> Value {
    json!({
        "name": view.name, "address": view.address, "user": view.user, "vhost": view.vhost,
        "age_seconds": view.age.as_secs(), "open": view.is_open, "own": view.is_own, "blocked": view.blocked,
        "channels": view.channels, "idle_channels": view.resting, "waiting_bytes": view.backlog,
        "clients": view.clients,
    })
}

/// A queue that subscriptions share upstream.
pub(super) fn multiplexed_queue(status: &MultiplexedQueueStatus) -> Value {
    json!({
        "name": status.queue, "protocol": status.protocol, "user": status.user, "vhost": status.vhost, "exchange": status.exchange,
        "subscribers": status.subscribers, "bindings": status.bindings, "messages_received": status.received, "copies_delivered": status.copies,
        "dropped_messages": status.dropped, "overflowed_subscribers": status.overflowed, "connections_lost": status.lost,
    })
}

/// A queue of the spool.
pub(super) fn spool_queue(status: &SpoolStatus, mode: ForwardingMode) -> Value {
    json!({
        "user": status.user, "vhost": status.vhost, "messages": status.messages, "bytes": status.bytes,
        "max_bytes": status.max_bytes, "oldest_seconds": status.oldest_seconds, "deferred_messages": status.deferred, "state": mode.name(),
        "accept_rate": status.accept_rate, "forward_rate": status.forward_rate,
        "accepted": status.accepted, "forwarded": status.forwarded,
        "refused": status.parked, "waits_for": waits_for(status),
    })
}

/// The reason why messages are not forwarded: all of them, or else those that the upstream does not take.
fn waits_for(status: &SpoolStatus) -> Option<String> {
    let refused = || format!("{} messages wait for their destination (nacked or refused)", status.deferred);
    let of_all = status.trouble.as_deref().map(str::to_owned);
    of_all.or_else(|| (status.deferred > 0).then(refused))
}

/// A message that the upstream has refused permanently.
pub(super) fn parked_message(message: &ParkedMessage) -> Value {
    json!({
        "user": message.user, "vhost": message.vhost, "exchange": message.exchange,
        "routing_key": message.routing_key, "reason": message.reason, "accepted_at": message.accepted_at,
        "refused_at": message.refused_at, "body_bytes": message.body_bytes,
    })
}

/// A binding key of such a queue.
pub(super) fn multiplexed_binding(status: &MultiplexedBindingStatus) -> Value {
    json!({"key": &*status.key, "subscribers": status.subscribers, "bound": status.is_bound})
}

/// A group of MQTT's shared subscriptions.
pub(super) fn shared_group(status: &GroupStatus) -> Value {
    json!({
        "name": status.queue, "vhost": status.vhost, "filter": status.filter, "members": status.members,
        "messages_delivered": status.delivered,
    })
}

/// The retained messages of a virtual host.
pub(super) fn retained(status: &RetainedStatus) -> Value {
    json!({
        "vhost": status.vhost, "queue": status.queue, "state": status.state.name(), "topics": status.topics,
        "bytes": status.bytes,
    })
}

/// An MQTT session without a connection.
pub(super) fn detached(session: DetachedMqttSession) -> DetachedSession {
    let DetachedMqttSession { client_id, user, vhost, subscriptions, expiry, since } = session;
    DetachedSession { client_id, user, vhost, subscriptions: subscriptions as u64, expiry, since: since.0 }
}

/// The leased channels, and the figures on the savings from sharing. A client would have a connection of its own upstream,
/// and its live subscriptions one queue at least, to which each message would be delivered.
pub(super) fn leases(server: &Server, pool: &Pool) -> Value {
    let metrics = pool.metrics();
    let MultiplexedTotals { queues, subscribers, counts, .. } = server.multiplexed_totals();
    let connections_saved = server.connection_count().saturating_sub(metrics.upstream_connections);
    json!({
        "connections_saved": connections_saved, "multiplexed_queues": queues, "multiplexed_subscribers": subscribers,
        "queues_saved": subscribers.saturating_sub(queues), "multiplexed_messages_received": counts.received,
        "multiplexed_copies_delivered": counts.copies, "messages_saved": counts.copies.saturating_sub(counts.received),

        "clients": metrics.clients, "upstream_connections": metrics.upstream_connections,
        "dedicated_connections": metrics.dedicated_connections, "blocked_connections": metrics.blocked_connections,
        "channels": metrics.upstream_channels, "idle_channels": metrics.idle_channels,
        "leases": metrics.leases, "leases_reused": metrics.leases_reused, "handshakes": metrics.handshakes,
        "handshakes_avoided": metrics.handshakes_avoided, "round_trips_saved": metrics.round_trips_saved,
        "messages_to_upstreams": metrics.messages_to_upstreams,
        "messages_from_upstreams": metrics.messages_from_upstreams,
        "messages_replayed": metrics.messages_replayed, "channels_recovered": metrics.channels_recovered,
        "replay_buffer_bytes": metrics.replay_buffer_bytes, "staged_bytes": metrics.bytes_staged, "reachable": pool.is_reachable(),
    })
}
