//! The identity of this process, which dashboards join every expression with.

use admin::{MetricKind, MetricsWriter};

use crate::manage::node_name;

/// The cluster's name, as in the server-properties that clients receive.
const CLUSTER: &str = "leveret@localhost";

/// `endpoint` is the path that is scraped, as RabbitMQ 4 names it.
pub(super) fn write(endpoint: Option<&str>, out: &mut MetricsWriter) {
    let version = env!("CARGO_PKG_VERSION");
    out.family("rabbitmq_build_info", "Version of the running server.", MetricKind::Gauge).sample(
        &[
            ("rabbitmq_version", version),
            ("prometheus_plugin_version", version),
            ("prometheus_client_version", version),
            ("erlang_version", ""),
            ("product_name", "Leveret"),
            ("product_version", version),
        ],
        1_u64,
    );
    let node = node_name();
    let mut labels = vec![
        ("rabbitmq_node", node.as_str()),
        ("rabbitmq_cluster", CLUSTER),
        ("rabbitmq_cluster_permanent_id", CLUSTER),
    ];
    labels.extend(endpoint.map(|endpoint| ("rabbitmq_endpoint", endpoint)));
    let help = "Identity of the node and cluster.";
    out.family("rabbitmq_identity_info", help, MetricKind::Gauge).sample(&labels, 1_u64);
}
