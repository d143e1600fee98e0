//! Why the file or folder that a setting names cannot be used.

use std::error::Error;
use std::fmt;

/// A setting whose file or folder cannot be used. Its text begins with the key.
#[derive(Debug)]
pub(crate) struct SettingError {
    key: &'static str,
    /// The file, the folder or the relay, unless the source names it.
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

impl fmt::Display for SettingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, subject, source } = self;
        match subject {
            Some(subject) => write!(formatter, "{key}: {subject}: {source}"),
            None => write!(formatter, "{key}: {source}"),
        }
    }
}

impl Error for SettingError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
