//! What the process tells about itself over HTTP.

mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admin::{Kind, MetricsWriter, Readiness, Source, WebSocketPorts};
use proxy::Pool;
use server::{Alarms, Door, Resource, Server};

use crate::alarms::Levels;

/// Readiness and metrics of the running server.
pub(crate) struct Status {
    server: Server,
    door: Door,
    websocket_ports: WebSocketPorts,
    /// Of the embedded broker.
    levels: Option<Arc<Levels>>,
    draining: AtomicBool,
}

impl Status {
    pub(crate) fn new(
        server: Server,
        door: Door,
        websocket_ports: WebSocketPorts,
        levels: Option<Arc<Levels>>,
    ) -> Self {
        Self { server, door, websocket_ports, levels, draining: AtomicBool::new(false) }
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
            Door::Broker(broker) => match broker.store().and_then(|kept| store::impairment(kept)) {
                Some(impairment) => Readiness::Impaired(impairment),
                None => Readiness::Ready,
            },
            Door::Upstream(_) => Readiness::Ready,
        }
    }

    fn metrics(&self, out: &mut MetricsWriter) {
        let draining = u64::from(self.draining.load(Ordering::Relaxed));
        out.gauge("leveret_draining", "Whether this process is shutting down.", draining);
        write_server(&self.server, out);
        match &self.door {
            Door::Broker(broker) => {
                write_broker(broker.metrics(), out);
                write_paging(&broker.held(), out);
                if let Some(kept) = broker.store() {
                    store::write(kept, out);
                }
            }
            Door::Upstream(pool) => write_pool(pool, out),
        }
        if let Some(levels) = &self.levels {
            write_alarms(levels, self.server.alarms(), out);
        }
    }

    fn websocket_ports(&self) -> WebSocketPorts {
        self.websocket_ports
    }
}

fn write_server(server: &Server, out: &mut MetricsWriter) {
    let metrics = server.metrics();
    let help =
        "Times that something exceeded a limit, and was refused, held up, or (limits_mode = alarm) let be.";
    let mut exceeded = out.family("leveret_limit_exceeded_total", help, Kind::Counter);
    for (limit, count) in server.exceeded().iter() {
        exceeded.sample(&[("limit", limit)], count);
    }
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

/// What of the queues is in memory, and what on disk only.
fn write_paging(held: &broker::Held, out: &mut MetricsWriter) {
    let help = "Memory that ready messages take.";
    out.gauge("leveret_broker_resident_bytes", help, held.resident);
    let help = "Memory above which ready messages of long queues leave it for the disk.";
    out.gauge("leveret_broker_paging_watermark_bytes", help, held.watermark);
    let help = "Ready messages that are on disk only.";
    out.gauge("leveret_broker_paged_messages", help, held.paged_messages);
    let help = "Octets of the bodies of ready messages that are on disk only.";
    out.gauge("leveret_broker_paged_bytes", help, held.paged_bytes);
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

/// The alarms under RabbitMQ's names and our own.
fn write_alarms(levels: &Levels, alarms: &Alarms, out: &mut MetricsWriter) {
    let memory = u64::from(alarms.is_raised(Resource::Memory));
    let disk = u64::from(alarms.is_raised(Resource::Disk));
    out.family("leveret_alarm", "Whether publishers are blocked for want of this.", Kind::Gauge)
        .sample(&[("kind", "memory")], memory)
        .sample(&[("kind", "disk")], disk);
    out.gauge("rabbitmq_alarms_memory_used_watermark", "Whether the memory alarm stands.", memory);
    out.gauge("rabbitmq_alarms_free_disk_space_watermark", "Whether the disk alarm stands.", disk);
    let blocked = alarms.blocked_connections() as u64;
    out.gauge("leveret_blocked_connections", "Client connections that an alarm blocks.", blocked);
    if let Some(limit) = levels.memory_limit {
        let help = "Memory above which publishers are blocked.";
        out.gauge("rabbitmq_resident_memory_limit_bytes", help, limit);
    }
    if let Some(limit) = levels.disk_limit {
        let help = "Free space on the data folder's file system.";
        out.gauge("rabbitmq_disk_space_available_bytes", help, levels.disk_free());
        let help = "Free space below which publishers are blocked.";
        out.gauge("rabbitmq_disk_space_available_limit_bytes", help, limit);
    }
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
        (
            "leveret_upstream_up",
            "Whether the last attempt to reach an upstream succeeded.",
            usize::from(pool.is_reachable()),
        ),
        (
            "leveret_upstream_blocked_connections",
            "Upstream connections that their broker has blocked.",
            metrics.blocked_connections,
        ),
        ("leveret_upstream_channels", "Upstream channels in use.", metrics.upstream_channels),
        (
            "leveret_upstream_resting_channels",
            "Upstream channels that are open, clean, and wait for a client.",
            metrics.resting_channels,
        ),
        ("leveret_pool_clients", "Clients with an open session.", metrics.clients),
        (
            "leveret_upstream_opening_connections",
            "Upstream connections that are being opened.",
            metrics.opening_connections,
        ),
        ("leveret_upstream_addresses", "Upstream addresses that are known.", metrics.addresses),
        (
            "leveret_upstream_addresses_down",
            "Of those, the ones that did not answer last.",
            metrics.addresses_down,
        ),
        (
            "leveret_upstream_replay_kept_bytes",
            "Octets of clients' frames that are kept until an upstream answers for them.",
            metrics.octets_kept,
        ),
        (
            "leveret_upstream_staged_bytes",
            "Octets of messages that clients have not sent completely, held until they are.",
            metrics.octets_staged,
        ),
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
        ("leveret_upstream_leases_total", "Upstream channels leased to clients' channels.", metrics.leases),
        (
            "leveret_upstream_leases_reused_total",
            "Of those, the ones that were open already.",
            metrics.leases_reused,
        ),
        (
            "leveret_upstream_round_trips_saved_total",
            "Round trips to an upstream that clients were spared.",
            metrics.round_trips_saved,
        ),
        (
            "leveret_upstream_refusals_repeated_total",
            "Logins refused without asking again, for an upstream had just refused them.",
            metrics.refusals_repeated,
        ),
        (
            "leveret_upstream_sent_messages_total",
            "Messages sent to upstreams.",
            metrics.messages_to_upstreams,
        ),
        (
            "leveret_upstream_received_messages_total",
            "Messages received from upstreams, returned ones included.",
            metrics.messages_from_upstreams,
        ),
        ("leveret_upstream_connect_failures_total", "Failed attempts to connect.", metrics.connect_failures),
        (
            "leveret_upstream_connections_lost_total",
            "Upstream connections that were lost.",
            metrics.connections_lost,
        ),
        (
            "leveret_upstream_replayed_messages_total",
            "Messages sent again after their upstream connection was lost.",
            metrics.messages_replayed,
        ),
        (
            "leveret_upstream_recovered_channels_total",
            "Channels that went on elsewhere after their upstream connection was lost.",
            metrics.channels_recovered,
        ),
        (
            "leveret_upstream_moved_consumers_total",
            "Channels whose consumers were too slow for a shared upstream connection and got one of their own.",
            metrics.consumers_moved,
        ),
        (
            "leveret_upstream_unconfirmed_channels_total",
            "Channels that had published without confirms when their upstream connection was lost: messages may be lost.",
            metrics.channels_unconfirmed,
        ),
        ("leveret_upstream_refused_logins_total", "Logins that an upstream refused.", metrics.logins_refused),
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
    let mut family = out.family("leveret_upstream_address_up", help, Kind::Gauge);
    for (address, is_up, _) in &addresses {
        family.sample(&[("address", address)], u64::from(*is_up));
    }
    let help = "Open connections to an upstream address.";
    let mut family = out.family("leveret_upstream_address_connections", help, Kind::Gauge);
    for (address, _, connections) in &addresses {
        family.sample(&[("address", address)], *connections as u64);
    }
}
