//! Counters by tick.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use sync::{Mutex, Rank, ShardedCounters};

use super::Count;
use crate::time::Timestamp;

/// Milliseconds of a tick: RabbitMQ's sampling interval.
pub(super) const TICK: u64 = 5_000;

/// Counters updated by one thread at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rated<const N: usize> {
    /// The counts up to the current tick.
    before: [u64; N],
    /// The counts in the current tick. They do not reach four billion in five seconds, under one lock.
    present: [u32; N],
    /// The counts in the previous tick.
    last: [u32; N],
    /// The end of the current tick, in milliseconds.
    ends: u64,
}

impl<const N: usize> Default for Rated<N> {
    fn default() -> Self {
        Self { before: [0; N], present: [0; N], last: [0; N], ends: 0 }
    }
}

impl<const N: usize> Rated<N> {
    /// The counters to add to at `now`.
    #[inline]
    pub(super) fn present(&mut self, now: Timestamp) -> &mut [u32; N] {
        self.turn(now);
        &mut self.present
    }

    pub(super) fn read(&self, now: Timestamp) -> [Count; N] {
        let mut read = *self;
        read.turn(now);
        array::from_fn(|at| Count {
            total: read.before[at] + u64::from(read.present[at]),
            recent: read.last[at].into(),
        })
    }

    /// A `now` in an earlier tick comes from a thread that waited for the lock: it counts towards the current tick.
    #[inline]
    fn turn(&mut self, now: Timestamp) {
        if now.0 >= self.ends {
            self.end_tick(now);
        }
    }

    #[cold]
    fn end_tick(&mut self, now: Timestamp) {
        for (before, present) in self.before.iter_mut().zip(self.present) {
            *before += u64::from(present);
        }
        self.last = if is_next(self.ends, now) { self.present } else { [0; N] };
        self.present = [0; N];
        self.ends = end_of(now);
    }
}

/// Counters that any thread may update at any time.
pub(super) trait Totals<const N: usize>: Default {
    /// Adds to each of them.
    fn add(&self, counted: [u64; N]);
    /// The total so far of the counter at `at`.
    fn get(&self, at: usize) -> u64;
}

/// For threads that rarely update at the same moment.
#[derive(Debug)]
pub(super) struct PlainTotals<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for PlainTotals<N> {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Totals<N> for PlainTotals<N> {
    fn add(&self, counted: [u64; N]) {
        for (count, counted) in self.0.iter().zip(counted).filter(|(_, counted)| *counted > 0) {
            count.fetch_add(counted, Ordering::Relaxed);
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }
}

impl<const N: usize> Totals<N> for ShardedCounters<N> {
    fn add(&self, counted: [u64; N]) {
        ShardedCounters::add(self, counted);
    }

    fn get(&self, at: usize) -> u64 {
        ShardedCounters::get(self, at)
    }
}

/// Counters that many threads update, without waiting for each other except at the end of a tick.
#[derive(Debug)]
pub(super) struct SharedRated<const N: usize, T = PlainTotals<N>> {
    counts: T,
    /// The end of the current tick, in milliseconds. Changed with `ticks` locked.
    ends: AtomicU64,
    ticks: Mutex<Ticks<N>, { Rank::Leaf as u8 }>,
}

#[derive(Debug)]
struct Ticks<const N: usize> {
    /// The counts at the start of the current tick.
    began: [u64; N],
    /// The counts in the previous tick.
    last: [u64; N],
}

impl<const N: usize, T: Totals<N>> Default for SharedRated<N, T> {
    fn default() -> Self {
        Self {
            counts: T::default(),
            ends: AtomicU64::new(0),
            ticks: Mutex::new(Ticks { began: [0; N], last: [0; N] }),
        }
    }
}

impl<const N: usize, T: Totals<N>> SharedRated<N, T> {
    pub(super) fn add(&self, counted: [u64; N], now: Timestamp) {
        self.turn(now);
        self.counts.add(counted);
    }

    /// The total so far of the counter at `at`.
    pub(super) fn total(&self, at: usize) -> u64 {
        self.counts.get(at)
    }

    pub(super) fn read(&self, now: Timestamp) -> [Count; N] {
        self.turn(now);
        let ticks = self.ticks.lock();
        array::from_fn(|at| Count { total: self.total(at), recent: ticks.last[at] })
    }

    fn turn(&self, now: Timestamp) {
        if now.0 >= self.ends.load(Ordering::Relaxed) {
            self.end_tick(now);
        }
    }

    #[cold]
    fn end_tick(&self, now: Timestamp) {
        let mut ticks = self.ticks.lock();
        let ends = self.ends.load(Ordering::Relaxed);
        if now.0 < ends {
            return;
        }
        let counts: [u64; N] = array::from_fn(|at| self.total(at));
        let is_next = is_next(ends, now);
        ticks.last =
            array::from_fn(|at| if is_next { counts[at].saturating_sub(ticks.began[at]) } else { 0 });
        ticks.began = counts;
        self.ends.store(end_of(now), Ordering::Relaxed);
    }
}

/// Whether `now` is in the tick that follows the one ending at `ends`.
fn is_next(ends: u64, now: Timestamp) -> bool {
    now.0 - ends < TICK
}

fn end_of(now: Timestamp) -> u64 {
    (now.0 / TICK + 1).saturating_mul(TICK)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A time `millis` milliseconds into a tick; the ticks follow any that a clock may be in.
    pub(crate) fn at(tick: u64, millis: u64) -> Timestamp {
        Timestamp((tick + 1_000) * TICK + millis)
    }

    pub(crate) fn count(total: u64, recent: u64) -> Count {
        Count { total, recent }
    }

    #[test]
    fn a_rate_is_about_the_last_whole_tick() {
        let mut rated = Rated::<1>::default();
        rated.present(at(0, 0))[0] += 10;
        rated.present(at(0, TICK - 1))[0] += 15;
        assert_eq!(rated.read(at(0, TICK - 1)), [count(25, 0)], "it is not over");
        assert_eq!(rated.read(at(1, 0)), [count(25, 25)]);
        assert_eq!(rated.read(at(1, 0))[0].rate(), 5.0);
        rated.present(at(1, 1))[0] += 5;
        assert_eq!(rated.read(at(1, TICK - 1)), [count(30, 25)]);
        assert_eq!(rated.read(at(2, 0)), [count(30, 5)]);
    }

    #[test]
    fn a_rate_is_zero_after_a_tick_with_nothing_done() {
        let mut rated = Rated::<1>::default();
        rated.present(at(0, 0))[0] += 10;
        assert_eq!(rated.read(at(2, 0)), [count(10, 0)]);
        rated.present(at(7, 0))[0] += 1;
        assert_eq!(rated.read(at(7, 0)), [count(11, 0)]);
        assert_eq!(rated.read(at(8, 0)), [count(11, 1)]);
        assert_eq!(rated.read(at(9, 0)), [count(11, 0)]);
    }

    #[test]
    fn reading_does_not_change_the_counters() {
        let mut rated = Rated::<1>::default();
        rated.present(at(0, 0))[0] += 10;
        for _ in 0..3 {
            assert_eq!(rated.read(at(5, 0)), [count(10, 0)]);
        }
        rated.present(at(1, 0))[0] += 1;
        assert_eq!(rated.read(at(1, 0)), [count(11, 10)]);
    }

    #[test]
    fn late_events_count_in_the_current_tick() {
        let (mut rated, shared) = (Rated::<1>::default(), SharedRated::<1>::default());
        for now in [at(3, 0), at(2, 4_999), at(0, 0)] {
            rated.present(now)[0] += 1;
            shared.add([1], now);
        }
        assert_eq!(rated.read(at(4, 0)), [count(3, 3)]);
        assert_eq!(shared.read(at(4, 0)), [count(3, 3)]);
    }

    #[test]
    fn shared_counts_tell_the_same() {
        let (mut rated, shared) = (Rated::<2>::default(), SharedRated::<2>::default());
        let sharded = SharedRated::<2, ShardedCounters<2>>::default();
        for (now, step) in
            [at(0, 1), at(0, 2), at(1, 0), at(1, 4_999), at(4, 0), at(5, 0)].into_iter().zip(0_u32..)
        {
            let present = rated.present(now);
            *present = [present[0] + step, present[1] + 1];
            shared.add([step.into(), 1], now);
            sharded.add([step.into(), 1], now);
            assert_eq!(rated.read(now), shared.read(now), "{now:?}");
            assert_eq!(rated.read(now), sharded.read(now), "{now:?}");
        }
        for now in [at(6, 0), at(7, 0), at(100, 0)] {
            assert_eq!(rated.read(now), shared.read(now), "{now:?}");
        }
    }

    #[test]
    fn threads_that_count_at_the_end_of_a_tick_lose_nothing() {
        count_in_threads(&SharedRated::<1>::default());
        count_in_threads(&SharedRated::<1, ShardedCounters<1>>::default());
    }

    fn count_in_threads<T: Totals<1> + Sync>(shared: &SharedRated<1, T>) {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|step| shared.add([1], at(step / 100, step % 100))));
            }
        });
        assert_eq!(shared.read(at(9, 99))[0].total, 4_000);
        assert_eq!(shared.read(at(11, 0)), [count(4_000, 0)]);
    }
}
