//! Loom's primitives, with the interface of those that they stand for.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::task::Waker;

/// Runs `test` in every order in which its threads can meet, with up to `preemptions` switches between them that they did
/// not ask for: nearly all mistakes show with two or three (Musuvathi and Qadeer, "Iterative Context Bounding", 2007).
///
/// # Panics
/// When `test` does, or when all of its threads wait for ever.
pub fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

/// parking_lot's mutex: no poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// Its guard.
pub type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// A mutex.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// parking_lot's lock for readers and writers.
#[derive(Debug, Default)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

/// Its guard for a writer.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T>(loom::sync::RwLockWriteGuard<'a, T>);

impl<T> RwLock<T> {
    /// A lock.
    pub fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    /// Locks it for reading.
    pub fn read(&self) -> loom::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard(self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> RwLockWriteGuard<'_, T> {
    /// Unlocks it. Who is next is up to loom, which tries everybody.
    pub fn unlock_fair(self) {
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

/// The crate atomic-waker's, as far as its users can tell.
#[derive(Debug, Default)]
pub struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    /// One that wakes nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whom to wake from now on.
    pub fn register(&self, waker: &Waker) {
        *self.0.lock() = Some(waker.clone());
    }

    /// Wakes whoever has registered.
    pub fn wake(&self) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
