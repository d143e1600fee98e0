//! The spool's directory: its broker, and the watch over its disk.

use std::sync::{Arc, Weak};

use broker::Compatibility;
use server::{Backend, Clock, Spool, SpoolConfig};

use crate::alarms::{Levels, Sampler};
use crate::config::{Config, SettingError, Unsuitable};
use crate::data_dir::{self, DataDirectory};
use crate::pagers::Pagers;
use crate::serve::{NewBroker, ServeError, start_timer};
use crate::stored_clock::StoredClock;

/// The directory within `data_dir`.
pub(crate) const DIR: &str = "spool";

/// The file of accepted logins within that directory.
const LOGINS: &str = "logins";

/// Memory in bytes above which the spool's messages are only on disk: they are not needed in memory while the upstream is
/// unreachable, and a long outage must not take more.
const PAGING_WATERMARK: u64 = 64 << 20;

/// A running spool on its directory. Dropping it writes the last changes.
pub(crate) struct SpoolDirectory {
    spool: Arc<Spool>,
    /// Raises the alarms of memory and disk.
    sampler: Sampler,
    directory: DataDirectory,
}

impl SpoolDirectory {
    /// Opens the spool if there is a rule for it.
    ///
    /// # Errors
    ///
    /// The directory cannot be used.
    pub(crate) fn open(config: &Config, backend: &Backend, clock: Clock) -> Result<Option<Self>, ServeError> {
        let Backend::Upstream(pool) = backend else { return Ok(None) };
        let data_dir = config.data_dir.directory();
        if config.spool.0.is_empty() {
            if let Ok(Some(data_dir)) = data_dir
                && data_dir.join(DIR).exists()
            {
                tracing::warn!(directory = %data_dir.display(), "no spool rule is set: messages in the spool are not forwarded");
            }
            return Ok(None);
        }
        let at_fault = |error| ServeError::DataDirectory(SettingError::new("data_dir", error));
        // A rule without a directory is refused as a mistake of the configuration.
        let Some(data_dir) = data_dir.map_err(at_fault)? else { return Ok(None) };
        let path = data_dir.join(DIR);
        let NewBroker { broker, changed, notifier } =
            NewBroker::create(PAGING_WATERMARK, Compatibility::default(), clock);
        let mut directory = data_dir::fill_spool(&broker, &path, config.disk_free_limit.0, clock)?;
        directory.keep(Pagers::start(&broker, notifier, clock).map_err(ServeError::Pagers)?);
        start_timer(&broker, changed, clock);
        let settings = SpoolConfig {
            rules: config.spool.0.clone(),
            max_bytes: config.spool_max_bytes.0,
            max_age: config.spool_max_age,
            nacked_max: Some(config.spool_nacked_max).filter(|max| !max.is_zero()),
            refuses_others: config.spool_unsuitable == Unsuitable::Refuse,
            auth_max: config.spool_auth_max,
            logins: Some(path.join(LOGINS)),
            // Larger ones go directly, and are refused there.
            max_message: config
                .max_message_size
                .0
                .map_or(u64::MAX, |most| most.0)
                .min(config.spool_message_max.0),
        };
        let spool = Spool::start(Arc::clone(&broker), pool, clock, settings).map_err(ServeError::Spool)?;
        let (watermark, disk_free_limit) = (config.memory_high_watermark, config.disk_free_limit);
        let alarms = Arc::clone(spool.alarms());
        let sampler = Sampler::start(alarms, watermark, disk_free_limit, Some(path), broker);
        let sampler = sampler.map_err(ServeError::Sampler)?;
        Ok(Some(Self { spool, sampler, directory }))
    }

    /// The levels of its alarms for memory and disk.
    pub(crate) fn levels(&self) -> &Arc<Levels> {
        self.sampler.levels()
    }

    /// The clock of its directory.
    pub(crate) fn clock(&self) -> Weak<StoredClock> {
        self.directory.clock()
    }

    pub(crate) fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }
}
