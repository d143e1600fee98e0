//! Metrics of the pool and its upstreams.

use admin::{HistogramSeries, MetricKind, MetricsWriter};
use proxy::Pool;

pub(super) fn write(pool: &Pool, out: &mut MetricsWriter) {
    let metrics = pool.metrics();
    let help = "1 if the last attempt to reach an upstream succeeded, else 0.";
    out.gauge("leveret_upstream_up", help, u64::from(pool.is_reachable()));
    for (name, help, value) in metrics.gauges() {
        out.gauge(name, help, value);
    }
    for (name, help, value) in metrics.counters() {
        out.counter(name, help, value);
    }
    write_addresses(pool, out);
    let proxy::Durations { buckets, count, sum } = metrics.queueing;
    let buckets = proxy::BOUNDS.into_iter().zip(buckets).collect();
    let series = HistogramSeries { labels: Vec::new(), buckets, count, sum: sum.as_secs_f64() };
    let help =
        "Time in seconds that sampled client data waited until it was written to an upstream connection.";
    out.histogram("leveret_upstream_queueing_seconds", help, &[series]);
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
