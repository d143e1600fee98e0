//! The database library panics on some damaged files instead of saying that they are damaged.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::CatalogueError;

/// Does what may come across a damaged file, and makes an error of a panic. Nothing that `work` leaves half done may be used
/// afterwards.
///
/// # Errors
/// Those of `work`, and [`redb::Error::Corrupted`] for a panic.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, CatalogueError>) -> Result<T, CatalogueError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let said = "the database's structure is damaged".to_owned();
        Err(CatalogueError::Database(redb::Error::Corrupted(said)))
    })
}
