//! Storage for the waker of a task.

use std::task::Waker;

use crate::work;

/// Stores the waker of a task, with which other tasks and threads wake it.
#[derive(Debug, Default)]
pub struct AtomicWaker(atomic_waker::AtomicWaker);

impl AtomicWaker {
    /// Creates one without a registered waker.
    pub const fn new() -> Self {
        Self(atomic_waker::AtomicWaker::new())
    }

    /// Registers the waker to be woken from now on.
    pub fn register(&self, waker: &Waker) {
        self.0.register(waker);
    }

    /// Wakes the registered waker, if there is one.
    pub fn wake(&self) {
        work::wakes_another();
        self.0.wake();
    }
}
