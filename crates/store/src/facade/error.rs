//! Errors of opening a store.

use crate::catalogue::CatalogueError;
use crate::journal::{OpenError, ReadError};
use crate::pages::PagesError;

/// The reason why a data directory cannot be opened, or its messages cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The definitions cannot be read.
    #[error(transparent)]
    Definitions(#[from] CatalogueError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// A message in the journal cannot be read.
    #[error(transparent)]
    Message(#[from] ReadError),
    /// A queue's own segments cannot be read.
    #[error(transparent)]
    Segments(#[from] PagesError),
}

impl StoreError {
    /// Whether data that was once on disk has changed: a repair may help.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Definitions(error) => error.is_damage(),
            Self::Journal(error) => matches!(error, OpenError::Damaged(_)),
            Self::Message(error) => matches!(error, ReadError::Damaged { .. }),
            Self::Segments(error) => matches!(error, PagesError::Damaged(_)),
        }
    }
}
