//! Errors of queue segments.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The file system reported an error. Try again later: no synced data was harmed.
    #[error("{file}: {error}")]
    Io {
        /// The file, relative to the data directory.
        file: String,
        /// The file system's error.
        #[source]
        error: io::Error,
    },
    /// Bytes that were durable have changed.
    #[error("{0}")]
    Damaged(Damage),
    /// Written in a version of the format that this program does not know.
    #[error("{file}: unsupported format version {version}")]
    UnknownVersion {
        /// The file.
        file: String,
        /// Its version.
        version: u8,
    },
    /// A position that is neither above all earlier ones nor live. Either the caller violated the order, or the message was
    /// settled meanwhile.
    #[error("position {position} was appended after {last}")]
    OutOfOrder {
        /// The position.
        position: u64,
        /// The highest that was appended.
        last: u64,
    },
    /// A payload longer than 1 GiB.
    #[error("a message of {bytes} bytes is too long to be stored")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// A location where a segment has changed, and the messages that are lost there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the data directory.
    pub file: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Description of the fault.
    pub what: &'static str,
    /// Positions of which some are lost. After settling them, reads continue after the damage.
    pub lost: RangeInclusive<u64>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at offset {}: {}", self.file, self.offset, self.what)?;
        match (*self.lost.start(), *self.lost.end()) {
            // The contents of a missing file are unknown.
            (0, u64::MAX) => Ok(()),
            (from, to) => write!(f, " (positions {from} to {to})"),
        }
    }
}

/// Adds the file's name to an error of the file system.
pub(super) fn at(file: &str) -> impl FnOnce(io::Error) -> PagesError + '_ {
    move |error| PagesError::Io { file: file.to_owned(), error }
}
