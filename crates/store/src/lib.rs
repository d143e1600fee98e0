//! The disk of the embedded broker: confirmed messages and definitions are here, and come back after a crash.
//!
//! - [`catalogue`]: definitions, in redb.
//! - [`Store`]: everything together, as the broker sees it.
//! - [`disk`]: files behind a trait, so that tests can run on a disk that loses, tears and reorders unsynced data.
//! - [`journal`]: messages of durable queues, and the events that affect them, in one append-only log.
//! - [`pages`]: messages of a queue that have left the journal, or were paged out of memory.
//!
//! Never add protocols, queues or routing here. This crate knows records, numbers and bytes.

pub mod catalogue;
pub mod disk;
mod facade;
pub mod journal;
mod lock;
pub mod pages;
mod waiters;

pub use facade::{
    AnswerQueue, Appended, CheckReport, DiskPoint, Recovered, RecoveredQueue, Retirement, Rounds,
    RunningStore, Store, StoreError, StoreSettings, StoredLocation, StoredQueue, check, repair,
};
pub use lock::{DirectoryLock, LockError};
pub use waiters::{WaitList, Waiter};
