//! Locks, atomics and wakers for code that many threads run at once.
//!
//! They are those of parking_lot, the standard library and atomic-waker. With the feature `loom` they are
//! loom's instead, with the same interface, so that a test can run the real code through every interleaving
//! that the memory model allows (`make loom`). Such a build is for these tests only.
//!
//! [`work`] accounts for the work that a thread does in its turn, so that no connection keeps the others
//! waiting.
//!
//! Out of scope: anything that is not needed both with and without loom.

#[cfg(feature = "loom")]
mod explored;
pub mod work;

#[cfg(feature = "loom")]
pub use explored::{AtomicWaker, Mutex, MutexGuard, RwLock, RwLockWriteGuard, explore};
#[cfg(feature = "loom")]
pub use loom;

#[cfg(not(feature = "loom"))]
pub use atomic_waker::AtomicWaker;
#[cfg(not(feature = "loom"))]
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// The atomic types.
pub mod atomic {
    #[cfg(feature = "loom")]
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    #[cfg(not(feature = "loom"))]
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}
