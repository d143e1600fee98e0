//! Decides when reads are delayed, by trial.

use std::time::{Duration, Instant};

use sync::BackOff;

/// How long arriving data is measured before the decision whether to wait: long enough for a rate to compare with.
const WATCH: Duration = Duration::from_millis(8);
/// Reads within that time from which on waiting saves wake-ups.
const BUSY_READS: u32 = 32;
/// Average number of things, such as frames, per read from which on the sender itself is gathering them: each waits for
/// others anyway. Eight small AMQP deliveries.
const GATHERED: u64 = 24;
/// Average bytes per read from which on a read is worth its own wake-up.
const WORTHWHILE: u64 = 16 * 1024;
/// How long a read is delayed. The runtime's timer has no shorter interval, and may take up to twice as long.
pub(super) const WAIT: Duration = Duration::from_millis(1);
/// Delayed reads over which the rate is measured and compared with the rate before.
const TRIAL: u32 = 8;
/// Delayed reads after which the rate without waiting is measured again.
const RENEW: u32 = 256;
/// A smaller share of the former rate means that the sender waits for our answers, as with a prefetch window.
const AS_MUCH: f64 = 0.85;
/// How long waiting is not tried again after that.
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
    /// Rate in bytes a second without waiting; `None` while reads are not delayed.
    before: Option<f64>,
    /// Delayed reads since `before` was measured.
    waited: u32,
    /// Earliest time at which waiting is tried again.
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

    /// Records a read of `bytes` bytes; `taken` is the number of things taken from the data read before. Returns
    /// whether the next read is to wait.
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
        let gathered = taken.saturating_sub(self.taken) >= GATHERED * reads;
        // A longer time included a silence, or a thread that was held up: there is no rate to compare with.
        let whole = elapsed < 2 * WATCH;
        let worthwhile = self.bytes >= WORTHWHILE * reads;
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
        if (self.bytes as f64) < before * AS_MUCH * elapsed.as_secs_f64() {
            self.before = None;
            self.not_before = now + self.back_off.pause();
        } else {
            self.back_off.reset();
            if self.waited >= RENEW {
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

        /// Reads for `time` from a sender that writes `bytes` and `things` every `apart`, until `window` bytes wait to
        /// be read.
        fn run(&mut self, time: Duration, apart: Duration, bytes: u64, things: u64, window: u64) {
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
                self.taken += arrived * things / bytes;
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
        for (apart, bytes, things) in
            [(MANY, 80, 3), (MANY, 20_000, 48), (Duration::from_millis(1), 1000, 48)]
        {
            let mut it = Simulation::new();
            it.run(Duration::from_secs(1), apart, bytes, things, u64::MAX);
            assert_eq!(it.waits, 0, "{bytes} bytes, {things} things every {apart:?}");
        }
    }

    #[test]
    fn a_sender_that_waits_for_answers_is_soon_left_alone() {
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
