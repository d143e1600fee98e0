//! Metrics of the embedded broker, under RabbitMQ's names and our own.

use admin::{Detail, Families, HistogramSeries, MetricKind, MetricsWriter};
use broker::{Broker, MESSAGE_SIZES, Metrics};
use server::{ClientProtocol, PROTOCOLS};

/// The type label: all queue types share one implementation here, and are reported as classic queues.
const QUEUE_TYPE: (&str, &str) = ("queue_type", "rabbit_classic_queue");

pub(super) fn write(broker: &Broker, out: &mut MetricsWriter) {
    let metrics = broker.metrics();
    write_own(metrics, out);
    write_paging(&broker.paging_status(), out);
    out.gauge("rabbitmq_queues", "Queues declared.", metrics.queues.get());
    out.gauge("rabbitmq_consumers", "Consumers currently connected.", metrics.consumers.get());
    out.gauge("rabbitmq_global_consumers", "Consumers currently connected.", metrics.consumers.get());
    write_churn(metrics, "rabbitmq", out);
    write_published(metrics, out);
    write_delivered(metrics, out);
    write_dead_lettered(metrics, out);
}

/// Writes the part of this that belongs to `/metrics/detailed`.
pub(super) fn write_detailed(broker: Option<&Broker>, detail: &Detail, out: &mut MetricsWriter) {
    if let Some(broker) = broker.filter(|_| detail.wants(&[Families::Churn])) {
        write_churn(broker.metrics(), "rabbitmq_detailed", out);
    }
}

/// Writes the confirms requested and sent, and the unroutable messages returned and dropped.
pub(super) fn write_confirms(served: &server::ServerMetrics, broker: &Metrics, out: &mut MetricsWriter) {
    let name = "rabbitmq_global_messages_received_confirm_total";
    let mut family = out.family(name, "Messages received with confirms enabled.", MetricKind::Counter);
    for &ClientProtocol { front_end, metrics_label, .. } in &PROTOCOLS {
        family.sample(&[("protocol", metrics_label)], served.confirms(front_end).wanted.get());
    }
    let name = "rabbitmq_global_messages_confirmed_total";
    let mut family = out.family(name, "Messages confirmed to publishers.", MetricKind::Counter);
    for &ClientProtocol { front_end, metrics_label, .. } in &PROTOCOLS {
        family.sample(&[("protocol", metrics_label)], served.confirms(front_end).given.get());
    }
    // Only AMQP returns unroutable messages.
    let returned = served.messages_returned.get();
    let name = "rabbitmq_global_messages_unroutable_returned_total";
    let help = "Unroutable messages returned to their publishers.";
    out.family(name, help, MetricKind::Counter).sample(&[("protocol", "amqp091")], returned);
    let name = "rabbitmq_global_messages_unroutable_dropped_total";
    let mut family = out.family(name, "Unroutable messages dropped.", MetricKind::Counter);
    for &ClientProtocol { front_end, metrics_label, .. } in &PROTOCOLS {
        family.sample(&[("protocol", metrics_label)], broker.published(front_end).dropped.get());
    }
}

/// Writes the sizes of the messages received, which RabbitMQ reports since 4.1.
pub(super) fn write_sizes(metrics: &Metrics, out: &mut MetricsWriter) {
    let of = |protocol: &ClientProtocol| {
        let sizes = &metrics.published(protocol.front_end).sizes;
        let counts = sizes.counts();
        let buckets = MESSAGE_SIZES.iter().map(|&bound| bound as f64).zip(counts).collect();
        let labels = vec![("protocol", protocol.metrics_label)];
        HistogramSeries { labels, buckets, count: counts.iter().sum(), sum: sizes.bytes() as f64 }
    };
    let series: Vec<HistogramSeries> = PROTOCOLS.iter().map(of).collect();
    out.histogram(
        "rabbitmq_message_size_bytes",
        "Sizes in bytes of messages received from publishers.",
        &series,
    );
}

fn write_own(metrics: &Metrics, out: &mut MetricsWriter) {
    for (name, help, value) in metrics.iter() {
        let (name, kind) = match name {
            "queues" | "exchanges" | "bindings" | "consumers" => {
                (format!("leveret_broker_{name}"), MetricKind::Gauge)
            }
            _ => (format!("leveret_broker_{name}_total"), MetricKind::Counter),
        };
        out.family(&name, help, kind).sample(&[], value);
    }
}

/// Writes how much of the queues is in memory, and how much only on disk.
fn write_paging(status: &broker::PagingStatus, out: &mut MetricsWriter) {
    let help = "Memory in bytes that ready messages take in all queues; unacknowledged ones do not count.";
    out.gauge("leveret_broker_resident_bytes", help, status.resident);
    let help =
        "Memory in bytes of ready messages above which long queues are paged out (memory_paging_watermark).";
    out.gauge("leveret_broker_paging_watermark_bytes", help, status.watermark);
    let help = "Ready messages that are on disk only, in all queues.";
    out.gauge("leveret_broker_paged_messages", help, status.paged_messages);
    let help = "Bytes of the bodies of ready messages that are on disk only, in all queues.";
    out.gauge("leveret_broker_paged_bytes", help, status.paged_bytes);
}

fn write_churn(metrics: &Metrics, prefix: &str, out: &mut MetricsWriter) {
    for (name, help, counter) in [
        ("declared", "Queue declarations, including those of existing queues.", &metrics.queues_declared),
        ("created", "Queues created.", &metrics.queues_created),
        ("deleted", "Queues deleted.", &metrics.queues_deleted),
    ] {
        out.counter(&format!("{prefix}_queues_{name}_total"), help, counter.get());
    }
}

fn write_published(metrics: &Metrics, out: &mut MetricsWriter) {
    let mut family = |name: &str, help: &str, kind, value: &dyn Fn(&broker::Published) -> u64| {
        let mut family = out.family(name, help, kind);
        for &ClientProtocol { front_end, metrics_label, .. } in &PROTOCOLS {
            family.sample(&[("protocol", metrics_label)], value(metrics.published(front_end)));
        }
    };
    let help = "Publishers currently connected: channels, MQTT and STOMP sessions that have published.";
    family("rabbitmq_global_publishers", help, MetricKind::Gauge, &|published| published.publishers.get());
    let name = "rabbitmq_global_messages_received_total";
    family(name, "Messages received from publishers.", MetricKind::Counter, &|published| {
        published.routed.get() + published.unroutable.get()
    });
    let name = "rabbitmq_global_messages_routed_total";
    family(name, "Messages routed to a queue.", MetricKind::Counter, &|published| published.routed.get());
}

/// Not by protocol: queues count deliveries without regard to the consumer's protocol.
fn write_delivered(metrics: &Metrics, out: &mut MetricsWriter) {
    let delivered = metrics.messages_delivered.get();
    let delivered_auto = metrics.messages_delivered_auto_ack.get();
    let got = metrics.messages_got.get();
    let got_auto = metrics.messages_got_auto_ack.get();
    for (name, help, value) in [
        ("delivered_total", "Messages delivered to consumers or fetched with basic.get.", delivered + got),
        (
            "delivered_consume_auto_ack_total",
            "Messages delivered to consumers with automatic acknowledgement.",
            delivered_auto,
        ),
        (
            "delivered_consume_manual_ack_total",
            "Messages delivered to consumers with manual acknowledgement.",
            delivered.saturating_sub(delivered_auto),
        ),
        ("delivered_get_auto_ack_total", "Messages fetched with automatic ack.", got_auto),
        ("delivered_get_manual_ack_total", "Messages fetched with manual ack.", got.saturating_sub(got_auto)),
        ("get_empty_total", "basic.get operations that found an empty queue.", metrics.gets_empty.get()),
        ("redelivered_total", "Messages redelivered to consumers.", metrics.messages_redelivered.get()),
        ("acknowledged_total", "Messages acknowledged by consumers.", metrics.messages_acked.get()),
    ] {
        let name = format!("rabbitmq_global_messages_{name}");
        out.family(&name, help, MetricKind::Counter).sample(&[QUEUE_TYPE], value);
    }
}

fn write_dead_lettered(metrics: &Metrics, out: &mut MetricsWriter) {
    let labels = [QUEUE_TYPE, ("dead_letter_strategy", "at_most_once")];
    for (name, help, counter) in [
        (
            "rejected",
            "Messages dead-lettered because they were rejected.",
            &metrics.messages_dead_lettered_rejected,
        ),
        ("expired", "Messages dead-lettered because they expired.", &metrics.messages_dead_lettered_expired),
        (
            "maxlen",
            "Messages dead-lettered because of a queue length limit.",
            &metrics.messages_dead_lettered_maxlen,
        ),
        (
            "delivery_limit",
            "Messages dead-lettered because they exceeded the delivery limit.",
            &metrics.messages_dead_lettered_delivery_limit,
        ),
    ] {
        let name = format!("rabbitmq_global_messages_dead_lettered_{name}_total");
        out.family(&name, help, MetricKind::Counter).sample(&labels, counter.get());
    }
}
