//! Measures how long threads wait for locks, and hold them (feature `lock-profile`).

use std::any::type_name;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;

use crate::Rank;
use crate::sharded::ShardedCounters;

/// All locks of one name together, since the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockFigures {
    /// The rank that they all have.
    pub rank: Rank,
    /// The type of what they protect.
    pub contents: &'static str,
    /// How often a thread acquired one.
    pub acquisitions: u64,
    /// Number of acquisitions for which a thread had to wait.
    pub contended: u64,
    /// Nanoseconds that threads have waited.
    pub waited: u64,
    /// Nanoseconds for which they were held, from a sample of the acquisitions.
    pub held: u64,
}

/// The counters of all locks of one name; each lock refers to them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured(&'static ShardedCounters<4>);

const ACQUISITIONS: usize = 0;
const CONTENDED: usize = 1;
const WAITED: usize = 2;
const HELD: usize = 3;

type Names = BTreeMap<(u8, &'static str), &'static ShardedCounters<4>>;

/// Locked when a lock is created, and when the figures are read.
fn names() -> &'static parking_lot::Mutex<Names> {
    static NAMES: OnceLock<parking_lot::Mutex<Names>> = OnceLock::new();
    NAMES.get_or_init(parking_lot::Mutex::default)
}

/// The figures of all names; of none without the feature.
pub fn figures() -> Vec<LockFigures> {
    let of = |(&(rank, contents), counters): (&(u8, &'static str), &&'static ShardedCounters<4>)| {
        let [acquisitions, contended, waited, held] =
            [ACQUISITIONS, CONTENDED, WAITED, HELD].map(|at| counters.get(at));
        LockFigures { rank: Rank::ALL[usize::from(rank)], contents, acquisitions, contended, waited, held }
    };
    names().lock().iter().map(of).collect()
}

impl Measured {
    /// The counters of a lock of this rank that protects a `T`.
    pub(crate) fn of<T>(rank: u8) -> Self {
        let mut names = names().lock();
        Self(names.entry((rank, type_name::<T>())).or_insert_with(|| Box::leak(Box::default())))
    }

    /// Acquires a lock: by `at_once` if it is free, otherwise by `later`, which blocks.
    pub(crate) fn take<G>(self, at_once: impl FnOnce() -> Option<G>, later: impl FnOnce() -> G) -> G {
        if let Some(guard) = at_once() {
            self.0.add([1, 0, 0, 0]);
            return guard;
        }
        let began = Instant::now();
        let guard = later();
        self.0.add([1, 1, nanoseconds(began), 0]);
        guard
    }

    /// Acquires a lock unless another thread has it; a failed attempt is not counted.
    pub(crate) fn try_take<G>(self, at_once: impl FnOnce() -> Option<G>) -> Option<G> {
        let guard = at_once()?;
        self.0.add([1, 0, 0, 0]);
        Some(guard)
    }

    /// Starts to measure how long the lock just taken is held, if the acquisition is sampled.
    pub(crate) fn start_hold_timer(self) -> Held {
        let number = TAKEN.get();
        TAKEN.set(number.wrapping_add(1));
        Held(number.is_multiple_of(SAMPLED).then(|| (self, Instant::now())))
    }
}

/// Measures until it is dropped, right after the lock was released.
#[derive(Debug)]
pub(crate) struct Held(Option<(Measured, Instant)>);

impl Held {
    /// The thread waits for a condition, with the lock released.
    pub(crate) fn pause(&mut self) {
        self.0 = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((measured, began)) = self.0.take() {
            measured.0.add([0, 0, 0, nanoseconds(began) * u64::from(SAMPLED)]);
        }
    }
}

std::thread_local! {
    static TAKEN: Cell<u32> = const { Cell::new(0) };
}

fn nanoseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One in this many acquisitions is timed, since reading the clock takes as long as a lock. It is a prime, because each
/// message takes the same locks in the same order.
const SAMPLED: u32 = 61;

#[cfg(all(test, feature = "lock-profile", not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::Mutex;

    struct Waited;
    struct Free;

    fn figures_of<T>() -> LockFigures {
        *figures().iter().find(|figures| figures.contents == type_name::<T>()).unwrap()
    }

    #[test]
    fn a_thread_that_has_to_wait_is_counted_with_its_time() {
        let measured = Measured::of::<Waited>(Rank::Policies as u8);
        measured.take(|| None, std::thread::yield_now);
        let LockFigures { acquisitions, contended, waited, .. } = figures_of::<Waited>();
        assert_eq!((acquisitions, contended), (1, 1));
        assert!(waited > 0);
    }

    #[test]
    fn a_lock_that_is_free_is_not_contended() {
        let lock = Mutex::<Free, { Rank::Policies as u8 }>::new(Free);
        (0..999).for_each(|_| drop(lock.lock()));
        drop(lock.try_lock());
        let LockFigures { rank, acquisitions, contended, waited, held, .. } = figures_of::<Free>();
        assert_eq!((rank, acquisitions, contended, waited), (Rank::Policies, 1000, 0, 0));
        assert!(held > 0);
    }
}
