//! The database library panics on some damaged files instead of reporting the damage.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::CatalogueError;

/// Runs `work`, which may read a damaged file, and turns a panic into an error. Nothing that `work` leaves half done
/// may be used afterwards.
///
/// # Errors
/// Errors of `work`, and [`redb::Error::Corrupted`] for a panic.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, CatalogueError>) -> Result<T, CatalogueError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let said = "the database's structure is damaged".to_owned();
        Err(CatalogueError::Database(redb::Error::Corrupted(said)))
    })
}
