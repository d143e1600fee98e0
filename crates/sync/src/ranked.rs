//! Locks that check the order in which a thread takes them, or measure how long it waits for them.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
#[cfg(not(feature = "loom"))]
use std::thread_local;
use std::time::Duration;

#[cfg(feature = "loom")]
use loom::thread_local;

use crate::measuring::{Held, Measured};
use crate::{Rank, taken, unranked};

/// A mutex of this [`Rank`].
#[derive(Debug)]
pub struct Mutex<T, const RANK: u8> {
    lock: unranked::Mutex<T>,
    measured: Measured,
}

/// The guard of [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T, const RANK: u8> {
    guard: unranked::MutexGuard<'a, T>,
    held: Held,
    _rank: HeldRank<RANK>,
}

impl<T: Default, const RANK: u8> Default for Mutex<T, RANK> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, const RANK: u8> Mutex<T, RANK> {
    /// Creates a mutex.
    pub fn new(value: T) -> Self {
        Self { lock: unranked::Mutex::new(value), measured: Measured::of::<T>(RANK) }
    }

    /// Locks the mutex.
    ///
    /// # Panics
    /// If the thread holds a lock of this rank or a later one.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, RANK> {
        let rank = HeldRank::take::<T, _>(self);
        let guard = self.measured.take(|| self.lock.try_lock(), || self.lock.lock());
        MutexGuard { guard, held: self.measured.start_hold_timer(), _rank: rank }
    }

    /// Locks the mutex unless it is locked.
    ///
    /// # Panics
    /// If the thread holds a lock of this rank or a later one.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, RANK>> {
        let rank = HeldRank::take::<T, _>(self);
        let guard = self.measured.try_take(|| self.lock.try_lock())?;
        Some(MutexGuard { guard, held: self.measured.start_hold_timer(), _rank: rank })
    }

    /// The value; the exclusive borrow proves that nobody has locked it.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T, const RANK: u8> Deref for MutexGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for MutexGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A reader-writer lock of this [`Rank`].
#[derive(Debug)]
pub struct RwLock<T, const RANK: u8> {
    lock: unranked::RwLock<T>,
    measured: Measured,
}

/// The guard of a reader.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T, const RANK: u8> {
    guard: unranked::RwLockReadGuard<'a, T>,
    _held: Held,
    _rank: HeldRank<RANK>,
}

/// The guard of a writer.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T, const RANK: u8> {
    guard: unranked::RwLockWriteGuard<'a, T>,
    held: Held,
    rank: HeldRank<RANK>,
}

impl<T: Default, const RANK: u8> Default for RwLock<T, RANK> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, const RANK: u8> RwLock<T, RANK> {
    /// Creates a lock.
    pub fn new(value: T) -> Self {
        Self { lock: unranked::RwLock::new(value), measured: Measured::of::<T>(RANK) }
    }

    /// Locks it for reading.
    ///
    /// # Panics
    /// If the thread holds a lock of this rank or a later one.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, RANK> {
        let rank = HeldRank::take::<T, _>(self);
        let guard = self.measured.take(|| self.lock.try_read(), || self.lock.read());
        RwLockReadGuard { guard, _held: self.measured.start_hold_timer(), _rank: rank }
    }

    /// Locks it for writing.
    ///
    /// # Panics
    /// If the thread holds a lock of this rank or a later one.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, RANK> {
        let rank = HeldRank::take::<T, _>(self);
        let guard = self.measured.take(|| self.lock.try_write(), || self.lock.write());
        RwLockWriteGuard { guard, held: self.measured.start_hold_timer(), rank }
    }
}

impl<T, const RANK: u8> RwLockWriteGuard<'_, T, RANK> {
    /// Unlocks it, and hands it to a thread that waits.
    pub fn unlock_fair(self) {
        unranked::RwLockWriteGuard::unlock_fair(self.guard);
        drop((self.held, self.rank));
    }
}

impl<T, const RANK: u8> Deref for RwLockReadGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> Deref for RwLockWriteGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for RwLockWriteGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A condition variable for a [`Mutex`]. A thread that waits counts as holding the mutex.
#[derive(Debug, Default)]
pub struct Condvar(unranked::Condvar);

impl Condvar {
    /// Creates one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until it is notified.
    pub fn wait<T, const RANK: u8>(&self, guard: &mut MutexGuard<'_, T, RANK>) {
        guard.held.pause();
        self.0.wait(&mut guard.guard);
    }

    /// Waits until it is notified, or this time has passed.
    pub fn wait_for<T, const RANK: u8>(
        &self,
        guard: &mut MutexGuard<'_, T, RANK>,
        time: Duration,
    ) -> unranked::WaitTimeoutResult {
        guard.held.pause();
        self.0.wait_for(&mut guard.guard, time)
    }

    /// Wakes one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

thread_local! {
    /// The ranks of the locks that this thread holds, and where it took them.
    static HELD: RefCell<Vec<(u8, &'static Location<'static>)>> = RefCell::default();
}

/// A release build that measures locks does not check their order as well.
const CHECKS: bool = cfg!(any(debug_assertions, feature = "loom"));

/// The thread's entry for a lock, from before it waits for the lock until after it releases it.
#[derive(Debug)]
struct HeldRank<const RANK: u8>;

impl<const RANK: u8> HeldRank<RANK> {
    /// Adds the entry for `lock`, which protects a `T`.
    #[track_caller]
    fn take<T, L>(lock: &L) -> Self {
        taken::note::<T>(RANK, std::ptr::from_ref(lock).addr());
        if !CHECKS {
            return Self;
        }
        let here = Location::caller();
        check(RANK, here);
        // A thread that is ending has already dropped its list, and holds nothing.
        let _ = HELD.try_with(|held| held.borrow_mut().push((RANK, here)));
        Self
    }
}

/// In a debug build, panics if this thread holds a lock that forbids taking one of this rank: for work that must run
/// without such locks.
#[track_caller]
pub fn check_may_take(rank: Rank) {
    if CHECKS {
        check(rank as u8, Location::caller());
    }
}

fn check(rank: u8, here: &'static Location<'static>) {
    let _ = HELD.try_with(|held| {
        let held = held.borrow();
        if let Some((last, at)) =
            held.iter().max_by_key(|(rank, _)| rank).filter(|(last, _)| !Rank::may_follow(*last, rank))
        {
            let (rank, last) = (Rank::ALL[usize::from(rank)], Rank::ALL[usize::from(*last)]);
            panic!("a lock of rank {rank:?} is taken at {here}, below one of rank {last:?}, taken at {at}");
        }
    });
}

impl<const RANK: u8> Drop for HeldRank<RANK> {
    fn drop(&mut self) {
        if !CHECKS {
            return;
        }
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|(rank, _)| *rank == RANK) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    type Early = Mutex<u32, { Rank::Policies as u8 }>;
    type Late = RwLock<u32, { Rank::TopologyOrQueue as u8 }>;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (early, late) = (Early::default(), Late::default());
        for _ in 0..2 {
            let first = early.lock();
            let second = late.read();
            // Locks may be released in any order.
            drop(first);
            drop(second);
        }
    }

    #[test]
    #[should_panic(expected = "a lock of rank Policies is taken at ")]
    fn the_opposite_order_panics() {
        let (early, late) = (Early::default(), Late::default());
        let _late = late.write();
        let _early = early.lock();
    }

    #[test]
    #[should_panic(expected = "below one of rank TopologyOrQueue, taken at ")]
    fn two_locks_of_one_rank_panic() {
        let (one, other) = (Late::default(), Late::default());
        let _one = one.read();
        let _other = other.read();
    }

    #[test]
    fn a_released_lock_is_forgotten_and_other_threads_are_their_own() {
        let (early, late) = (Early::default(), Late::default());
        late.write().unlock_fair();
        drop(early.lock());
        let _late = late.read();
        let other = std::thread::scope(|scope| scope.spawn(|| *early.lock()).join().unwrap());
        assert_eq!(other, 0);
    }
}
