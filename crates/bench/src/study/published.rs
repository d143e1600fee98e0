//! Published figures of other measurements, drawn as dotted lines beside the measured ones.

use crate::metric::{LatencyPoint, Metric};

/// A published figure, measured on another machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    study: &'static str,
    scenario: &'static str,
    metric: Metric,
    /// In the metric's unit.
    pub(crate) value: f64,
    /// The label of its line.
    pub(crate) label: &'static str,
    /// Its conditions and its source.
    source: &'static str,
}

const ALL: [Published; 3] = [
    Published {
        study: "proxy",
        scenario: "no confirm",
        metric: Metric::Latency(LatencyPoint::P50),
        value: 0.010,
        label: "AMQProxy at 50 ms, published",
        source: "AMQProxy's README: one message per connection over TLS, 50 ms away, takes 10 ms on average with it \
                 (https://github.com/cloudamqp/amqproxy)",
    },
    Published {
        study: "proxy",
        scenario: "no confirm",
        metric: Metric::Latency(LatencyPoint::P50),
        value: 0.500,
        label: "without a proxy at 50 ms, published",
        source: "The same without AMQProxy: 500 ms",
    },
    Published {
        study: "stream",
        scenario: "stream",
        metric: Metric::Rate,
        value: 1_000_000.0,
        label: "LavinMQ, published",
        source: "LavinMQ's documentation: a throughput of about 1,000,000 messages a second \
                 (https://www.lavinmq.com/documentation/advanced-tutorials)",
    },
];

/// The published figures that belong to a chart.
pub(crate) fn of_chart(study: &str, scenario: &str, metric: Metric) -> Vec<Published> {
    let fits = |published: &&Published| {
        (published.study, published.scenario, published.metric) == (study, scenario, metric)
    };
    ALL.iter().filter(fits).copied().collect()
}

/// A note for each published figure of a study, with its source.
pub(crate) fn notes(study: &str) -> Vec<String> {
    let note = |published: &Published| {
        format!("In the plots, dotted, \"{}\": {}.", published.label, published.source)
    };
    ALL.iter().filter(|published| published.study == study).map(note).collect()
}
