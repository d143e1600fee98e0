//! What can go wrong with queue segments.

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;

/// Why something could not be done.
#[derive(Debug)]
pub enum PagesError {
    /// The file system refused. To be tried again later: nothing synced was harmed.
    Io {
        /// Which file, relative to the data folder.
        file: String,
        /// What it said.
        error: io::Error,
    },
    /// Bytes that were durable once are not what was written.
    Damaged(Damage),
    /// Written by a newer version of this program.
    Newer {
        /// Which file.
        file: String,
        /// Its version.
        version: u8,
    },
    /// A position that is not above all that were appended, and that is not live. Positions ascend: the caller's fault,
    /// or the message was settled meanwhile.
    OutOfOrder {
        /// The position.
        position: u64,
        /// The highest that was appended.
        last: u64,
    },
    /// A payload longer than 1 GiB.
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// A place where a segment is not what was written, and the messages that are lost there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which file, relative to the data folder.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: &'static str,
    /// Positions of which some are lost. Settling them lets reading go on behind the damage.
    pub lost: RangeInclusive<u64>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.lost.start(), self.lost.end());
        write!(
            f,
            "{} is damaged at offset {}: {} (positions {from} to {to})",
            self.file, self.offset, self.what
        )
    }
}

impl fmt::Display for PagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, error } => write!(f, "{file}: {error}"),
            Self::Damaged(damage) => damage.fmt(f),
            Self::Newer { file, version } => {
                write!(f, "{file} was written by a newer version (format {version})")
            }
            Self::OutOfOrder { position, last } => write!(f, "position {position} was appended after {last}"),
            Self::TooLong { bytes } => write!(f, "a message of {bytes} bytes is too long to be stored"),
        }
    }
}

impl Error for PagesError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Says which file an error of the file system is about.
pub(super) fn at(file: &str) -> impl FnOnce(io::Error) -> PagesError + '_ {
    move |error| PagesError::Io { file: file.to_owned(), error }
}
