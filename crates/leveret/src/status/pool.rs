//! Metrics of the pool and its upstreams.

use admin::{MetricKind, MetricsWriter};
use proxy::{Pool, PoolMetrics};

/// Name and help of a metric, and how its value is read.
type Row<V> = (&'static str, &'static str, fn(&PoolMetrics) -> V);

const GAUGES: &[Row<usize>] = &[
    ("leveret_upstream_connections", "Upstream connections currently open.", |m| m.upstream_connections),
    ("leveret_upstream_own_connections", "Upstream connections dedicated to one client.", |m| {
        m.own_connections
    }),
    ("leveret_upstream_blocked_connections", "Upstream connections blocked by their broker.", |m| {
        m.blocked_connections
    }),
    ("leveret_upstream_channels", "Upstream channels in use.", |m| m.upstream_channels),
    (
        "leveret_upstream_resting_channels",
        "Upstream channels that are open and idle, ready to be leased to a client.",
        |m| m.resting_channels,
    ),
    ("leveret_pool_clients", "Clients of the pool with an open session.", |m| m.clients),
    ("leveret_upstream_opening_connections", "Upstream connections being opened.", |m| m.opening_connections),
    ("leveret_upstream_addresses", "Known upstream addresses.", |m| m.addresses),
    ("leveret_upstream_addresses_down", "Upstream addresses whose last connection attempt failed.", |m| {
        m.addresses_down
    }),
    (
        "leveret_upstream_replay_kept_bytes",
        "Bytes of clients' frames kept for a replay until an upstream answers them.",
        |m| m.bytes_kept,
    ),
    (
        "leveret_upstream_topology_bytes",
        "Bytes of transient topology remembered to be declared again after an upstream is lost.",
        |m| m.bytes_remembered,
    ),
    (
        "leveret_upstream_departed_bytes",
        "Bytes sent by disconnected clients that no upstream has answered yet.",
        |m| m.bytes_departed,
    ),
    (
        "leveret_upstream_staged_bytes",
        "Bytes of incomplete messages buffered until their clients have sent the rest.",
        |m| m.bytes_staged,
    ),
    (
        "leveret_upstream_waiting_for_room_clients",
        "Clients not read until there is room to buffer their incomplete messages.",
        |m| m.clients_in_line,
    ),
    (
        "leveret_upstream_lanes",
        "Upstream connections that stream incomplete messages for which there was no room to buffer.",
        |m| m.streams,
    ),
    (
        "leveret_upstream_held_bytes",
        "Bytes of clients waiting for an upstream connection or for the end of an outage.",
        |m| m.bytes_held,
    ),
    ("leveret_upstream_unread_bytes", "Bytes waiting for clients of the pool to read them.", |m| {
        m.bytes_waiting
    }),
];

const COUNTERS: &[Row<u64>] = &[
    ("leveret_upstream_handshakes_total", "AMQP handshakes started with an upstream.", |m| m.handshakes),
    (
        "leveret_upstream_handshakes_avoided_total",
        "Logins answered without an AMQP handshake with an upstream.",
        |m| m.handshakes_avoided,
    ),
    ("leveret_upstream_leases_total", "Upstream channels leased to clients' channels.", |m| m.leases),
    ("leveret_upstream_leases_reused_total", "Leases of upstream channels that were already open.", |m| {
        m.leases_reused
    }),
    ("leveret_upstream_round_trips_saved_total", "Round trips to an upstream saved for clients.", |m| {
        m.round_trips_saved
    }),
    (
        "leveret_upstream_refusals_repeated_total",
        "Logins refused from memory because an upstream had just refused the same credentials.",
        |m| m.refusals_repeated,
    ),
    ("leveret_upstream_sent_messages_total", "Messages sent to upstreams.", |m| m.messages_to_upstreams),
    (
        "leveret_upstream_received_messages_total",
        "Messages received from upstreams, including returned ones.",
        |m| m.messages_from_upstreams,
    ),
    ("leveret_upstream_connect_failures_total", "Failed attempts to connect to an upstream.", |m| {
        m.connect_failures
    }),
    ("leveret_upstream_connections_lost_total", "Upstream connections lost.", |m| m.connections_lost),
    (
        "leveret_upstream_replayed_messages_total",
        "Messages republished after their upstream connection was lost.",
        |m| m.messages_replayed,
    ),
    (
        "leveret_upstream_recovered_channels_total",
        "Channels recovered on another upstream connection after theirs was lost.",
        |m| m.channels_recovered,
    ),
    (
        "leveret_upstream_moved_consumers_total",
        "Channels moved to a dedicated upstream connection because their consumers were too slow.",
        |m| m.consumers_moved,
    ),
    (
        "leveret_upstream_squeezed_consumers_total",
        "Channels moved because too many bytes were waiting for all clients together.",
        |m| m.consumers_squeezed,
    ),
    (
        "leveret_upstream_waits_for_room_total",
        "Times a client waited for room to buffer an incomplete message.",
        |m| m.messages_lined_up,
    ),
    (
        "leveret_upstream_evicted_clients_total",
        "Clients closed because their message stayed incomplete while others waited for room.",
        |m| m.clients_gave_way,
    ),
    (
        "leveret_upstream_topology_restored_total",
        "Exchanges, queues and bindings declared again after an upstream connection was lost.",
        |m| m.declarations_repeated,
    ),
    (
        "leveret_upstream_topology_lost_clients_total",
        "Clients closed with 320 because their topology could not be declared again.",
        |m| m.clients_not_restored,
    ),
    (
        "leveret_upstream_awaited_connections_total",
        "Times a client waited because the limit of upstream connections was reached.",
        |m| m.connections_awaited,
    ),
    (
        "leveret_upstream_unconfirmed_channels_total",
        "Channels that may have lost unconfirmed messages over 1 MiB with their upstream connection.",
        |m| m.channels_unconfirmed,
    ),
    (
        "leveret_upstream_departed_resent_messages_total",
        "Messages of disconnected clients republished after their upstream connection was lost.",
        |m| m.messages_departed_resent,
    ),
    (
        "leveret_upstream_departed_lost_messages_total",
        "Messages of disconnected clients that may be lost because no upstream answered in time or too much was kept.",
        |m| m.messages_departed_lost,
    ),
    ("leveret_upstream_refused_logins_total", "Logins refused by an upstream.", |m| m.logins_refused),
    ("leveret_upstream_sent_bytes_total", "Bytes sent to upstreams.", |m| m.bytes_to_upstreams),
    ("leveret_upstream_received_bytes_total", "Bytes received from upstreams.", |m| m.bytes_from_upstreams),
    ("leveret_upstream_received_frames_total", "Frames received from upstreams.", |m| {
        m.frames_from_upstreams
    }),
];

pub(super) fn write(pool: &Pool, out: &mut MetricsWriter) {
    let metrics = pool.metrics();
    let help = "1 if the last attempt to reach an upstream succeeded, else 0.";
    out.gauge("leveret_upstream_up", help, u64::from(pool.is_reachable()));
    for (name, help, value) in GAUGES {
        out.gauge(name, help, value(&metrics) as u64);
    }
    for (name, help, value) in COUNTERS {
        out.counter(name, help, value(&metrics));
    }
    write_addresses(pool, out);
    let proxy::Durations { buckets, count, sum } = metrics.queueing;
    let buckets: Vec<_> = proxy::BOUNDS.into_iter().zip(buckets).collect();
    out.histogram(
        "leveret_upstream_queueing_seconds",
        "Time in seconds that sampled client data waited until it was written to an upstream connection.",
        &[],
        &buckets,
        count,
        sum.as_secs_f64(),
    );
}

fn write_addresses(pool: &Pool, out: &mut MetricsWriter) {
    let addresses = pool.addresses();
    let help = "1 if the last connection attempt to an upstream address succeeded, else 0.";
    let mut family = out.family("leveret_upstream_address_up", help, MetricKind::Gauge);
    for (address, is_up, _) in &addresses {
        family.sample(&[("address", address)], u64::from(*is_up));
    }
    let help = "Open connections to an upstream address.";
    let mut family = out.family("leveret_upstream_address_connections", help, MetricKind::Gauge);
    for (address, _, connections) in &addresses {
        family.sample(&[("address", address)], *connections as u64);
    }
}
