//! The results of a run, for people (tables) and programs (JSON).

use serde::{Deserialize, Serialize};

use crate::expect::{MetricSource, Verdict};
use crate::latency::Percentiles;
use crate::machine::Machine;
use crate::metric::{Fate, LatencyPoint, Metric};
use crate::stats::Summary;
use crate::stream::workload::Workload;
use crate::study::report::Measured;

/// All results of one run of `bench stream`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StreamReport {
    /// The machine that it ran on.
    pub(crate) machine: Machine,
    /// The workload of each round.
    pub(crate) workload: Workload,
    /// In the order given; ratios are relative to the first.
    pub(crate) systems: Vec<StreamSystem>,
    /// Notes that a reader needs to interpret the figures.
    pub(crate) notes: Vec<String>,
    /// The outcomes of the expectations.
    pub(crate) expectations: Vec<Verdict>,
}

/// One system under test.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StreamSystem {
    /// Its name on the command line.
    pub(crate) name: String,
    /// Its URI, without the password.
    pub(crate) uri: String,
    /// Product, version and platform, as the server announces them.
    pub(crate) server: String,
    /// Process ids that were sampled.
    pub(crate) pids: Vec<u32>,
    /// Each round, in order.
    pub(crate) rounds: Vec<Round>,
    /// The main figures over all rounds.
    pub(crate) summary: Vec<Measured>,
}

/// One round on one system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Length of the measured part, in seconds.
    pub(crate) seconds: f64,
    /// Messages per second written to sockets.
    pub(crate) publish_rate: f64,
    /// Messages per second delivered; `None` without consumers.
    pub(crate) consume_rate: Option<f64>,
    /// Messages per second confirmed; `None` without confirms.
    pub(crate) confirm_rate: Option<f64>,
    /// Latency from the time a message was sent (at a fixed rate: was due) until it was received.
    pub(crate) latency: Option<Percentiles>,
    /// Latency from that time until it was confirmed.
    pub(crate) confirm_latency: Option<Percentiles>,
    /// Counts over the whole round, including the warm-up.
    pub(crate) counts: Counts,
    /// The measured processes, if any were named.
    pub(crate) processes: Option<ProcessUsage>,
    /// The usage of the load generator itself.
    pub(crate) generator: GeneratorUsage,
    /// End-to-end messages per second, in parts of equal length of the measured time; empty in a round that
    /// is counted in messages.
    pub(crate) timeline: Vec<f64>,
}

/// The fates of a round's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Messages written to sockets.
    pub(crate) published: u64,
    /// Deliveries, repeated ones included.
    pub(crate) consumed: u64,
    /// Confirmed by basic.ack.
    pub(crate) confirmed: u64,
    /// Refused by basic.nack.
    pub(crate) nacked: u64,
    /// Sent back by basic.return.
    pub(crate) returned: u64,
    /// Waiting for a confirm when the round ended.
    pub(crate) unconfirmed: u64,
    /// Confirms of messages that were not waiting for one.
    pub(crate) odd_confirms: u64,
    /// Published, neither nacked nor returned, but never delivered.
    pub(crate) lost: u64,
    /// Deliveries beyond each message's first.
    pub(crate) duplicated: u64,
    /// First deliveries after a later message of the same producer, at the same consumer.
    pub(crate) reordered: u64,
    /// Deliveries with the redelivered flag.
    pub(crate) redelivered: u64,
    /// Deliveries of messages that this round did not send.
    pub(crate) foreign: u64,
    /// Times that connection.blocked was received.
    pub(crate) blocked: u64,
    /// At a fixed rate: due before the end of the measured time, and not sent; 0 in results of earlier versions.
    #[serde(default)]
    pub(crate) unsent: u64,
    /// Whether a message may have reached several queues: then `duplicated` is unknown, and a message that arrived from one of
    /// them is not lost.
    #[serde(default)]
    pub(crate) copied: bool,
}

/// CPU and memory of the measured processes with their children.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessUsage {
    /// Cores in use, user and system; `None` if unknown.
    pub(crate) cpu_cores: Option<f64>,
    /// CPU time per message consumed (without consumers: published), in seconds.
    pub(crate) cpu_seconds_per_message: Option<f64>,
    /// Largest resident memory seen, in bytes.
    pub(crate) rss_bytes: Option<u64>,
}

/// CPU use of the load generator, which shows whether it was the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct GeneratorUsage {
    /// Cores in use, user and system.
    pub(crate) cpu_cores: f64,
    /// Share of one core that its busiest thread used, 0 to 1.
    pub(crate) busiest_thread: f64,
    /// Cores of the machine that idled; `None` when unknown.
    pub(crate) idle_cores: Option<f64>,
}

impl GeneratorUsage {
    /// Whether a thread of the generator was saturated: the system under test might be faster than measured.
    pub(crate) fn is_saturated(&self) -> bool {
        self.busiest_thread > SATURATED
    }

    /// Whether all cores of the machine were busy, so that generator and system competed for them.
    pub(crate) fn machine_is_full(&self, cores: usize) -> bool {
        self.idle_cores.is_some_and(|idle| idle < cores as f64 * (1.0 - FULL))
    }
}

/// A thread that is busy for this share of the time is a bottleneck; the rest is measuring error.
const SATURATED: f64 = 0.9;
/// A machine whose cores are busy for this share of the time has no capacity left.
const FULL: f64 = 0.95;

impl Round {
    /// The main rate: consumed; without consumers, confirmed or else published.
    pub(crate) fn end_to_end_rate(&self) -> f64 {
        self.consume_rate.or(self.confirm_rate).unwrap_or(self.publish_rate)
    }

    /// Cores that neither the measured processes nor the generator used; `None` when either is unknown.
    pub(crate) fn cores_used_by_others(&self, cores: usize) -> Option<f64> {
        let known = self.processes?.cpu_cores? + self.generator.cpu_cores + self.generator.idle_cores?;
        Some((cores as f64 - known).max(0.0))
    }

    fn figure(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Rate => Some(self.end_to_end_rate()),
            Metric::Publish => Some(self.publish_rate),
            Metric::Consume => self.consume_rate,
            Metric::Latency(point) => self.latency.map(|latency| at(&latency, point)),
            Metric::ConfirmLatency(point) => self.confirm_latency.map(|latency| at(&latency, point)),
            Metric::Count(fate) => self.counts.of(fate).map(|count| count as f64),
            Metric::Cpu => self.processes?.cpu_cores,
            Metric::CpuPerMessage => self.processes?.cpu_seconds_per_message,
            // All sampled processes belong to the system.
            Metric::BrokerCpuPerMessage | Metric::RssEach => None,
            // Only measured by a study that watches a queue behind the system.
            Metric::Forward => None,
            Metric::GrowthWithQueues | Metric::GrowthWithBindings => None,
            Metric::Rss => self.processes?.rss_bytes.map(|bytes| bytes as f64),
        }
    }
}

impl Counts {
    /// `None` if it is unknown.
    fn of(&self, fate: Fate) -> Option<u64> {
        Some(match fate {
            Fate::Duplicated if self.copied => return None,
            Fate::Lost => self.lost,
            Fate::Duplicated => self.duplicated,
            Fate::Reordered => self.reordered,
            Fate::Nacked => self.nacked,
            Fate::Returned => self.returned,
            Fate::Unconfirmed => self.unconfirmed,
            Fate::OddConfirms => self.odd_confirms,
            Fate::Unsent => self.unsent,
        })
    }
}

fn at(latency: &Percentiles, point: LatencyPoint) -> f64 {
    match point {
        LatencyPoint::Min => latency.min,
        LatencyPoint::Mean => latency.mean,
        LatencyPoint::P50 => latency.p50,
        LatencyPoint::P90 => latency.p90,
        LatencyPoint::P99 => latency.p99,
        LatencyPoint::P99_9 => latency.p99_9,
        LatencyPoint::P99_99 => latency.p99_99,
        LatencyPoint::Max => latency.max,
    }
}

impl StreamSystem {
    /// A figure in each round that measured it.
    pub(crate) fn values_of(&self, metric: Metric) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| round.figure(metric)).collect()
    }

    /// Location and spread of a figure over the rounds; `None` unless some round measured it.
    pub(crate) fn summary_of(&self, metric: Metric) -> Option<Summary> {
        Summary::of(self.values_of(metric))
    }

    /// One value for all rounds, see [`Summary::figure`].
    pub(crate) fn figure(&self, metric: Metric) -> Option<f64> {
        self.summary_of(metric).map(|summary| summary.figure(metric))
    }

    /// Fills [`StreamSystem::summary`] from the rounds.
    pub(crate) fn summarise(&mut self) {
        let points = LatencyPoint::REPORTED;
        let metrics = [Metric::Rate, Metric::Publish, Metric::Consume]
            .into_iter()
            .chain(points.map(Metric::Latency))
            .chain(points.map(Metric::ConfirmLatency))
            .chain([Metric::Cpu, Metric::CpuPerMessage, Metric::Rss]);
        self.summary = metrics.filter_map(|metric| Measured::of(metric, self.values_of(metric))).collect();
    }
}

impl MetricSource for StreamReport {
    fn systems(&self) -> Vec<&str> {
        self.systems.iter().map(|system| system.name.as_str()).collect()
    }

    fn figure(&self, system: &str, metric: Metric) -> Option<f64> {
        self.systems.iter().find(|candidate| candidate.name == system)?.figure(metric)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn round(rate: f64, lost: u64) -> Round {
        Round {
            seconds: 1.0,
            publish_rate: rate * 2.0,
            consume_rate: Some(rate),
            confirm_rate: None,
            latency: None,
            confirm_latency: None,
            counts: Counts { lost, ..Counts::default() },
            processes: None,
            timeline: Vec::new(),
            generator: GeneratorUsage { cpu_cores: 0.5, busiest_thread: 0.5, idle_cores: Some(0.01) },
        }
    }

    pub(crate) fn system(name: &str, rounds: Vec<Round>) -> StreamSystem {
        let (uri, server) = ("amqp://guest@localhost:5672/%2f".into(), "Product 1".into());
        StreamSystem { name: name.into(), uri, server, pids: vec![], rounds, summary: vec![] }
    }

    #[test]
    fn rates_are_medians_and_counts_are_sums() {
        let system = system("a", vec![round(10.0, 1), round(30.0, 0), round(1000.0, 4)]);
        assert_eq!(system.figure(Metric::Rate), Some(30.0));
        assert_eq!(system.figure(Metric::Publish), Some(60.0));
        assert_eq!(system.figure(Metric::Count(Fate::Lost)), Some(5.0));
        assert_eq!(system.figure(Metric::Latency(LatencyPoint::P99)), None);
    }

    #[test]
    fn the_end_to_end_rate_is_the_consume_or_confirm_or_publish_rate() {
        let mut round = Round { confirm_rate: Some(15.0), ..round(10.0, 0) };
        assert_eq!(round.end_to_end_rate(), 10.0);
        round.consume_rate = None;
        assert_eq!(round.end_to_end_rate(), 15.0);
        round.confirm_rate = None;
        assert_eq!(round.end_to_end_rate(), 20.0);
    }

    #[test]
    fn a_full_machine_and_a_saturated_generator_are_distinguished() {
        let usage = round(1.0, 0).generator;
        assert!(usage.machine_is_full(2) && !usage.is_saturated());
        let usage = GeneratorUsage { busiest_thread: 0.97, idle_cores: Some(6.0), ..usage };
        assert!(!usage.machine_is_full(8) && usage.is_saturated());
    }

    #[test]
    fn cores_used_by_other_programs_are_the_remainder() {
        let mut round = round(1.0, 0);
        assert_eq!(round.cores_used_by_others(2), None, "no process was named");
        let usage = ProcessUsage { cpu_cores: Some(1.0), cpu_seconds_per_message: None, rss_bytes: None };
        round.processes = Some(usage);
        assert!((round.cores_used_by_others(2).unwrap() - 0.49).abs() < 1e-9);
        round.processes = Some(ProcessUsage { cpu_cores: Some(1.8), ..usage });
        assert_eq!(round.cores_used_by_others(2), Some(0.0), "never less than nothing");
    }
}
