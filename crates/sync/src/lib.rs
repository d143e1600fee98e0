//! Locks, atomics and wakers of the code that many threads run through at once.
//!
//! They are parking_lot's, the standard library's and atomic-waker's. With the feature `loom` they are loom's instead,
//! with the same interface, so that a test can run the real code through every interleaving that the memory model
//! allows (`make loom`). Such a build does nothing but that.
//!
//! [`work`] counts what a thread does in its turn, so that no connection keeps the others waiting.
//!
//! What must never be added: anything that is not needed in both worlds.

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

/// Atomics.
pub mod atomic {
    #[cfg(feature = "loom")]
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    #[cfg(not(feature = "loom"))]
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}
