//! Loom's primitives, with the interface of those that they replace.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Runs `test` with every interleaving of its threads that has at most `preemptions` involuntary switches
/// between them: two or three reveal nearly all mistakes (Musuvathi and Qadeer, "Iterative Context Bounding",
/// 2007).
///
/// # Panics
/// If `test` panics, or if all of its threads deadlock.
pub fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    TIMES_OUT.set(false);
    check(preemptions, test);
}

/// Like [`explore`], but waiting for a condition with a timeout times out at once.
///
/// # Panics
/// As [`explore`].
pub fn explore_timeouts(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    TIMES_OUT.set(true);
    check(preemptions, test);
}

thread_local! {
    /// Loom runs all threads of a model on the thread that has begun it.
    static TIMES_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Bytes. Loom gives the first thread 32 KiB, which unoptimized code exceeds when it creates a broker.
const STACK: usize = 512 * 1024;

fn check(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    let test = Arc::new(test);
    model.check(move || {
        let test = test.clone();
        let thread =
            loom::thread::Builder::new().stack_size(STACK / size_of::<usize>()).spawn(move || test());
        thread.expect("a thread of the model").join().expect("a panic ends the model");
    });
}

/// The interface of parking_lot's mutex: without poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// The guard of [`Mutex`]; empty only while it waits for a condition.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks the mutex.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Locks the mutex unless it is locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }

    /// The value; the exclusive borrow proves that nobody has locked it.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(NOT_WAITING)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(NOT_WAITING)
    }
}

/// A guard is borrowed for as long as it waits.
const NOT_WAITING: &str = "a guard that does not wait";

/// The interface of parking_lot's condition variable.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

/// The interface of parking_lot's type.
#[derive(Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time has passed, see [`explore_timeouts`].
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Waits until it is notified.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 = guard.0.take().map(|guard| self.0.wait(guard).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until it is notified, or times out at once (see [`explore_timeouts`]).
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        let times_out = TIMES_OUT.get();
        if !times_out {
            self.wait(guard);
        }
        WaitTimeoutResult(times_out)
    }

    /// Wakes one thread.
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The interface of parking_lot's reader-writer lock.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

/// The guard of a reader.
pub(crate) type RwLockReadGuard<'a, T> = loom::sync::RwLockReadGuard<'a, T>;

/// The guard of a writer.
#[derive(Debug)]
pub(crate) struct RwLockWriteGuard<'a, T>(loom::sync::RwLockWriteGuard<'a, T>);

impl<T> RwLock<T> {
    /// Creates a lock.
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    /// Locks it for reading.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it for reading unless it is locked for writing.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    /// Locks it for writing unless it is locked.
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok().map(RwLockWriteGuard)
    }

    /// Locks it for writing.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard(self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> RwLockWriteGuard<'_, T> {
    /// Unlocks it. Loom chooses the next thread, and tries each of them.
    pub(crate) fn unlock_fair(self) {
        drop(self);
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// The part of the interface of atomic-waker's type that is used.
#[derive(Debug, Default)]
pub struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    /// Creates one without a registered waker.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the waker to be woken from now on.
    pub fn register(&self, waker: &Waker) {
        *self.0.lock() = Some(waker.clone());
    }

    /// Wakes the registered waker, if there is one.
    pub fn wake(&self) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
