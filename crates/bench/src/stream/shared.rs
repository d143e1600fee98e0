//! State shared by the threads of one round: counters, the clock, wake-ups, and the trackers of arrivals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::delivery_tracker::DeliveryTracker;
use crate::error::ClientError;
use crate::process;

/// The longest sleep of a waiting thread, which bounds the cost of a missed wake-up.
const RECHECK: Duration = Duration::from_millis(5);

/// The state of one round.
#[derive(Debug)]
pub(crate) struct RoundState {
    /// The start of the clock; set by [`RoundState::begin`].
    began: OnceLock<Instant>,
    /// Marks this round's messages; see [`super::message`].
    pub(crate) salt: u8,
    /// Messages written to sockets.
    pub(crate) published: AtomicU64,
    /// Messages delivered.
    pub(crate) consumed: AtomicU64,
    /// Messages confirmed by basic.ack.
    pub(crate) confirmed: AtomicU64,
    /// Incremented whenever a socket accepts a part of the messages, and while a producer waits until the next one is due.
    pub(crate) producing: AtomicU64,
    /// Times of the last publish, the last confirm and the last delivery.
    pub(crate) last_publish: AtomicU64,
    pub(crate) last_confirm: AtomicU64,
    pub(crate) last_arrival: AtomicU64,
    /// Latencies of messages sent in this range of times are recorded.
    pub(crate) measure_from: AtomicU64,
    pub(crate) measure_until: AtomicU64,
    /// Set to stop the producers.
    pub(crate) stop_publishing: AtomicBool,
    /// Set to stop all threads.
    pub(crate) stop: AtomicBool,
    /// Wakes producers that wait for consumers.
    pub(crate) backlog: Signal,
    trackers: Mutex<Vec<DeliveryTracker>>,
    threads: Mutex<Vec<WorkThread>>,
    failure: Mutex<Option<ClientError>>,
}

impl RoundState {
    pub(crate) fn new(producers: usize, salt: u8) -> Self {
        Self {
            began: OnceLock::new(),
            salt,
            published: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            producing: AtomicU64::new(0),
            last_publish: AtomicU64::new(0),
            last_confirm: AtomicU64::new(0),
            last_arrival: AtomicU64::new(0),
            measure_from: AtomicU64::new(u64::MAX),
            measure_until: AtomicU64::new(u64::MAX),
            stop_publishing: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            backlog: Signal::default(),
            trackers: Mutex::new((0..producers).map(|_| DeliveryTracker::default()).collect()),
            threads: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Starts the clock, once all are connected.
    pub(crate) fn begin(&self) {
        self.began.get_or_init(Instant::now);
    }

    /// Nanoseconds since the round began.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        // 64 bits of nanoseconds suffice for centuries.
        self.began.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    /// Whether latencies of messages sent at `stamp` are recorded.
    #[inline]
    pub(crate) fn measures(&self, stamp: u64) -> bool {
        stamp >= self.measure_from.load(Relaxed) && stamp < self.measure_until.load(Relaxed)
    }

    /// Messages published but not yet consumed.
    pub(crate) fn under_way(&self) -> u64 {
        self.published.load(Relaxed).saturating_sub(self.consumed.load(Relaxed))
    }

    /// Figures of which at least one changes unless the system has stalled.
    pub(crate) fn progress(&self) -> [u64; 4] {
        [&self.published, &self.consumed, &self.confirmed, &self.producing].map(|count| count.load(Relaxed))
    }

    /// One tracker for each producer.
    pub(crate) fn trackers(&self) -> MutexGuard<'_, Vec<DeliveryTracker>> {
        lock(&self.trackers)
    }

    /// Runs a thread's work and records its CPU time, which shows whether the generator is saturated.
    pub(crate) fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(id) = process::own_thread_id() else { return work() };
        lock(&self.threads).push(WorkThread { id, final_cpu: None });
        let outcome = work();
        // The kernel discards a thread's time when it ends.
        let cpu = process::thread_cpu_seconds(id);
        if let Some(thread) = lock(&self.threads).iter_mut().find(|thread| thread.id == id) {
            thread.final_cpu = Some(cpu);
        }
        outcome
    }

    /// Ids and CPU times, in seconds, of all threads that worked in this round.
    pub(crate) fn thread_times(&self) -> Vec<(u32, f64)> {
        let time = |t: &WorkThread| (t.id, t.final_cpu.unwrap_or_else(|| process::thread_cpu_seconds(t.id)));
        lock(&self.threads).iter().map(time).collect()
    }

    /// Ends the round because of `error`; the first error is stored.
    pub(crate) fn fail(&self, error: ClientError) {
        lock(&self.failure).get_or_insert(error);
        self.stop_publishing.store(true, SeqCst);
        self.stop.store(true, SeqCst);
    }

    /// Takes the error that ended the round early.
    pub(crate) fn take_failure(&self) -> Option<ClientError> {
        lock(&self.failure).take()
    }
}

#[derive(Debug)]
struct WorkThread {
    id: u32,
    /// CPU time in seconds, once the work is done.
    final_cpu: Option<f64>,
}

/// A thread that panicked is reported when it is joined; its shared data stay readable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wake-up that costs its sender one load if there are no waiters.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    waiters: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    /// Waits for [`Signal::notify`], unless `ready` already, and for [`RECHECK`] at most.
    pub(crate) fn wait_unless(&self, ready: impl FnOnce() -> bool) {
        let guard = lock(&self.lock);
        self.waiters.fetch_add(1, SeqCst);
        if !ready() {
            // After a wake-up, a timeout or poison alike, the caller checks again.
            drop(self.changed.wait_timeout(guard, RECHECK));
        }
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// Wakes all waiters.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.waiters.load(SeqCst) > 0 {
            let _guard = lock(&self.lock);
            self.changed.notify_all();
        }
    }
}
