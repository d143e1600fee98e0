//! Errors in definitions.

use std::error::Error;
use std::fmt;

/// An error in definitions. `Display` names the entry at fault.
#[derive(Debug)]
pub struct DefinitionsError {
    /// Empty if the file as a whole is at fault.
    entry: String,
    reason: EntryError,
}

/// The reason why an entry, or a file, cannot be loaded.
#[derive(Debug)]
pub(super) enum EntryError {
    /// Another error: of parsing the entry, of what it declares, or of the store.
    Cause(Box<dyn Error + Send + Sync>),
    NotAList,
    /// A name of this many bytes.
    LongName(usize),
    /// Another text that travels as a short string.
    LongText {
        what: &'static str,
        bytes: usize,
    },
    NoVirtualHost(String),
    NoUser(String),
    NoComponent(String),
    /// `max-queues`, which only virtual hosts have.
    UserLimit,
    /// `max-channels`, which only users have.
    VirtualHostLimit,
    /// `vhost-limits` under another name than `limits`.
    LimitsName(String),
    /// A default queue type that is not supported, such as `stream`.
    DefaultQueueType(String),
    /// The store has an entry of an unknown form.
    Unreadable,
}

impl DefinitionsError {
    pub(super) fn new(entry: impl Into<String>, reason: EntryError) -> Self {
        Self { entry: entry.into(), reason }
    }
}

impl fmt::Display for DefinitionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.entry.is_empty() {
            return self.reason.fmt(f);
        }
        write!(f, "{}: {}", self.entry, self.reason)
    }
}

impl Error for DefinitionsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.reason {
            EntryError::Cause(error) => Some(&**error),
            _ => None,
        }
    }
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cause(error) => error.fmt(f),
            Self::NotAList => f.write_str("not a list"),
            Self::LongName(bytes) => write!(f, "a name of {bytes} bytes, but {MAX_NAME} are the most"),
            Self::LongText { what, bytes } => {
                write!(f, "{what} has {bytes} bytes, but {MAX_NAME} are the most")
            }
            Self::NoVirtualHost(name) => write!(f, "vhost '{name}' does not exist"),
            Self::NoUser(name) => write!(f, "user '{name}' does not exist"),
            Self::NoComponent(name) => write!(f, "component '{name}' does not exist"),
            Self::UserLimit => f.write_str("limits: max-queues is not a limit of users"),
            Self::VirtualHostLimit => f.write_str("max-channels is not a limit of virtual hosts"),
            Self::LimitsName(name) => write!(f, "vhost-limits are under the name 'limits', not '{name}'"),
            Self::DefaultQueueType(kind) => {
                write!(f, "default_queue_type: there are no queues of type '{kind}'")
            }
            Self::Unreadable => f.write_str("cannot be read"),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for EntryError {
    fn from(error: E) -> Self {
        Self::Cause(Box::new(error))
    }
}

/// The longest name or key, as everywhere in AMQP, in bytes.
pub(super) const MAX_NAME: usize = 255;
