//! The definitions file that the embedded broker starts with.

use std::path::{Path, PathBuf};

use broker::{Broker, Definitions, Timestamp};

use crate::config::Config;

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
/// A line that begins with the key and the file, and names the entry at fault.
pub(crate) fn read(config: &Config) -> Result<Option<DefinitionsFile>, String> {
    let Some(path) = &config.definitions.0 else { return Ok(None) };
    let bytes = std::fs::read(path).map_err(|error| at_fault(path, &error))?;
    let definitions = Definitions::from_json(&bytes).map_err(|error| at_fault(path, &error))?;
    Ok(Some(DefinitionsFile { path: path.clone(), definitions }))
}

impl DefinitionsFile {
    /// Loads the definitions into the broker.
    ///
    /// # Errors
    ///
    /// As [`read`].
    pub(crate) fn load_into(&self, broker: &Broker, now: Timestamp) -> Result<(), String> {
        broker.load(&self.definitions, now).map_err(|error| at_fault(&self.path, &error))
    }
}

fn at_fault(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("definitions: {}: {error}", path.display())
}
