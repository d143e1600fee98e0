//! RabbitMQ's definitions files (RabbitMQ, "Definition Export and Import"): users, virtual hosts, permissions,
//! policies, limits, queues, exchanges and bindings as JSON.

mod arguments;
mod check;
mod error;
mod existing;
mod format;
mod load;
mod loaded;
mod restore;

use serde_json::{Map, Value};

pub use arguments::{NullNotAllowed, json_of, table_of as arguments_of};
pub use error::DefinitionsError;
use format::DefinitionsFile;
pub use loaded::LoadedDefinitions;

/// A definitions file that has been read and is well-formed, to be loaded with [`crate::Broker::load`].
#[derive(Debug, Clone)]
pub struct Definitions {
    file: DefinitionsFile,
}

impl Definitions {
    /// Reads a definitions file.
    ///
    /// # Errors
    /// The file is not JSON, or an entry is malformed.
    pub fn from_json(bytes: &[u8]) -> Result<Self, DefinitionsError> {
        DefinitionsFile::parse(bytes).map(|file| Self { file })
    }

    /// Reads the sections of a definitions file.
    ///
    /// # Errors
    /// An entry is malformed.
    pub fn from_map(sections: &Map<String, Value>) -> Result<Self, DefinitionsError> {
        DefinitionsFile::from_map(sections).map(|file| Self { file })
    }

    /// Keys of the file that are not sections, such as `queue` for `queues`. They are ignored, as in RabbitMQ.
    pub(crate) fn unknown_sections(&self) -> &[String] {
        &self.file.unknown
    }
}

impl Definitions {
    /// The contents of a new broker: a virtual host, and a user with full permissions in it, an administrator.
    pub fn first(user: &str, password: &str, vhost: &str) -> Self {
        Self { file: DefinitionsFile::first(user, password, vhost) }
    }
}

#[cfg(test)]
mod tests;
