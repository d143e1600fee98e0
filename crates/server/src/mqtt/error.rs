//! Errors of MQTT sessions.

use broker::{BrokerError, CatalogueError, LoginRefused};

use super::message::ConversionError;

/// The reason why the stored sessions and retained messages cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum MqttRestoreError {
    /// The store cannot be read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// A session or a retained message has an unknown form. Its key in the store, escaped.
    #[error("mqtt: '{0}' cannot be read")]
    UnknownForm(String),
}

/// The reason why a will was not published.
#[derive(Debug, thiserror::Error)]
pub(super) enum WillError {
    /// The user's rights have ended.
    #[error("the user's token has expired")]
    Expired,
    /// The user does not exist any more.
    #[error(transparent)]
    Login(LoginRefused),
    /// The virtual host or the exchange is closed to the user.
    #[error(transparent)]
    Refused(BrokerError),
    #[error("{}", .0.text)]
    ConversionError(ConversionError),
    /// The will was published but not retained.
    #[error("retained message limit reached")]
    NotRetained,
}
