//! parking_lot's locks, for release builds, in which ranks cost nothing.

pub use parking_lot::Condvar;

/// A mutex of a [`Rank`](crate::Rank).
pub type Mutex<T, const RANK: u8> = parking_lot::Mutex<T>;

/// The guard of [`Mutex`].
pub type MutexGuard<'a, T, const RANK: u8> = parking_lot::MutexGuard<'a, T>;

/// A reader-writer lock of a [`Rank`](crate::Rank).
pub type RwLock<T, const RANK: u8> = parking_lot::RwLock<T>;

/// The guard of a reader.
pub type RwLockReadGuard<'a, T, const RANK: u8> = parking_lot::RwLockReadGuard<'a, T>;

/// The guard of a writer.
pub type RwLockWriteGuard<'a, T, const RANK: u8> = parking_lot::RwLockWriteGuard<'a, T>;

/// Does nothing; checks the order of locks in a debug build.
#[inline]
pub fn check_may_take(_: crate::Rank) {}
