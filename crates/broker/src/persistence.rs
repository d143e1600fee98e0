//! Storage of messages on disk, and their restoration.
//!
//! A persistent message is stored when it enters a durable queue of a broker with a store; it is in memory as
//! well. Later records refer to it by its position in the queue.

mod filling;
mod marks;
mod paged;
mod payload;
mod restore;
mod stored_batch;

pub(crate) use marks::Marks;
pub(crate) use paged::{Loaded, PagingError, load, write};
pub use payload::body_bytes;
pub use restore::RestoreError;
pub(crate) use restore::Restored;
pub(crate) use stored_batch::{LastStoring, QueueAppend, QueueBatch, StoredBatch};
