//! Decides by experiment when to delay reads.

use std::time::{Duration, Instant};

use sync::BackOff;

/// How long data is measured before deciding whether to delay reads: long enough for a baseline rate.
const WATCH: Duration = Duration::from_millis(8);
/// Reads within that time at which delaying starts to save wake-ups.
const BUSY_READS: u32 = 32;
/// Average number of items, such as frames, per read at which the sender itself already batches them, so that each has
/// waited for others anyway. Eight small AMQP deliveries.
const BATCHED_ITEMS: u64 = 24;
/// Average bytes per read at which a read is worth its own wake-up.
const LARGE_READ: u64 = 16 * 1024;
/// How long a read is delayed. The runtime's timer has no shorter interval, and may take up to twice as long.
pub(super) const WAIT: Duration = Duration::from_millis(1);
/// Delayed reads over which the rate is measured and compared with the rate before.
const TRIAL: u32 = 8;
/// Delayed reads after which the rate without delays is measured again.
const REMEASURE_AFTER: u32 = 256;
/// A smaller share of the former rate shows that the sender waits for answers, as with a prefetch window.
const MIN_RATE_RATIO: f64 = 0.85;
/// How long delays are not tried again after that.
const RETRIAL: BackOff = BackOff::new(Duration::from_millis(50), Duration::from_secs(2));

/// The pace at which one stream is read.
#[derive(Debug)]
pub(super) struct Pace {
    /// Start of the current measurement.
    since: Instant,
    reads: u32,
    bytes: u64,
    /// Value of the reader's counter at that time.
    taken: u64,
    /// Rate in bytes a second without delays; `None` while reads are not delayed.
    before: Option<f64>,
    /// Delayed reads since `before` was measured.
    waited: u32,
    /// Earliest time at which delays are tried again.
    not_before: Instant,
    back_off: BackOff,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            reads: 0,
            bytes: 0,
            taken: 0,
            before: None,
            waited: 0,
            not_before: now,
            back_off: RETRIAL,
        }
    }

    /// Records a read of `bytes` bytes; `taken` is the number of items in the data read before. Returns whether to delay
    /// the next read.
    pub(super) fn read(&mut self, bytes: usize, taken: u64, now: Instant) -> bool {
        self.reads += 1;
        self.bytes += bytes as u64;
        match self.before {
            None => self.watch(taken, now),
            Some(before) => self.learn(before, taken, now),
        }
        self.before.is_some()
    }

    fn watch(&mut self, taken: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < WATCH {
            return;
        }
        let reads = u64::from(self.reads);
        let gathered = taken.saturating_sub(self.taken) >= BATCHED_ITEMS * reads;
        // A longer time included a silence, or a delayed thread: it gives no rate to compare with.
        let whole = elapsed < 2 * WATCH;
        let worthwhile = self.bytes >= LARGE_READ * reads;
        if self.reads >= BUSY_READS && gathered && whole && !worthwhile && now >= self.not_before {
            self.before = Some(self.bytes as f64 / elapsed.as_secs_f64());
            self.waited = 0;
        }
        self.count_anew(taken, now);
    }

    fn learn(&mut self, before: f64, taken: u64, now: Instant) {
        self.waited += 1;
        if self.reads < TRIAL {
            return;
        }
        let elapsed = now.saturating_duration_since(self.since);
        if (self.bytes as f64) < before * MIN_RATE_RATIO * elapsed.as_secs_f64() {
            self.before = None;
            self.not_before = now + self.back_off.pause();
        } else {
            self.back_off.reset();
            if self.waited >= REMEASURE_AFTER {
                self.before = None;
            }
        }
        self.count_anew(taken, now);
    }

    fn count_anew(&mut self, taken: u64, now: Instant) {
        self.since = now;
        self.reads = 0;
        self.bytes = 0;
        self.taken = taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender whose stream is read by a simulated clock.
    struct Simulation {
        pace: Pace,
        now: Instant,
        taken: u64,
        /// Delayed reads; `reads` counts all.
        waits: u32,
        reads: u32,
    }

    impl Simulation {
        fn new() -> Self {
            let now = Instant::now();
            Self { pace: Pace::new(now), now, taken: 0, waits: 0, reads: 0 }
        }

        /// Reads for `time` from a sender that writes `bytes` and `items` every `apart`, until `window` bytes wait to
        /// be read.
        fn run(&mut self, time: Duration, apart: Duration, bytes: u64, items: u64, window: u64) {
            let end = self.now + time;
            let mut waits = false;
            while self.now < end {
                let passed = if waits { 2 * WAIT } else { apart };
                let writes = (passed.as_nanos() / apart.as_nanos()) as u64;
                let arrived = (writes * bytes).min(window);
                self.now += passed;
                self.reads += 1;
                self.waits += u32::from(waits);
                waits = self.pace.read(arrived as usize, self.taken, self.now);
                self.taken += arrived * items / bytes;
            }
        }
    }

    const MANY: Duration = Duration::from_micros(100);

    #[test]
    fn a_stream_of_gathered_messages_is_read_after_waits() {
        let mut it = Simulation::new();
        it.run(Duration::from_secs(1), MANY, 1000, 48, u64::MAX);
        assert!(it.waits > 400 && it.reads < 700, "{} of {}", it.waits, it.reads);
    }

    #[test]
    fn single_messages_large_ones_and_few_never_wait() {
        for (apart, bytes, items) in [(MANY, 80, 3), (MANY, 20_000, 48), (Duration::from_millis(1), 1000, 48)]
        {
            let mut it = Simulation::new();
            it.run(Duration::from_secs(1), apart, bytes, items, u64::MAX);
            assert_eq!(it.waits, 0, "{bytes} bytes, {items} items every {apart:?}");
        }
    }

    #[test]
    fn delays_end_soon_for_a_sender_that_waits_for_answers() {
        let mut it = Simulation::new();
        it.run(Duration::from_secs(10), MANY, 1000, 48, 8000);
        assert!((8..100).contains(&it.waits), "{}", it.waits);
    }

    #[test]
    fn waiting_is_retried_for_a_sender_that_once_waited_for_answers() {
        let mut it = Simulation::new();
        it.run(Duration::from_secs(5), MANY, 1000, 48, 8000);
        let before = it.waits;
        it.run(Duration::from_secs(5), MANY, 1000, 48, u64::MAX);
        assert!(it.waits - before > 1000, "{}", it.waits - before);
    }

    #[test]
    fn a_stream_that_ends_is_not_waited_for() {
        let mut it = Simulation::new();
        it.run(Duration::from_secs(1), MANY, 1000, 48, u64::MAX);
        let before = it.waits;
        it.run(Duration::from_secs(10), Duration::from_millis(10), 100, 3, u64::MAX);
        assert!(it.waits - before <= 2 * TRIAL, "{}", it.waits - before);
    }
}
