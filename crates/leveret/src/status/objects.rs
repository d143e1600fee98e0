//! Queues, connections and channels, summed up or one by one. Each object is read separately, and lists of them
//! are copied in parts, so that no lock is held for the length of a scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use admin::{Detail, Families, MetricKind, MetricsWriter};
use broker::{Broker, QueueView, VirtualHost};
use server::{ChannelStatus, OpenConnection, Server};
use sync::pace::pace;

/// Bindings visited per lock acquisition: well below a millisecond.
const BINDINGS_AT_ONCE: usize = 1000;

/// Nanoseconds for looking at a queue, or at a binding.
const INSPECTION_COST: u32 = 100;

/// Writes the sums over all queues and connections.
pub(super) fn write_together(server: &Server, broker: Option<&Broker>, out: &mut MetricsWriter) {
    write_protocols(server, out);
    let received = server.metrics().bytes_received.get();
    out.counter("rabbitmq_connection_incoming_bytes_total", "Bytes received from clients.", received);
    let Some(broker) = broker else { return };
    let mut sum = QueueView::default();
    for vhost in broker.vhosts() {
        for queue in vhost.all_queues() {
            pace(INSPECTION_COST);
            let queue = queue.view();
            sum.ready += queue.ready;
            sum.unacknowledged += queue.unacknowledged;
            sum.ready_bytes += queue.ready_bytes;
            sum.consumers += queue.consumers;
        }
    }
    for family in QUEUE_FAMILIES {
        out.gauge(&format!("rabbitmq_queue_{}", family.name), family.help, (family.value)(&sum));
    }
}

/// Writes the number of open connections by protocol and transport, and figures on the sessions of MQTT and STOMP.
pub(super) fn write_protocols(server: &Server, out: &mut MetricsWriter) {
    let mut counts: BTreeMap<(String, &str), u64> = BTreeMap::new();
    let mut subscriptions = BTreeMap::from([("mqtt".to_owned(), 0), ("stomp".to_owned(), 0)]);
    let mut persistent = 0_u64;
    for connection in server.open_connections() {
        if let Some(session) = connection.session() {
            *subscriptions.entry(protocol(&connection)).or_default() += u64::from(session.subscriptions());
            persistent += u64::from(session.expiry() > 0);
        }
        *counts.entry((protocol(&connection), transport(&connection))).or_default() += 1;
    }
    let help = "Client connections with an open session, by protocol and transport.";
    let mut family = out.family("leveret_protocol_connections", help, MetricKind::Gauge);
    for ((protocol, transport), count) in counts {
        family.sample(&[("protocol", &protocol), ("transport", transport)], count);
    }
    let help = "Subscriptions of connected MQTT and STOMP clients, by protocol.";
    let mut family = out.family("leveret_protocol_subscriptions", help, MetricKind::Gauge);
    for (protocol, count) in subscriptions {
        family.sample(&[("protocol", &protocol)], count);
    }
    let help = "Connected MQTT clients with a persistent session.";
    out.gauge("leveret_mqtt_persistent_session_clients", help, persistent);
}

/// The protocol without its version, as in the scheme of a URL.
fn protocol(connection: &OpenConnection) -> String {
    connection.protocol().split(' ').next().unwrap_or_default().to_lowercase()
}

fn transport(connection: &OpenConnection) -> &'static str {
    if connection.is_websocket() {
        "websocket"
    } else if connection.is_tls() {
        "tls"
    } else if connection.local().is_none() {
        "unix"
    } else {
        "tcp"
    }
}

/// Writes the wanted objects one by one, under names that begin with `prefix`.
pub(super) fn write_apart(
    server: &Server,
    broker: Option<&Broker>,
    detail: &Detail,
    prefix: &str,
    out: &mut MetricsWriter,
) {
    let of_connections = [Families::Connections, Families::ConnectionBytes, Families::Channels];
    if detail.wants(&of_connections) {
        let connections = server.open_connections();
        let wanted = connections.iter().filter(|connection| detail.wants_vhost(connection.vhost()));
        write_connections(&wanted.collect::<Vec<_>>(), detail, prefix, out);
    }
    let Some(broker) = broker else { return };
    let families: Vec<_> = QUEUE_FAMILIES.iter().filter(|family| detail.wants(family.part_of)).collect();
    if families.is_empty() {
        return;
    }
    let names: Vec<_> = families.iter().map(|family| format!("{prefix}_queue_{}", family.name)).collect();
    let named: Vec<_> = std::iter::zip(&names, &families)
        .map(|(name, family)| (name.as_str(), family.help, MetricKind::Gauge))
        .collect();
    let mut samples = out.families(&named);
    for vhost in broker.vhosts().into_iter().filter(|vhost| detail.wants_vhost(vhost.name())) {
        for queue in vhost.all_queues() {
            pace(INSPECTION_COST);
            let view = queue.view();
            let labels = [("vhost", vhost.name()), ("queue", &**queue.name())];
            samples.object(&labels, families.iter().map(|family| (family.value)(&view)));
        }
    }
}

/// A family with a value for each queue, or for all queues together.
struct QueueFamily {
    name: &'static str,
    help: &'static str,
    part_of: &'static [Families],
    value: fn(&QueueView) -> u64,
}

const QUEUE_FAMILIES: [QueueFamily; 5] = [
    QueueFamily {
        name: "messages_ready",
        help: "Messages ready to be delivered to consumers.",
        part_of: &[Families::QueueMessages],
        value: |queue| queue.ready,
    },
    QueueFamily {
        name: "messages_unacked",
        help: "Messages delivered to consumers but not yet acknowledged.",
        part_of: &[Families::QueueMessages],
        value: |queue| queue.unacknowledged,
    },
    QueueFamily {
        name: "messages",
        help: "Sum of ready and unacknowledged messages.",
        part_of: &[Families::QueueMessages],
        value: |queue| queue.ready + queue.unacknowledged,
    },
    QueueFamily {
        name: "consumers",
        help: "Consumers on a queue.",
        part_of: &[Families::Queues, Families::QueueConsumers],
        value: |queue| queue.consumers,
    },
    QueueFamily {
        name: "messages_ready_bytes",
        help: "Bytes of the bodies of ready messages.",
        part_of: &[Families::Queues],
        value: |queue| queue.ready_bytes,
    },
];

fn write_connections(
    connections: &[&Arc<OpenConnection>],
    detail: &Detail,
    prefix: &str,
    out: &mut MetricsWriter,
) {
    let mut family = |name: &str, help: &str, kind, value: fn(&OpenConnection) -> u64| {
        let name = format!("{prefix}_connection_{name}");
        let mut family = out.family(&name, help, kind);
        for connection in connections {
            let id = connection.id().to_string();
            let peer = connection.peer().to_string();
            let labels = [
                ("connection", id.as_str()),
                ("peer", &peer),
                ("user", connection.user()),
                ("vhost", connection.vhost()),
            ];
            family.sample(&labels, value(connection));
        }
    };
    if detail.wants(&[Families::ConnectionBytes]) {
        let received = OpenConnection::received;
        family("incoming_bytes_total", "Bytes received from a client.", MetricKind::Counter, received);
        family("outgoing_bytes_total", "Bytes sent to a client.", MetricKind::Counter, OpenConnection::sent);
    }
    if detail.wants(&[Families::Connections]) {
        family("channels", "Channels open on a connection.", MetricKind::Gauge, |connection| {
            connection.channel_count() as u64
        });
    }
    if detail.wants(&[Families::Channels]) {
        write_channels(connections, prefix, out);
    }
}

fn write_channels(connections: &[&Arc<OpenConnection>], prefix: &str, out: &mut MetricsWriter) {
    let channels: Vec<_> =
        connections.iter().map(|connection| (connection.id().to_string(), connection.channels())).collect();
    let mut family = |name: &str, help: &str, value: fn(&ChannelStatus) -> u64| {
        let name = format!("{prefix}_{name}");
        let mut family = out.family(&name, help, MetricKind::Gauge);
        for (connection, channels) in &channels {
            for channel in channels {
                let number = channel.number.to_string();
                family.sample(&[("connection", connection), ("channel", &number)], value(channel));
            }
        }
    };
    family("channel_consumers", "Consumers on a channel.", |channel| channel.consumers as u64);
    family("channel_messages_unacked", "Messages on a channel not yet acknowledged.", |channel| {
        channel.unacknowledged as u64
    });
    family(
        "channel_messages_unconfirmed",
        "Messages published on a channel in confirm mode whose confirm has not been sent yet.",
        |channel| channel.unconfirmed,
    );
    family(
        "consumer_prefetch",
        "Prefetch limit in messages of each new consumer on a channel; 0 means no limit.",
        |channel| u64::from(channel.prefetch),
    );
    family("channel_prefetch", "Prefetch limit of a channel in messages; 0 means no limit.", |channel| {
        u64::from(channel.global_prefetch)
    });
}

/// Writes virtual hosts and exchanges, under RabbitMQ's names for objects of a cluster.
pub(super) fn write_names(broker: Option<&Broker>, detail: &Detail, out: &mut MetricsWriter) {
    let Some(broker) = broker else { return };
    let vhosts: Vec<_> =
        broker.vhosts().into_iter().filter(|vhost| detail.wants_vhost(vhost.name())).collect();
    if detail.wants(&[Families::VirtualHosts]) {
        let help = "1 if the virtual host is running.";
        let mut family = out.family("rabbitmq_cluster_vhost_status", help, MetricKind::Gauge);
        for vhost in &vhosts {
            family.sample(&[("vhost", vhost.name())], 1_u64);
        }
    }
    if detail.wants(&[Families::Exchanges]) {
        let name = "rabbitmq_cluster_exchange_name";
        write_exchanges(&vhosts, name, "Exchanges declared; the value is always 1.", out, |_| {
            Box::new(|_| 1)
        });
    }
    if detail.wants(&[Families::ExchangeBindings]) {
        let name = "rabbitmq_cluster_exchange_bindings";
        write_exchanges(&vhosts, name, "Bindings whose source is the exchange.", out, |vhost| {
            let counts = binding_counts(vhost);
            Box::new(move |exchange| counts.get(exchange).copied().unwrap_or(0))
        });
    }
}

/// Returns the value of an exchange by its name.
type OfExchange = Box<dyn Fn(&str) -> u64>;

/// Like RabbitMQ, without the default exchange and internal ones.
fn write_exchanges(
    vhosts: &[Arc<VirtualHost>],
    name: &str,
    help: &str,
    out: &mut MetricsWriter,
    values: impl Fn(&VirtualHost) -> OfExchange,
) {
    let mut family = out.family(name, help, MetricKind::Gauge);
    for vhost in vhosts {
        let value = values(vhost);
        for exchange in vhost.all_exchanges() {
            if exchange.name.is_empty() || exchange.internal {
                continue;
            }
            let labels = [("vhost", vhost.name()), ("exchange", &*exchange.name), ("type", exchange.kind)];
            family.sample(&labels, value(&exchange.name));
        }
    }
}

fn binding_counts(vhost: &VirtualHost) -> BTreeMap<Arc<str>, u64> {
    let (mut counts, mut from) = (BTreeMap::new(), Some(0));
    while let Some(at) = from {
        let (bindings, next) = vhost.bindings_from(at, BINDINGS_AT_ONCE);
        for binding in bindings {
            pace(INSPECTION_COST);
            *counts.entry(binding.source).or_default() += 1;
        }
        from = next;
    }
    counts
}
