//! Files that settings name, the data directory excepted. They are read and opened before the running process is replaced,
//! so that a mistake in them does not interrupt the service.

use std::io;
use std::sync::Arc;

use proxy::Identities;
use server::{AccessLogWriter, Clock, LineTarget};

use crate::config::{Config, SettingError};
use crate::identities;
use crate::logins::Logins;
use crate::relays::ServedRelays;
use crate::serve::ServeError;
use crate::tls::Tls;
use crate::{data_dir, definitions};

/// The contents of these files.
pub(crate) struct SettingFiles {
    pub(crate) tls: Tls,
    pub(crate) relays: ServedRelays,
    /// For a broker.
    pub(crate) logins: Logins,
    /// For a pool.
    pub(crate) identities: Arc<Identities>,
    pub(crate) access_log: Option<Arc<AccessLogWriter>>,
}

impl SettingFiles {
    /// Reads them, and opens the access log.
    ///
    /// # Errors
    ///
    /// One of them cannot be used.
    pub(crate) fn open(config: &Config, clock: Clock) -> Result<Self, ServeError> {
        let mut files = Self::read(config, clock)?;
        if let Some(target) = &config.access_log.0 {
            let writer = AccessLogWriter::start(target.clone(), config.access_log_format);
            files.access_log = Some(Arc::new(writer.map_err(|error| access_log_error(target, error))?));
        }
        Ok(files)
    }

    /// Looks for a mistake in these files, and in those that a broker reads with its data directory. Creates nothing.
    ///
    /// # Errors
    ///
    /// One of them cannot be used.
    pub(crate) fn check(config: &Config) -> Result<(), ServeError> {
        definitions::check(config, |_| Ok(None))?;
        Self::read(config, Clock::start())?;
        data_dir::check(config)?;
        let Some(target) = &config.access_log.0 else { return Ok(()) };
        target.check().map_err(|error| access_log_error(target, error))
    }

    fn read(config: &Config, clock: Clock) -> Result<Self, ServeError> {
        let tls = Tls::load(config).map_err(ServeError::Setting)?;
        let relays = ServedRelays::new(config, &tls)?;
        let is_broker = config.upstream.is_empty();
        let logins = if is_broker { Logins::read(config, clock) } else { Ok(Logins::default()) };
        let logins = logins.map_err(ServeError::Setting)?;
        let identities = config.upstream_external.0.as_deref().map(identities::read).transpose();
        let identities = identities.map_err(ServeError::Setting)?.unwrap_or_default();
        Ok(Self { tls, relays, logins, identities: Arc::new(identities), access_log: None })
    }
}

/// The error of an access log that cannot be written, which names the file.
fn access_log_error(target: &LineTarget, error: io::Error) -> ServeError {
    let error = SettingError::new("access_log", error);
    ServeError::Setting(match target {
        LineTarget::File(path) => error.about(path.display()),
        _ => error,
    })
}
