//! The disk storage of the embedded broker: confirmed messages and definitions, which survive a crash.
//!
//! - [`catalogue`]: definitions, in redb.
//! - [`Store`]: combines all parts, for the broker.
//! - [`disk`]: files behind a trait, so that tests can use a disk that loses, tears and reorders unsynced data.
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
