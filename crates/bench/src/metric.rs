//! The figures that a report holds, by the names that expectations use.

use std::fmt;

/// A figure of one system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// End-to-end messages per second: consumed; without consumers, confirmed or else published.
    Rate,
    /// Messages published per second.
    Publish,
    /// Messages consumed per second.
    Consume,
    /// Messages per second that reached the broker behind a spool.
    Forward,
    /// End-to-end latency in seconds.
    Latency(LatencyPoint),
    /// Publish-to-confirm latency in seconds.
    ConfirmLatency(LatencyPoint),
    /// Messages that met this fate, over all rounds.
    Count(Fate),
    /// Cores that the measured processes used: 1.5 is one and a half.
    Cpu,
    /// CPU time of the measured processes for each message, in seconds.
    CpuPerMessage,
    /// CPU time of the broker behind the measured processes for each message, in seconds.
    BrokerCpuPerMessage,
    /// Largest resident memory of the measured processes, in bytes.
    Rss,
    /// Growth of resident memory per connection, in bytes.
    RssEach,
    /// The exponent with which a cost grows with the number of queues.
    GrowthWithQueues,
    /// The exponent with which a cost grows with the number of bindings of each queue.
    GrowthWithBindings,
}

/// A point of a latency distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LatencyPoint {
    Min,
    Mean,
    P50,
    P90,
    P99,
    P99_9,
    P99_99,
    Max,
}

impl LatencyPoint {
    /// The points that tables, charts and summaries show.
    pub(crate) const REPORTED: [Self; 6] =
        [Self::P50, Self::P90, Self::P99, Self::P99_9, Self::P99_99, Self::Max];
}

/// A fate of messages that is an error, or that the workload has caused on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Published (and not returned or nacked), never delivered.
    Lost,
    /// Delivered again without the redelivered flag.
    Duplicated,
    /// Delivered after a later one of the same producer, to the same consumer.
    Reordered,
    /// Refused by basic.nack.
    Nacked,
    /// Sent back by basic.return.
    Returned,
    /// Never confirmed, though confirms were asked for.
    Unconfirmed,
    /// Confirmed although no confirm was pending: confirmed before, or never sent.
    OddConfirms,
    /// Due at a fixed rate, and not sent before the end.
    Unsent,
}

const POINTS: [(&str, LatencyPoint); 8] = [
    ("min", LatencyPoint::Min),
    ("mean", LatencyPoint::Mean),
    ("p50", LatencyPoint::P50),
    ("p90", LatencyPoint::P90),
    ("p99", LatencyPoint::P99),
    ("p99.9", LatencyPoint::P99_9),
    ("p99.99", LatencyPoint::P99_99),
    ("max", LatencyPoint::Max),
];

const OTHERS: [(&str, Metric); 19] = [
    ("rate", Metric::Rate),
    ("publish", Metric::Publish),
    ("consume", Metric::Consume),
    ("forward", Metric::Forward),
    ("lost", Metric::Count(Fate::Lost)),
    ("duplicated", Metric::Count(Fate::Duplicated)),
    ("reordered", Metric::Count(Fate::Reordered)),
    ("nacked", Metric::Count(Fate::Nacked)),
    ("returned", Metric::Count(Fate::Returned)),
    ("unconfirmed", Metric::Count(Fate::Unconfirmed)),
    ("odd_confirms", Metric::Count(Fate::OddConfirms)),
    ("unsent", Metric::Count(Fate::Unsent)),
    ("cpu", Metric::Cpu),
    ("cpu_per_message", Metric::CpuPerMessage),
    ("broker_cpu_per_message", Metric::BrokerCpuPerMessage),
    ("rss", Metric::Rss),
    ("rss_each", Metric::RssEach),
    ("growth", Metric::GrowthWithQueues),
    ("growth_with_bindings", Metric::GrowthWithBindings),
];

impl Metric {
    /// The metric with this name: `rate`, `p99`, `confirm.p99.9`, `lost`, and so on.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let point = |name| POINTS.iter().find(|(known, _)| *known == name).map(|&(_, point)| point);
        if let Some(name) = name.strip_prefix("confirm.") {
            return point(name).map(Self::ConfirmLatency);
        }
        let other = OTHERS.iter().find(|(known, _)| *known == name).map(|&(_, metric)| metric);
        other.or_else(|| point(name).map(Self::Latency))
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        let points = POINTS.iter().map(|(name, _)| (*name).to_owned());
        let confirms = POINTS.iter().map(|(name, _)| format!("confirm.{name}"));
        let others = OTHERS.iter().map(|(name, _)| (*name).to_owned());
        others.chain(points).chain(confirms).collect::<Vec<_>>().join(", ")
    }

    /// Formats a value of this metric with its unit.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Rate | Self::Publish | Self::Consume | Self::Forward if value < 100.0 => {
                format!("{value:.1}/s")
            }
            Self::Rate | Self::Publish | Self::Consume | Self::Forward => format!("{}/s", grouped(value)),
            Self::Latency(_) | Self::ConfirmLatency(_) | Self::CpuPerMessage | Self::BrokerCpuPerMessage => {
                duration(value)
            }
            Self::Count(_) => grouped(value),
            Self::Cpu => format!("{value:.2} cores"),
            Self::Rss => bytes(value),
            Self::RssEach => format!("{:.1} KiB", value / 1024.0),
            Self::GrowthWithQueues | Self::GrowthWithBindings => format!("{value:.2}"),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let point = |wanted| POINTS.iter().find(|(_, point)| *point == wanted).map_or("", |(name, _)| name);
        match *self {
            Self::Latency(wanted) => f.write_str(point(wanted)),
            Self::ConfirmLatency(wanted) => write!(f, "confirm.{}", point(wanted)),
            other => f.write_str(OTHERS.iter().find(|(_, m)| *m == other).map_or("", |(name, _)| name)),
        }
    }
}

/// Rounded to an integer, with commas between thousands.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value <= -0.5 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats seconds in the most readable unit, with three digits.
pub(crate) fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

/// Formats bytes in MiB.
pub(crate) fn bytes(value: f64) -> String {
    format!("{:.1} MiB", value / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_parsed_from_its_displayed_name() {
        let points = POINTS.iter().flat_map(|&(_, p)| [Metric::Latency(p), Metric::ConfirmLatency(p)]);
        for metric in points.chain(OTHERS.iter().map(|&(_, metric)| metric)) {
            assert_eq!(Metric::from_name(&metric.to_string()), Some(metric));
        }
        assert_eq!(Metric::from_name("p98"), None);
    }

    #[test]
    fn values_are_shown_with_units() {
        assert_eq!(Metric::Rate.show(1_234_567.4), "1,234,567/s");
        assert_eq!(Metric::Rate.show(3.21), "3.2/s");
        assert_eq!(Metric::Latency(LatencyPoint::P50).show(0.001_234), "1.23 ms");
        assert_eq!(Metric::Latency(LatencyPoint::P50).show(0.000_123), "123 µs");
        assert_eq!(Metric::Rss.show(3.0 * 1_048_576.0), "3.0 MiB");
        assert_eq!(grouped(-1000.0), "-1,000");
        assert_eq!(grouped(-0.2), "0");
    }
}
