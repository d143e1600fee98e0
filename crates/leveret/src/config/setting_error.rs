//! Why the file or directory that a setting names cannot be used.

use std::error::Error;
use std::fmt;

/// A setting whose file or directory cannot be used. Its text begins with the key.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {}{source}", subject.as_ref().map(|subject| format!("{subject}: ")).unwrap_or_default())]
pub(crate) struct SettingError {
    key: &'static str,
    /// The file, the directory or the relay, unless the source names it.
    subject: Option<String>,
    source: Box<dyn Error + Send + Sync>,
}

impl SettingError {
    pub(crate) fn new(key: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { key, subject: None, source: source.into() }
    }

    /// Names the subject.
    pub(crate) fn about(self, subject: impl fmt::Display) -> Self {
        Self { subject: Some(subject.to_string()), ..self }
    }
}
