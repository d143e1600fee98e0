//! What the process tells about itself over HTTP.

use std::sync::atomic::{AtomicBool, Ordering};

use admin::{Kind, MetricsWriter, Readiness, Source};
use proxy::Pool;
use server::{Door, Server};

/// Readiness and metrics of the running server.
pub(crate) struct Status {
    server: Server,
    door: Door,
    draining: AtomicBool,
}

impl Status {
    pub(crate) fn new(server: Server, door: Door) -> Self {
        Self { server, door, draining: AtomicBool::new(false) }
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

impl Source for Status {
    fn ready(&self) -> Readiness {
        if self.draining.load(Ordering::Relaxed) {
            return Readiness::NotReady("shutting down".to_owned());
        }
        match &self.door {
            Door::Upstream(pool) if !pool.is_reachable() => {
                Readiness::NotReady("upstream not reachable".to_owned())
            }
            _ => Readiness::Ready,
        }
    }

    fn metrics(&self, out: &mut MetricsWriter) {
        let draining = u64::from(self.draining.load(Ordering::Relaxed));
        out.gauge("leveret_draining", "Whether this process is shutting down.", draining);
        write_server(&self.server, out);
        match &self.door {
            Door::Broker(broker) => write_broker(broker.metrics(), out),
            Door::Upstream(pool) => write_pool(pool, out),
        }
    }
}

fn write_server(server: &Server, out: &mut MetricsWriter) {
    let metrics = server.metrics();
    out.gauge("rabbitmq_connections", "Client connections that are open.", server.connection_count() as u64);
    let channels = metrics.channels_opened.get().saturating_sub(metrics.channels_closed.get());
    out.gauge("rabbitmq_channels", "Client channels that are open.", channels);
    for (name, help, counter) in [
        ("rabbitmq_connections_opened_total", "Client connections accepted.", &metrics.connections_opened),
        (
            "rabbitmq_connections_closed_total",
            "Client connections that have ended.",
            &metrics.connections_closed,
        ),
        ("rabbitmq_channels_opened_total", "Client channels opened.", &metrics.channels_opened),
        ("rabbitmq_channels_closed_total", "Client channels closed.", &metrics.channels_closed),
        (
            "leveret_connections_refused_total",
            "Connections turned away by a limit.",
            &metrics.connections_refused,
        ),
        ("leveret_logins_refused_total", "Logins refused.", &metrics.logins_refused),
        ("leveret_received_bytes_total", "Octets received from clients.", &metrics.bytes_received),
        (
            "rabbitmq_global_messages_received_confirm_total",
            "Messages received that are to be confirmed.",
            &metrics.messages_to_confirm,
        ),
        ("rabbitmq_global_messages_confirmed_total", "Messages confirmed.", &metrics.messages_confirmed),
        (
            "rabbitmq_global_messages_unroutable_returned_total",
            "Unroutable messages returned to their publishers.",
            &metrics.messages_returned,
        ),
    ] {
        out.counter(name, help, counter.get());
    }
}

fn write_broker(metrics: &broker::Metrics, out: &mut MetricsWriter) {
    for (name, value) in metrics.iter() {
        let (name, kind) = match name {
            "queues" | "exchanges" | "bindings" | "consumers" => {
                (format!("leveret_broker_{name}"), Kind::Gauge)
            }
            _ => (format!("leveret_broker_{name}_total"), Kind::Counter),
        };
        out.family(&name, "A number of the embedded broker.", kind).sample(&[], value);
    }
    out.gauge("rabbitmq_queues", "Queues that exist.", metrics.queues.get());
    out.gauge("rabbitmq_consumers", "Consumers that exist.", metrics.consumers.get());
    let received = metrics.messages_routed.get() + metrics.messages_unroutable.get();
    out.counter("rabbitmq_global_messages_received_total", "Messages received.", received);
    out.counter(
        "rabbitmq_global_messages_routed_total",
        "Messages routed to a queue.",
        metrics.messages_routed.get(),
    );
    out.counter(
        "rabbitmq_global_messages_acknowledged_total",
        "Messages acknowledged.",
        metrics.messages_acked.get(),
    );
}

fn write_pool(pool: &Pool, out: &mut MetricsWriter) {
    let metrics = pool.metrics();
    for (name, help, value) in [
        ("leveret_upstream_connections", "Upstream connections that are open.", metrics.upstream_connections),
        (
            "leveret_upstream_own_connections",
            "Of those, the ones that one client has alone.",
            metrics.own_connections,
        ),
        ("leveret_upstream_channels", "Upstream channels in use.", metrics.upstream_channels),
        ("leveret_pool_clients", "Clients with an open session.", metrics.clients),
    ] {
        out.gauge(name, help, value as u64);
    }
    for (name, help, value) in [
        ("leveret_upstream_handshakes_total", "Handshakes begun with an upstream.", metrics.handshakes),
        (
            "leveret_upstream_handshakes_avoided_total",
            "Logins answered without a handshake.",
            metrics.handshakes_avoided,
        ),
        ("leveret_upstream_connect_failures_total", "Failed attempts to connect.", metrics.connect_failures),
        (
            "leveret_upstream_connections_lost_total",
            "Upstream connections that were lost.",
            metrics.connections_lost,
        ),
        ("leveret_upstream_sent_bytes_total", "Octets sent to upstreams.", metrics.octets_to_upstreams),
        (
            "leveret_upstream_received_bytes_total",
            "Octets received from upstreams.",
            metrics.octets_from_upstreams,
        ),
        (
            "leveret_upstream_received_frames_total",
            "Frames received from upstreams.",
            metrics.frames_from_upstreams,
        ),
    ] {
        out.counter(name, help, value);
    }
}
