//! Which metrics a scraper wants.

use percent_encoding::percent_decode_str;

/// Which metrics a scraper wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedMetrics {
    /// Everything added up (`/metrics`).
    Together,
    /// Everything, with queues, connections and channels one by one (`/metrics/per-object`).
    Apart,
    /// Some families, one by one (`/metrics/detailed`).
    Detailed(Detail),
}

/// A selection of families and virtual hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detail {
    families: Vec<Families>,
    /// Empty for all virtual hosts.
    vhosts: Vec<String>,
}

/// The groups of families that can be asked for, each by RabbitMQ's name
/// (<https://www.rabbitmq.com/docs/prometheus#detailed-endpoint>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// `connection_churn_metrics`: how many connections, channels and queues came and went.
    Churn,
    /// `node_metrics`: limits of the process.
    Node,
    /// `node_coarse_metrics`: resource usage of the process.
    NodeCoarse,
    /// `auth_attempt_metrics`: logins.
    Logins,
    /// `connection_coarse_metrics`: bytes of each connection.
    ConnectionBytes,
    /// `connection_metrics`: channels of each connection.
    Connections,
    /// `channel_metrics`: consumers and deliveries of each channel.
    Channels,
    /// `queue_coarse_metrics`: messages of each queue.
    QueueMessages,
    /// `queue_metrics`: all other metrics of each queue.
    Queues,
    /// `queue_consumer_count`: only the number of consumers of each queue.
    QueueConsumers,
    /// `vhost_status`: the virtual hosts.
    VirtualHosts,
    /// `exchange_names`: the exchanges.
    Exchanges,
    /// `exchange_bindings`: the number of bindings from each exchange. Walks all bindings.
    ExchangeBindings,
}

const FAMILIES: [(&str, Families); 13] = [
    ("connection_churn_metrics", Families::Churn),
    ("node_metrics", Families::Node),
    ("node_coarse_metrics", Families::NodeCoarse),
    ("auth_attempt_metrics", Families::Logins),
    ("connection_coarse_metrics", Families::ConnectionBytes),
    ("connection_metrics", Families::Connections),
    ("channel_metrics", Families::Channels),
    ("queue_coarse_metrics", Families::QueueMessages),
    ("queue_metrics", Families::Queues),
    ("queue_consumer_count", Families::QueueConsumers),
    ("vhost_status", Families::VirtualHosts),
    ("exchange_names", Families::Exchanges),
    ("exchange_bindings", Families::ExchangeBindings),
];

/// The families in `/metrics/per-object`.
const PER_OBJECT: [Families; 5] = [
    Families::ConnectionBytes,
    Families::Connections,
    Families::Channels,
    Families::QueueMessages,
    Families::Queues,
];

impl Detail {
    /// Parses `family=F&vhost=V`; both parameters may be repeated. Unknown families are ignored, as in
    /// RabbitMQ: scrapers ask all brokers for the same families.
    pub(crate) fn of_query(query: &str) -> Self {
        let mut detail = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy();
            match key {
                "vhost" => detail.vhosts.push(value.into_owned()),
                "family" => {
                    let found = FAMILIES.iter().find(|(name, _)| *name == value);
                    detail.families.extend(found.map(|(_, families)| *families));
                }
                _ => {}
            }
        }
        detail
    }

    /// The families of `/metrics/per-object`, of all virtual hosts.
    #[must_use]
    pub fn per_object() -> Self {
        Self { families: PER_OBJECT.to_vec(), vhosts: Vec::new() }
    }

    /// Whether any of these families is wanted.
    #[must_use]
    pub fn wants(&self, any: &[Families]) -> bool {
        self.families.iter().any(|wanted| any.contains(wanted))
    }

    /// Whether the objects in this virtual host are wanted.
    #[must_use]
    pub fn wants_vhost(&self, name: &str) -> bool {
        self.vhosts.is_empty() || self.vhosts.iter().any(|wanted| wanted == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_virtual_hosts_are_asked_for_as_often_as_wanted() {
        let detail = Detail::of_query("family=queue_coarse_metrics&vhost=%2F&vhost=a+b&family=vhost_status");
        assert!(detail.wants(&[Families::QueueMessages]) && detail.wants(&[Families::VirtualHosts]));
        assert!(!detail.wants(&[Families::Queues, Families::Channels]));
        assert!(detail.wants_vhost("/") && detail.wants_vhost("a b") && !detail.wants_vhost("other"));
    }

    #[test]
    fn without_a_virtual_host_all_are_wanted_and_an_unknown_family_is_nothing() {
        let detail = Detail::of_query("family=nonsense&family=queue_metrics&x&y=1");
        assert!(detail.wants_vhost("any"));
        assert_eq!(detail, Detail { families: vec![Families::Queues], vhosts: Vec::new() });
        assert_eq!(Detail::of_query(""), Detail::default());
    }
}
