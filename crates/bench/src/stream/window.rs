//! Samples taken at the edges of the measured window and in between.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::shared::RoundState;
use crate::process;
use crate::report::{GeneratorUsage, ProcessUsage};
use crate::watched::{Usage, Watched};

/// How often memory is sampled; finding all children reads the whole of `/proc`, which is not free.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// Counters and CPU times at one point in time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// Nanoseconds since the round began.
    pub(crate) at: u64,
    pub(crate) published: Counter,
    pub(crate) consumed: Counter,
    pub(crate) confirmed: Counter,
    processes: Usage,
    own_cpu: f64,
    threads: Vec<(u32, f64)>,
    idle: Option<f64>,
}

impl Snapshot {
    pub(crate) fn seconds_since(&self, start: &Self) -> f64 {
        self.at.saturating_sub(start.at) as f64 / 1e9
    }
}

/// A count of messages, and when it was reached (in nanoseconds since the round began).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counter {
    pub(crate) count: u64,
    at: u64,
}

impl Counter {
    /// The increase since `start`, and the nanoseconds that it took.
    pub(crate) fn since(&self, start: &Self) -> Self {
        Self { count: self.count.saturating_sub(start.count), at: self.at.saturating_sub(start.at) }
    }

    /// The rate of an increase; 0 if no time passed.
    pub(crate) fn per_second(&self) -> f64 {
        if self.at == 0 { 0.0 } else { self.count as f64 * 1e9 / self.at as f64 }
    }
}

/// Takes samples of the processes under test and of the generator itself.
#[derive(Debug)]
pub(crate) struct Sampler<'p> {
    watched: &'p Watched,
    peak_rss: u64,
    last: Instant,
}

impl<'p> Sampler<'p> {
    pub(crate) fn new(watched: &'p Watched) -> Self {
        Self { watched, peak_rss: 0, last: Instant::now() }
    }

    /// Samples memory, if the sampling interval is over.
    pub(crate) fn tick(&mut self) {
        if !self.watched.is_empty() && self.watched.is_local() && self.last.elapsed() >= SAMPLE_EVERY {
            self.last = Instant::now();
            self.peak_rss = self.peak_rss.max(self.watched.usage().rss_bytes.unwrap_or_default());
        }
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak_rss = 0;
    }

    /// Takes a snapshot now.
    pub(crate) fn snapshot(&self, shared: &RoundState) -> Snapshot {
        let at = shared.now();
        let counter = |count: &AtomicU64| Counter { count: count.load(SeqCst), at };
        Snapshot {
            at,
            published: counter(&shared.published),
            consumed: counter(&shared.consumed),
            confirmed: counter(&shared.confirmed),
            processes: self.watched.usage(),
            own_cpu: process::own_cpu_seconds(),
            threads: shared.thread_times(),
            idle: process::machine_idle_seconds(),
        }
    }

    /// The snapshot before anything was sent, for a round that is counted in messages.
    pub(crate) fn snapshot_at_start(&self, shared: &RoundState) -> Snapshot {
        let (published, consumed, confirmed) = <(Counter, Counter, Counter)>::default();
        Snapshot { at: 0, published, consumed, confirmed, threads: Vec::new(), ..self.snapshot(shared) }
    }

    /// The snapshot after everything has arrived: each count is dated to its last change, however late that
    /// is noticed.
    pub(crate) fn snapshot_at_end(&self, shared: &RoundState) -> Snapshot {
        let mut end = self.snapshot(shared);
        end.published.at = shared.last_publish.load(SeqCst);
        end.consumed.at = shared.last_arrival.load(SeqCst);
        end.confirmed.at = shared.last_confirm.load(SeqCst);
        end.at = end.published.at.max(end.consumed.at).max(end.confirmed.at);
        end
    }

    /// CPU and memory of the processes under test in a window with this number of `messages`.
    pub(crate) fn process_usage(
        &self,
        start: &Snapshot,
        end: &Snapshot,
        messages: u64,
    ) -> Option<ProcessUsage> {
        let cpu = end.processes.cpu_since(&start.processes);
        (!self.watched.is_empty()).then(|| ProcessUsage {
            cpu_cores: cpu.map(|cpu| cpu / end.seconds_since(start).max(f64::MIN_POSITIVE)),
            cpu_seconds_per_message: cpu.map(|cpu| cpu / messages.max(1) as f64),
            rss_bytes: end.processes.rss_bytes.map(|bytes| bytes.max(self.peak_rss)),
        })
    }

    /// CPU of this process in a window.
    pub(crate) fn generator_usage(&self, start: &Snapshot, end: &Snapshot) -> GeneratorUsage {
        let seconds = end.seconds_since(start).max(f64::MIN_POSITIVE);
        let before = |id| start.threads.iter().find(|(other, _)| *other == id).map_or(0.0, |(_, cpu)| *cpu);
        let busiest = end.threads.iter().map(|&(id, cpu)| cpu - before(id)).fold(0.0, f64::max);
        GeneratorUsage {
            cpu_cores: (end.own_cpu - start.own_cpu) / seconds,
            busiest_thread: busiest / seconds,
            idle_cores: end.idle.zip(start.idle).map(|(end, start)| (end - start) / seconds),
        }
    }
}
