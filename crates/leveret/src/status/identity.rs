//! The identity of this process, which dashboards join every expression with.

use admin::{MetricKind, MetricsWriter};

use crate::manage::node_name;

/// The cluster's name, as in the server-properties that clients receive.
const CLUSTER: &str = "leveret@localhost";

pub(super) fn write(out: &mut MetricsWriter) {
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
    out.family("rabbitmq_identity_info", "Identity of the node and cluster.", MetricKind::Gauge).sample(
        &[
            ("rabbitmq_node", node.as_str()),
            ("rabbitmq_cluster", CLUSTER),
            ("rabbitmq_cluster_permanent_id", CLUSTER),
        ],
        1_u64,
    );
}
