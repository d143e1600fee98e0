//! Metrics of the pool and its upstreams.

use admin::{HistogramSeries, MetricKind, MetricsWriter};
use proxy::{AddressState, Pool};
use server::{
    ForwardingMode, MqttUpstreamTotals, MultiplexedCounts, MultiplexedTotals, Server, Spool, SpoolStatus,
};

pub(super) fn write(server: &Server, pool: &Pool, out: &mut MetricsWriter) {
    let metrics = pool.metrics();
    let help = "1 if an upstream has open connections or was reachable when it was last probed, else 0.";
    out.gauge("leveret_upstream_up", help, u64::from(pool.is_reachable()));
    for (name, help, value) in metrics.gauges() {
        out.gauge(name, help, value);
    }
    for (name, help, value) in metrics.counters() {
        out.counter(name, help, value);
    }
    write_addresses(pool, out);
    write_multiplexed(&server.multiplexed_totals(), out);
    if let Some(totals) = server.mqtt_upstream_totals() {
        write_mqtt(&totals, server.metrics().mqtt_messages_dropped.get(), out);
    }
    if let Some(spool) = server.spool() {
        write_spool(spool, out);
    }
    let proxy::Durations { buckets, count, sum } = metrics.queueing;
    let buckets = proxy::BOUNDS.into_iter().zip(buckets).collect();
    let series = HistogramSeries { labels: Vec::new(), buckets, count, sum: sum.as_secs_f64() };
    let help =
        "Time in seconds that sampled client data waited until it was written to an upstream connection.";
    out.histogram("leveret_upstream_queueing_seconds", help, &[series]);
}

/// The queues that subscriptions share upstream. Sharing has saved as many messages as copies exceed those received.
fn write_multiplexed(totals: &MultiplexedTotals, out: &mut MetricsWriter) {
    let MultiplexedTotals { queues, subscribers, bindings, waiting_bytes, counts } = *totals;
    for (name, help, value) in [
        ("leveret_multiplexed_queues", "Queues of multiplexed subscriptions upstream.", queues),
        ("leveret_multiplexed_subscribers", "Clients with multiplexed subscriptions upstream.", subscribers),
        (
            "leveret_multiplexed_bindings",
            "Binding keys of the queues of multiplexed subscriptions upstream.",
            bindings,
        ),
        (
            "leveret_multiplexed_waiting_bytes",
            "Bytes of messages of multiplexed subscriptions waiting for slow clients (upstream_inbox_total).",
            waiting_bytes,
        ),
    ] {
        out.gauge(name, help, value as u64);
    }
    let MultiplexedCounts { received, copies, dropped, overflowed, lost } = counts;
    for (name, help, value) in [
        (
            "leveret_multiplexed_received_messages_total",
            "Messages received from the queues of multiplexed subscriptions.",
            received,
        ),
        (
            "leveret_multiplexed_delivered_copies_total",
            "Copies of messages of multiplexed subscriptions delivered to subscribers. Multiplexing saves the upstream the copies beyond the messages received.",
            copies,
        ),
        (
            "leveret_multiplexed_dropped_messages_total",
            "Messages of QoS 0 dropped, the oldest first, because their MQTT client was too slow (mqtt_queue_max).",
            dropped,
        ),
        (
            "leveret_multiplexed_overflowed_subscribers_total",
            "Subscribers of multiplexed subscriptions disconnected because they were too slow.",
            overflowed,
        ),
        (
            "leveret_multiplexed_connections_lost_total",
            "Upstream connections of multiplexed subscriptions lost; messages published until the next one was ready were missed.",
            lost,
        ),
    ] {
        out.counter(name, help, value);
    }
}

/// MQTT clients in front of the upstream.
fn write_mqtt(totals: &MqttUpstreamTotals, dropped: u64, out: &mut MetricsWriter) {
    for (name, help, value) in [
        (
            "leveret_mqtt_detached_sessions",
            "MQTT sessions without a connection that are known here; their messages are in their queues upstream.",
            totals.detached_sessions as u64,
        ),
        (
            "leveret_mqtt_detached_bytes",
            "Approximate memory in bytes of MQTT sessions without a connection.",
            totals.detached_bytes as u64,
        ),
        ("leveret_mqtt_delayed_wills", "MQTT wills whose delay has not passed.", totals.delayed_wills as u64),
        (
            "leveret_mqtt_delayed_will_bytes",
            "Approximate memory in bytes of MQTT wills whose delay has not passed.",
            totals.delayed_will_bytes as u64,
        ),
        (
            "leveret_mqtt_shared_groups",
            "Groups of MQTT's shared subscriptions with members that are connected here.",
            totals.groups as u64,
        ),
        (
            "leveret_mqtt_shared_group_members",
            "Members of groups of MQTT's shared subscriptions that are connected here; a client counts once per group.",
            totals.group_members,
        ),
        (
            "leveret_mqtt_retained_topics",
            "Topics with a retained MQTT message, as far as the upstream's streams have been read here.",
            totals.retained_topics as u64,
        ),
        (
            "leveret_mqtt_retained_bytes",
            "Bytes of the retained MQTT messages in the upstream's streams.",
            totals.retained_bytes,
        ),
    ] {
        out.gauge(name, help, value);
    }
    let help = "MQTT messages delivered to the members of groups of shared subscriptions.";
    out.counter("leveret_mqtt_shared_group_messages_total", help, totals.group_delivered);
    let help = "MQTT messages of QoS 0 dropped because no upstream could be reached.";
    out.counter("leveret_mqtt_dropped_messages_total", help, dropped);
}

type SpoolValue = fn(&SpoolStatus) -> u64;

/// The metrics of each user and virtual host that has spooled messages: name, help, kind and value.
const SPOOL_FAMILIES: [(&str, &str, MetricKind, SpoolValue); 9] = [
    (
        "leveret_spool_messages",
        "Spooled messages not yet confirmed by the upstream.",
        MetricKind::Gauge,
        |queue| queue.messages,
    ),
    (
        "leveret_spool_bytes",
        "Bytes of spooled messages not yet confirmed by the upstream.",
        MetricKind::Gauge,
        |queue| queue.bytes,
    ),
    (
        "leveret_spool_max_bytes",
        "Bytes of spooled messages at which publishers are blocked: three quarters of what others leave of spool_max_bytes.",
        MetricKind::Gauge,
        |queue| queue.max_bytes,
    ),
    (
        "leveret_spool_oldest_seconds",
        "Age in seconds of the oldest spooled message; 0 if there is none.",
        MetricKind::Gauge,
        |queue| queue.oldest_seconds.unwrap_or_default(),
    ),
    (
        "leveret_spool_deferred_messages",
        "Spooled messages waiting because the upstream nacked or permanently refused an earlier one for the same destination.",
        MetricKind::Gauge,
        |queue| queue.deferred,
    ),
    (
        "leveret_spool_waiting",
        "1 while spooled messages cannot be forwarded, for example because the upstream is unreachable, else 0.",
        MetricKind::Gauge,
        |queue| u64::from(queue.trouble.is_some()),
    ),
    (
        "leveret_spool_accepted_messages_total",
        "Messages accepted by the spool.",
        MetricKind::Counter,
        |queue| queue.accepted,
    ),
    (
        "leveret_spool_forwarded_messages_total",
        "Spooled messages confirmed by the upstream.",
        MetricKind::Counter,
        |queue| queue.forwarded,
    ),
    (
        "leveret_spool_refused_messages_total",
        "Spooled messages that the upstream has refused permanently, and that were parked.",
        MetricKind::Counter,
        |queue| queue.parked,
    ),
];

/// The queues of the spool, by user and virtual host.
fn write_spool(spool: &Spool, out: &mut MetricsWriter) {
    let queues = spool.status();
    for (name, help, kind, value) in SPOOL_FAMILIES {
        let mut family = out.family(name, help, kind);
        for queue in &queues {
            family.sample(&[("vhost", &*queue.vhost), ("user", &*queue.user)], value(queue));
        }
    }
    let is_paused = u64::from(spool.mode() == ForwardingMode::Paused);
    out.gauge("leveret_spool_paused", "1 if an operator has paused forwarding, else 0.", is_paused);
    out.gauge(
        "leveret_spool_parked_messages",
        "Parked messages: those that the upstream has refused permanently.",
        spool.parked(),
    );
    let help = "Clients admitted before the upstream had verified their credentials, because it had accepted the same ones earlier.";
    out.counter("leveret_spool_offline_logins_total", help, spool.offline_logins());
    let help = "Connected clients whose credentials the upstream has not verified yet.";
    out.gauge("leveret_spool_unverified_clients", help, spool.unverified_clients() as u64);
    let help =
        "Connections whose publishers are blocked: the spool has reached a limit, or is being drained.";
    out.gauge("leveret_spool_blocked_connections", help, spool.blocked_connections() as u64);
}

fn write_addresses(pool: &Pool, out: &mut MetricsWriter) {
    let addresses = pool.addresses();
    let help = "1 if an upstream address has open connections or was reachable when it was last probed, else 0; missing until it is probed.";
    let mut family = out.family("leveret_upstream_address_up", help, MetricKind::Gauge);
    for AddressState { address, is_up, .. } in &addresses {
        if let Some(is_up) = *is_up {
            family.sample(&[("address", address)], u64::from(is_up));
        }
    }
    let help = "Open connections to an upstream address.";
    let mut family = out.family("leveret_upstream_address_connections", help, MetricKind::Gauge);
    for AddressState { address, connections, .. } in &addresses {
        family.sample(&[("address", address)], *connections as u64);
    }
}
