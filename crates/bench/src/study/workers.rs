//! Threads that repeat the same step concurrently.

use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::Sample;
use crate::error::ClientError;
use crate::latency::Latencies;
use crate::metric::Metric;
use crate::process;

/// The number of workers and the duration of their work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerConfig {
    pub(crate) workers: usize,
    pub(crate) time: Duration,
    /// The least number of steps of each worker, which it does even after `time`.
    pub(crate) min_steps: u64,
}

/// The results of all workers.
#[derive(Debug)]
pub(crate) struct WorkResult<T> {
    pub(crate) count: u64,
    /// From the start until the last worker had finished.
    pub(crate) seconds: f64,
    /// The durations of the steps.
    pub(crate) times: Latencies,
    /// Share of a core that the busiest thread used.
    pub(crate) busiest: f64,
    /// The states that `set_up` created, one for each worker.
    pub(crate) states: Vec<T>,
}

/// Runs workers that repeat `step`, each with the state that `set_up` created for it; the time starts once all are set up.
pub(crate) fn work<T: Send>(
    config: WorkerConfig,
    set_up: impl Fn(usize) -> Result<T, ClientError> + Sync,
    step: impl Fn(&mut T) -> Result<(), ClientError> + Sync,
) -> Result<WorkResult<T>, ClientError> {
    let mut states = (0..config.workers).map(&set_up).collect::<Result<Vec<T>, _>>()?;
    let start = Barrier::new(config.workers);
    let run_worker = |state: &mut T| -> Result<WorkerResult, ClientError> {
        start.wait();
        let (began, mut times, mut count) = (Instant::now(), Latencies::new(), 0);
        while count < config.min_steps || began.elapsed() < config.time {
            let from = Instant::now();
            step(state)?;
            times.record(from.elapsed().as_nanos() as u64);
            count += 1;
        }
        let cpu = process::own_thread_id().map_or(0.0, process::thread_cpu_seconds);
        Ok(WorkerResult { began, ended: Instant::now(), count, times, cpu })
    };
    let run_worker = &run_worker;
    let results = thread::scope(|scope| {
        let threads: Vec<_> = states.iter_mut().map(|state| scope.spawn(move || run_worker(state))).collect();
        let join =
            |thread: ScopedJoinHandle<'_, _>| thread.join().map_err(|_| ClientError::Panicked("worker"));
        threads.into_iter().map(|thread| join(thread).flatten()).collect::<Vec<_>>()
    });
    let results = results.into_iter().collect::<Result<Vec<WorkerResult>, _>>()?;
    Ok(WorkResult::of(&results, states))
}

/// The results of one thread.
pub(crate) struct WorkerResult {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) count: u64,
    pub(crate) times: Latencies,
    /// CPU time of the thread, in seconds.
    pub(crate) cpu: f64,
}

impl WorkerResult {
    fn share_of_a_core(&self) -> f64 {
        self.cpu / (self.ended - self.began).as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl<T> WorkResult<T> {
    /// Combines the results of several threads.
    pub(crate) fn of(results: &[WorkerResult], states: Vec<T>) -> Self {
        // Measured by the workers' own clocks, since a thread that waits for them wakes up late on a busy machine.
        let began = results.iter().map(|result| result.began).min();
        let ended = results.iter().map(|result| result.ended).max();
        let mut times = Latencies::new();
        results.iter().for_each(|result| times.add(&result.times));
        Self {
            count: results.iter().map(|result| result.count).sum(),
            seconds: began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_secs_f64()),
            times,
            busiest: results.iter().map(WorkerResult::share_of_a_core).fold(0.0, f64::max),
            states,
        }
    }

    /// Adds rate and latencies to a sample.
    pub(crate) fn add_to(&self, sample: &mut Sample) {
        sample.add(Metric::Rate, self.count as f64 / self.seconds.max(f64::MIN_POSITIVE));
        sample.add_latencies(self.times.percentiles(), Metric::Latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_does_at_least_the_required_steps() {
        let config = WorkerConfig { workers: 3, time: Duration::ZERO, min_steps: 5 };
        let done = work(
            config,
            |number| Ok((number, 0)),
            |(_, count)| {
                *count += 1;
                Ok(())
            },
        )
        .unwrap();
        assert_eq!((done.count, done.states), (15, vec![(0, 5), (1, 5), (2, 5)]));
    }

    #[test]
    fn workers_repeat_steps_until_the_time_is_over_or_one_fails() {
        let time = Duration::from_millis(20);
        let config = WorkerConfig { workers: 2, time, min_steps: 0 };
        let done = work(config, Ok, |_| Ok(())).unwrap();
        assert!(done.seconds >= 0.02 && done.count >= 2, "{done:?}");
        let failed = work(config, Ok, |number| match number {
            1 => Err(ClientError::TimedOut("a step")),
            _ => Ok(()),
        });
        assert!(matches!(failed, Err(ClientError::TimedOut("a step"))));
    }
}
