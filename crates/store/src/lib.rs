//! The disk of the embedded broker: what is confirmed is here, and comes back after a crash.
//!
//! - [`catalogue`]: definitions, in redb.
//! - [`Store`]: all of it together, as the broker sees it.
//! - [`disk`]: files behind a trait, so that tests can run on a disk that loses, tears and reorders what was not synced.
//! - [`journal`]: messages of durable queues, and what happens to them, in one append-only log.
//! - [`pages`]: messages of a queue that have left the journal, or were paged out of memory.
//!
//! What must never be added: protocols, queues, routing. This crate knows records, numbers and bytes.

pub mod catalogue;
pub mod disk;
mod facade;
pub mod journal;
mod lock;
pub mod pages;
mod waiters;

pub use facade::{
    Appended, CheckReport, Place, Recovered, RecoveredQueue, Retirement, Rounds, Running, Store, StoreError,
    StoreSettings, StoredQueue, check, repair,
};
pub use lock::{FolderLock, LockError};
pub use waiters::Waiter;
