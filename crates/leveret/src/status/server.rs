//! Connections, channels and limits.

use admin::{Detail, Families, MetricKind, MetricsWriter};
use server::{Counter, Server};

pub(super) fn write(server: &Server, out: &mut MetricsWriter) {
    let metrics = server.metrics();
    let help = "Times a client exceeded a limit and was refused, delayed or, with limits_mode = alarm, only counted.";
    let mut exceeded = out.family("leveret_limit_exceeded_total", help, MetricKind::Counter);
    for (limit, count) in server.exceeded().iter() {
        exceeded.sample(&[("limit", limit)], count);
    }
    let connections = server.connection_count() as u64;
    out.gauge("rabbitmq_connections", "Client connections currently open.", connections);
    let help = "Client connections that may be open: max_connections, or what the limit of open files leaves; 0 for no limit.";
    out.gauge("leveret_max_connections", help, server.connection_limit() as u64);
    let help = "Open sockets of client connections, without those of upstreams and HTTP.";
    out.gauge("rabbitmq_process_open_tcp_sockets", help, connections);
    let channels = metrics.channels_opened.get().saturating_sub(metrics.channels_closed.get());
    out.gauge("rabbitmq_channels", "Client channels currently open.", channels);
    write_churn(server, "rabbitmq", out);
    for (name, help, counter) in [
        (
            "leveret_connections_refused_total",
            "Client connections refused because of a limit.",
            &metrics.connections_refused,
        ),
        (
            "leveret_connections_handed_over_total",
            "Client connections handed over to the successor of this process.",
            &metrics.connections_handed_over,
        ),
        (
            "leveret_connections_resumed_total",
            "Client connections taken over from the predecessor of this process.",
            &metrics.connections_resumed,
        ),
        ("leveret_logins_refused_total", "Failed authentication attempts.", &metrics.logins_refused),
        ("rabbitmq_auth_attempts_failed_total", "Failed authentication attempts.", &metrics.logins_refused),
        ("leveret_received_bytes_total", "Bytes received from clients.", &metrics.bytes_received),
    ] {
        out.counter(name, help, counter.get());
    }
}

/// Writes the part of this that belongs to `/metrics/detailed`.
pub(super) fn write_detailed(server: &Server, detail: &Detail, out: &mut MetricsWriter) {
    if detail.wants(&[Families::Churn]) {
        write_churn(server, "rabbitmq_detailed", out);
    }
    if detail.wants(&[Families::NodeCoarse]) {
        let help = "Open sockets of client connections, without those of upstreams and HTTP.";
        out.gauge("rabbitmq_detailed_process_open_tcp_sockets", help, server.connection_count() as u64);
    }
    if detail.wants(&[Families::Logins]) {
        let refused = server.metrics().logins_refused.get();
        out.counter(
            "rabbitmq_detailed_auth_attempts_failed_total",
            "Failed authentication attempts.",
            refused,
        );
    }
}

fn write_churn(server: &Server, prefix: &str, out: &mut MetricsWriter) {
    let metrics = server.metrics();
    let mut counter = |name: &str, help: &str, counter: &Counter| {
        out.counter(&format!("{prefix}_{name}"), help, counter.get());
    };
    counter("connections_opened_total", "Client connections opened.", &metrics.connections_opened);
    counter("connections_closed_total", "Client connections closed.", &metrics.connections_closed);
    counter("channels_opened_total", "Client channels opened.", &metrics.channels_opened);
    counter("channels_closed_total", "Client channels closed.", &metrics.channels_closed);
}
