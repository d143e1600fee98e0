//! Messages on disk: how they are written, and how they come back.
//!
//! A persistent message is written down when it goes to a durable queue of a broker with a store; in memory it is as well. What
//! becomes of it is noted by its position in the queue.

mod filling;
mod kept;
mod marks;
mod paged;
mod payload;
mod restore;

pub(crate) use kept::{Keeping, Kept, KeptMessages};
pub(crate) use marks::Marks;
pub(crate) use paged::{Loaded, PagingError, load, write};
pub use payload::body_bytes;
pub use restore::RestoreError;
pub(crate) use restore::Restored;
