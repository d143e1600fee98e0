//! Metrics of the pool and its upstreams.

use admin::{MetricKind, MetricsWriter};
use proxy::{Pool, PoolMetrics};

/// Name and help of a metric, and how its value is read.
type Row<V> = (&'static str, &'static str, fn(&PoolMetrics) -> V);

const GAUGES: &[Row<usize>] = &[
    ("leveret_upstream_connections", "Upstream connections that are open.", |m| m.upstream_connections),
    ("leveret_upstream_own_connections", "Of those, the ones that one client has alone.", |m| {
        m.own_connections
    }),
    ("leveret_upstream_blocked_connections", "Upstream connections that their broker has blocked.", |m| {
        m.blocked_connections
    }),
    ("leveret_upstream_channels", "Upstream channels in use.", |m| m.upstream_channels),
    (
        "leveret_upstream_resting_channels",
        "Upstream channels that are open, clean, and wait for a client.",
        |m| m.resting_channels,
    ),
    ("leveret_pool_clients", "Clients with an open session.", |m| m.clients),
    ("leveret_upstream_opening_connections", "Upstream connections that are being opened.", |m| {
        m.opening_connections
    }),
    ("leveret_upstream_addresses", "Upstream addresses that are known.", |m| m.addresses),
    ("leveret_upstream_addresses_down", "Of those, the ones that did not answer last.", |m| m.addresses_down),
    (
        "leveret_upstream_replay_kept_bytes",
        "Bytes of clients' frames that are kept until an upstream answers for them.",
        |m| m.bytes_kept,
    ),
    (
        "leveret_upstream_topology_bytes",
        "Bytes of what clients declared that ends with an upstream, remembered to be declared again.",
        |m| m.bytes_remembered,
    ),
    (
        "leveret_upstream_departed_bytes",
        "Bytes sent by clients that are gone, kept until an upstream has answered something behind them.",
        |m| m.bytes_departed,
    ),
    (
        "leveret_upstream_staged_bytes",
        "Bytes of messages that clients have not sent completely, held until they are.",
        |m| m.bytes_staged,
    ),
    (
        "leveret_upstream_waiting_for_room_clients",
        "Clients that are not read until there is room for messages that they have not sent completely.",
        |m| m.clients_in_line,
    ),
    (
        "leveret_upstream_lanes",
        "Upstream connections on which messages stream for which there was no room.",
        |m| m.streams,
    ),
    (
        "leveret_upstream_held_bytes",
        "Bytes of clients that wait for an upstream connection, or for an outage to end.",
        |m| m.bytes_held,
    ),
    ("leveret_upstream_unread_bytes", "Bytes that wait for clients of the pool to read them.", |m| {
        m.bytes_waiting
    }),
];

const COUNTERS: &[Row<u64>] = &[
    ("leveret_upstream_handshakes_total", "Handshakes begun with an upstream.", |m| m.handshakes),
    ("leveret_upstream_handshakes_avoided_total", "Logins answered without a handshake.", |m| {
        m.handshakes_avoided
    }),
    ("leveret_upstream_leases_total", "Upstream channels leased to clients' channels.", |m| m.leases),
    ("leveret_upstream_leases_reused_total", "Of those, the ones that were open already.", |m| {
        m.leases_reused
    }),
    (
        "leveret_upstream_round_trips_saved_total",
        "Round trips to an upstream that clients were spared.",
        |m| m.round_trips_saved,
    ),
    (
        "leveret_upstream_refusals_repeated_total",
        "Logins refused without asking again, for an upstream had just refused them.",
        |m| m.refusals_repeated,
    ),
    ("leveret_upstream_sent_messages_total", "Messages sent to upstreams.", |m| m.messages_to_upstreams),
    (
        "leveret_upstream_received_messages_total",
        "Messages received from upstreams, returned ones included.",
        |m| m.messages_from_upstreams,
    ),
    ("leveret_upstream_connect_failures_total", "Failed attempts to connect.", |m| m.connect_failures),
    ("leveret_upstream_connections_lost_total", "Upstream connections that were lost.", |m| {
        m.connections_lost
    }),
    (
        "leveret_upstream_replayed_messages_total",
        "Messages sent again after their upstream connection was lost.",
        |m| m.messages_replayed,
    ),
    (
        "leveret_upstream_recovered_channels_total",
        "Channels that went on elsewhere after their upstream connection was lost.",
        |m| m.channels_recovered,
    ),
    (
        "leveret_upstream_moved_consumers_total",
        "Channels whose consumers were too slow for a shared upstream connection and got one of their own.",
        |m| m.consumers_moved,
    ),
    (
        "leveret_upstream_squeezed_consumers_total",
        "Of those, the ones that had to because too much waited for all clients together.",
        |m| m.consumers_squeezed,
    ),
    (
        "leveret_upstream_waits_for_room_total",
        "How often a client had to wait for room for a message that it had not sent completely.",
        |m| m.messages_lined_up,
    ),
    (
        "leveret_upstream_evicted_clients_total",
        "Clients closed because a message of theirs stayed incomplete while others waited for room.",
        |m| m.clients_gave_way,
    ),
    (
        "leveret_upstream_topology_restored_total",
        "Exchanges, queues and bindings declared again after an upstream may have lost them.",
        |m| m.declarations_repeated,
    ),
    (
        "leveret_upstream_topology_lost_clients_total",
        "Clients closed with 320 because what they had declared could not be declared again.",
        |m| m.clients_not_restored,
    ),
    (
        "leveret_upstream_awaited_connections_total",
        "How often a client waited because as many upstream connections were open as there may be.",
        |m| m.connections_awaited,
    ),
    (
        "leveret_upstream_unconfirmed_channels_total",
        "Channels that had sent messages over 1 MiB without confirms on a lost upstream connection: they may be lost.",
        |m| m.channels_unconfirmed,
    ),
    (
        "leveret_upstream_departed_resent_messages_total",
        "Messages of clients that are gone, sent again after their upstream connection was lost.",
        |m| m.messages_departed_resent,
    ),
    (
        "leveret_upstream_departed_lost_messages_total",
        "Messages of clients that are gone which may be lost: no upstream answered in time, or too much was kept.",
        |m| m.messages_departed_lost,
    ),
    ("leveret_upstream_refused_logins_total", "Logins that an upstream refused.", |m| m.logins_refused),
    ("leveret_upstream_sent_bytes_total", "Bytes sent to upstreams.", |m| m.bytes_to_upstreams),
    ("leveret_upstream_received_bytes_total", "Bytes received from upstreams.", |m| m.bytes_from_upstreams),
    ("leveret_upstream_received_frames_total", "Frames received from upstreams.", |m| {
        m.frames_from_upstreams
    }),
];

pub(super) fn write(pool: &Pool, out: &mut MetricsWriter) {
    let metrics = pool.metrics();
    let help = "Whether the last attempt to reach an upstream succeeded.";
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
        "How long what clients sent waited here until an upstream connection's socket took it, sampled.",
        &[],
        &buckets,
        count,
        sum.as_secs_f64(),
    );
}

fn write_addresses(pool: &Pool, out: &mut MetricsWriter) {
    let addresses = pool.addresses();
    let help = "Whether an upstream address answered last.";
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
