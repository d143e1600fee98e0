//! Locks, atomics and wakers for code that many threads run at once.
//!
//! They are those of parking_lot, the standard library and atomic-waker. With the feature `loom` they are
//! loom's instead, with the same interface, so that a test can run the real code through every interleaving
//! that the memory model allows (`make loom`). Such a build is for these tests only.
//!
//! Each of these locks has a [`Rank`], and debug builds panic when a thread takes one out of order. In a release build
//! the types of locks are aliases of parking_lot's. With the feature `lock-profile` locks also measure how often and how long
//! threads wait for them, and how long they are held (`make lock-profile`), in place of the check in a release build. Debug
//! builds can tell which locks a thread takes, so that a test sees a new one on the path of a message.
//!
//! Counters that many threads add to are [`ShardedCounters`].
//!
//! [`work`] accounts for the work that a thread does in a turn, so that no connection delays the others. [`pace`] does the
//! same for threads that serve no connection. [`BackOff`] computes the pauses between failed attempts.
//!
//! Out of scope: anything that is not needed both with and without loom.

mod back_off;
#[cfg(feature = "loom")]
mod loom_primitives;
pub mod pace;
#[cfg_attr(
    not(feature = "lock-profile"),
    expect(dead_code, reason = "it is checked in every build, and used in one")
)]
pub mod profile;
mod rank;
#[cfg(any(debug_assertions, feature = "loom", feature = "lock-profile"))]
mod ranked;
mod sharded;
#[cfg(any(debug_assertions, feature = "loom", feature = "lock-profile"))]
mod taken;
#[cfg(not(any(debug_assertions, feature = "loom", feature = "lock-profile")))]
mod unchecked;
#[cfg(all(any(debug_assertions, feature = "loom"), not(feature = "lock-profile")))]
mod unmeasured;
#[cfg(not(feature = "loom"))]
mod waker;
pub mod work;

#[cfg(feature = "loom")]
use loom_primitives as unranked;
#[cfg(all(any(debug_assertions, feature = "lock-profile"), not(feature = "loom")))]
use parking_lot as unranked;
#[cfg(feature = "lock-profile")]
use profile as measuring;
#[cfg(all(any(debug_assertions, feature = "loom"), not(feature = "lock-profile")))]
use unmeasured as measuring;

pub use back_off::BackOff;
#[cfg(feature = "loom")]
pub use loom;
#[cfg(feature = "loom")]
pub use loom_primitives::{AtomicWaker, explore, explore_timeouts};
pub use rank::Rank;
#[cfg(any(debug_assertions, feature = "loom", feature = "lock-profile"))]
pub use ranked::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, check_may_take};
pub use sharded::{CachePadded, ShardedCounters, Shards};
#[cfg(any(debug_assertions, feature = "loom", feature = "lock-profile"))]
pub use taken::{TakenLock, locks_taken};
#[cfg(not(any(debug_assertions, feature = "loom", feature = "lock-profile")))]
pub use unchecked::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, check_may_take};
#[cfg(not(feature = "loom"))]
pub use waker::AtomicWaker;

/// The atomic types of `std`, or loom's where a test explores interleavings.
pub mod atomic {
    #[cfg(feature = "loom")]
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    #[cfg(not(feature = "loom"))]
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}
