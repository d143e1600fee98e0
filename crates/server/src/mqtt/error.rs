//! Errors of MQTT sessions.

use std::error::Error;
use std::fmt;

use broker::{BrokerError, CatalogueError, LoginRefused};

use super::message::Untold;

/// The reason why the stored sessions and retained messages cannot be restored.
#[derive(Debug)]
pub enum MqttRestoreError {
    /// The store cannot be read.
    Catalogue(CatalogueError),
    /// A session or a retained message has an unknown form. Its key in the store, escaped.
    UnknownForm(String),
}

/// The reason why a will was not published.
#[derive(Debug)]
pub(super) enum WillError {
    /// The user does not exist any more.
    Login(LoginRefused),
    /// The virtual host or the exchange is closed to the user.
    Refused(BrokerError),
    Untold(Untold),
    /// The will was published but not retained.
    NotRetained,
}

impl From<CatalogueError> for MqttRestoreError {
    fn from(error: CatalogueError) -> Self {
        Self::Catalogue(error)
    }
}

impl fmt::Display for MqttRestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Catalogue(error) => error.fmt(f),
            Self::UnknownForm(key) => write!(f, "mqtt: '{key}' cannot be read"),
        }
    }
}

impl Error for MqttRestoreError {
    // The message is that of the inner error, so that one is not repeated as a source.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Catalogue(error) => error.source(),
            Self::UnknownForm(_) => None,
        }
    }
}

impl fmt::Display for WillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Login(error) => error.fmt(f),
            Self::Refused(error) => error.fmt(f),
            Self::Untold(untold) => f.write_str(untold.text),
            Self::NotRetained => f.write_str("too much is retained"),
        }
    }
}

impl Error for WillError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Login(error) => error.source(),
            Self::Refused(error) => error.source(),
            Self::Untold(_) | Self::NotRetained => None,
        }
    }
}
