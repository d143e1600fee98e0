//! Loom's primitives, with the interface of those that they replace.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::task::Waker;
use std::time::Duration;

pub(crate) use parking_lot::WaitTimeoutResult;

/// Runs `test` with every interleaving of its threads that has at most `preemptions` involuntary switches
/// between them: two or three reveal nearly all mistakes (Musuvathi and Qadeer, "Iterative Context Bounding",
/// 2007).
///
/// # Panics
/// If `test` panics, or if all of its threads deadlock.
pub fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

/// The interface of parking_lot's mutex: without poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// The guard of [`Mutex`].
pub(crate) type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks the mutex.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex unless it is locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    /// The value, which nobody else can lock now.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets code with condition variables be compiled. No model waits for one.
#[derive(Debug, Default)]
pub(crate) struct Condvar;

impl Condvar {
    /// Panics.
    pub(crate) fn wait<T>(&self, _: &mut MutexGuard<'_, T>) {
        panic!("condition variables are not explored");
    }

    /// Panics.
    pub(crate) fn wait_for<T>(&self, _: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        panic!("condition variables are not explored");
    }

    /// Does nothing, as no thread waits.
    pub(crate) fn notify_one(&self) {}

    /// Does nothing, as no thread waits.
    pub(crate) fn notify_all(&self) {}
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
