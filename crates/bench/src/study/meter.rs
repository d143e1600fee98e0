//! Measures CPU and memory around a measurement.

use std::thread;
use std::time::{Duration, Instant};

use super::Sample;
use crate::latency::Percentiles;
use crate::metric::{LatencyPoint, Metric};
use crate::process;
use crate::report::GeneratorUsage;
use crate::watched::{Usage, Watched};

/// Samples the processes of a system while a rate is measured.
#[derive(Debug)]
pub(crate) struct Meter<'p> {
    began: Instant,
    /// The system's own processes, and those of the broker behind it.
    groups: [(&'p IdleUsage, Usage); 2],
    generator_cpu: f64,
    idle: Option<f64>,
}

/// Processes, and their CPU use when idle.
#[derive(Debug, Default)]
pub(crate) struct IdleUsage {
    watched: Watched,
    /// Cores in use when idle.
    cores: f64,
}

impl IdleUsage {
    /// Processes whose idle use is not subtracted.
    pub(crate) fn none(watched: &Watched) -> Self {
        Self { watched: watched.clone(), cores: 0.0 }
    }

    /// Measures for `time` the idle use of several groups of processes.
    pub(crate) fn measure(groups: &[&Watched], time: Duration) -> Vec<Self> {
        let before: Vec<Usage> = groups.iter().map(|watched| watched.usage()).collect();
        thread::sleep(time);
        let cores = |(watched, before): (&&Watched, Usage)| Self {
            watched: (*watched).clone(),
            cores: watched.usage().cpu_since(&before).unwrap_or_default() / time.as_secs_f64(),
        };
        groups.iter().zip(before).map(cores).collect()
    }

    /// Cores that the processes use when idle.
    pub(crate) fn cores(&self) -> f64 {
        self.cores
    }
}

impl<'p> Meter<'p> {
    /// Begins a measurement.
    pub(crate) fn start(system: &'p IdleUsage, broker: &'p IdleUsage) -> Self {
        Self {
            groups: [system, broker].map(|idle| (idle, idle.watched.usage())),
            generator_cpu: process::own_cpu_seconds(),
            idle: process::machine_idle_seconds(),
            began: Instant::now(),
        }
    }

    /// Seconds since the measurement began, without the time that reading the figures before it took.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Ends the measurement. `busiest` is the share of a core that the generator's busiest thread used.
    pub(crate) fn finish(self, messages: u64, busiest: f64) -> Sample {
        let seconds = self.seconds();
        let generator = GeneratorUsage {
            cpu_cores: (process::own_cpu_seconds() - self.generator_cpu) / seconds,
            busiest_thread: busiest,
            idle_cores: process::machine_idle_seconds()
                .zip(self.idle)
                .map(|(end, start)| (end - start) / seconds),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut sample = Sample {
            figures: Vec::new(),
            saturated: generator.is_saturated(),
            full: generator.machine_is_full(cores),
        };
        let per_message = [Metric::CpuPerMessage, Metric::BrokerCpuPerMessage];
        for (number, ((idle, before), metric)) in self.groups.into_iter().zip(per_message).enumerate() {
            let after = idle.watched.usage();
            if let Some(cpu) = after.cpu_since(&before) {
                let asked_for = (cpu - idle.cores * seconds).max(0.0);
                sample.add(metric, asked_for / messages.max(1) as f64);
                if number == 0 {
                    sample.add(Metric::Cpu, cpu / seconds);
                }
            }
            if let (0, Some(bytes)) = (number, after.rss_bytes) {
                sample.add(Metric::Rss, bytes as f64);
            }
        }
        sample
    }
}

impl Sample {
    /// Adds points of a distribution, each as the metric that `name` returns for it.
    pub(crate) fn add_latencies(&mut self, latencies: Option<Percentiles>, name: fn(LatencyPoint) -> Metric) {
        let Some(p) = latencies else { return };
        let points = [
            (LatencyPoint::P50, p.p50),
            (LatencyPoint::P90, p.p90),
            (LatencyPoint::P99, p.p99),
            (LatencyPoint::P99_9, p.p99_9),
            (LatencyPoint::P99_99, p.p99_99),
            (LatencyPoint::Max, p.max),
        ];
        self.figures.extend(points.map(|(point, value)| (name(point), value)));
    }

    /// Adds one figure.
    pub(crate) fn add(&mut self, metric: Metric, value: f64) {
        self.figures.push((metric, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_for_the_processes_that_did_it() {
        let own = IdleUsage::none(&Watched::processes(&[std::process::id()]));
        let no_broker = IdleUsage::default();
        let meter = Meter::start(&own, &no_broker);
        let start = Instant::now();
        let mut work = 0_u64;
        while process::own_cpu_seconds() - meter.generator_cpu < 0.05 {
            work = work.wrapping_add(start.elapsed().as_nanos() as u64);
        }
        assert!(work > 0);
        let sample = meter.finish(10, 0.95);
        let of = |metric| sample.figures.iter().find(|(m, _)| *m == metric).map(|(_, value)| *value);
        assert!(of(Metric::CpuPerMessage).unwrap() >= 0.004, "{sample:?}");
        assert!(of(Metric::Rss).unwrap() > 0.0 && of(Metric::Cpu).unwrap() > 0.0);
        assert_eq!(of(Metric::BrokerCpuPerMessage), None);
        assert!(sample.saturated);
    }

    #[test]
    fn cpu_usage_of_idle_processes_is_not_counted() {
        let own = IdleUsage { cores: 1e6, ..IdleUsage::none(&Watched::processes(&[std::process::id()])) };
        let no_broker = IdleUsage::default();
        let sample = Meter::start(&own, &no_broker).finish(1, 0.0);
        assert_eq!(sample.figures[0], (Metric::CpuPerMessage, 0.0));
    }
}
