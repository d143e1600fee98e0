//! The definitions file that the embedded broker starts with.

use std::error::Error;
use std::path::{Path, PathBuf};

use broker::{Broker, Definitions, Timestamp};

use crate::config::{Config, SettingError};

/// Definitions and the file they were read from.
#[derive(Debug)]
pub(crate) struct DefinitionsFile {
    path: PathBuf,
    definitions: Definitions,
}

/// Reads the file named by the setting `definitions`, if any.
///
/// # Errors
///
/// The file cannot be read, or an entry of it is wrong.
pub(crate) fn read(config: &Config) -> Result<Option<DefinitionsFile>, SettingError> {
    let Some(path) = &config.definitions.0 else { return Ok(None) };
    let bytes = std::fs::read(path).map_err(|error| at_fault(path, error))?;
    let definitions = Definitions::from_json(&bytes).map_err(|error| at_fault(path, error))?;
    Ok(Some(DefinitionsFile { path: path.clone(), definitions }))
}

impl DefinitionsFile {
    /// Loads the definitions into the broker.
    ///
    /// # Errors
    ///
    /// An entry contradicts the broker's state, or cannot be stored.
    pub(crate) fn load_into(&self, broker: &Broker, now: Timestamp) -> Result<(), SettingError> {
        broker.load(&self.definitions, now).map_err(|error| at_fault(&self.path, error))
    }
}

fn at_fault(path: &Path, error: impl Error + Send + Sync + 'static) -> SettingError {
    SettingError::new("definitions", error).about(path.display())
}
