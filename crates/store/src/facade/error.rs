//! Errors of opening a store.

use std::fmt;

use crate::catalogue::CatalogueError;
use crate::journal::{OpenError, ReadError};
use crate::pages::PagesError;

/// The reason why a data folder cannot be opened, or its messages cannot be read.
#[derive(Debug)]
pub enum StoreError {
    /// The definitions cannot be read.
    Definitions(CatalogueError),
    /// The journal cannot be opened.
    Journal(OpenError),
    /// A message in the journal cannot be read.
    Message(ReadError),
    /// A queue's own segments cannot be read.
    Segments(PagesError),
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

impl From<CatalogueError> for StoreError {
    fn from(error: CatalogueError) -> Self {
        Self::Definitions(error)
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        Self::Journal(error)
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        Self::Message(error)
    }
}

impl From<PagesError> for StoreError {
    fn from(error: PagesError) -> Self {
        Self::Segments(error)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definitions(error) => error.fmt(into),
            Self::Journal(error) => error.fmt(into),
            Self::Message(error) => error.fmt(into),
            Self::Segments(error) => error.fmt(into),
        }
    }
}

impl std::error::Error for StoreError {
    // The message is that of the inner error, so that one is not repeated as a source.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Definitions(error) => error.source(),
            Self::Journal(error) => error.source(),
            Self::Message(error) => error.source(),
            Self::Segments(error) => error.source(),
        }
    }
}
