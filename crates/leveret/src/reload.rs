//! SIGHUP: reads the configuration and the files that it names again, and applies the changes that are possible
//! while clients are served.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use server::{AccessLogWriter, Backend, Limits, Server};

use crate::alarms::Levels;
use crate::config::{Config, Effective, Environment, Flags, SettingError};
use crate::logins::Logins;
use crate::logs::ProcessLog;
use crate::notify::Notifier;
use crate::signals::{ActionRequests, DrainReason};
use crate::takeover::Upgrades;
use crate::tls::Tls;
use crate::{config, descriptors, identities, serve};

/// The parts of the process that a reload changes.
pub(crate) struct Reloader {
    pub(crate) flags: Flags,
    /// The settings in effect; those that cannot change live stay as they were at start.
    pub(crate) effective: Mutex<Effective>,
    pub(crate) log: ProcessLog,
    pub(crate) tls: Tls,
    pub(crate) access_log: Option<Arc<AccessLogWriter>>,
    pub(crate) server: Server,
    pub(crate) backend: Backend,
    /// Alarm levels of the embedded broker.
    pub(crate) levels: Option<Arc<Levels>>,
    /// Alarm levels of the spool.
    pub(crate) spool_levels: Option<Arc<Levels>>,
    pub(crate) notifier: Notifier,
    pub(crate) upgrades: Arc<Upgrades>,
    pub(crate) logins: Logins,
}

/// Maximum duration of each step of a drain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainTimes {
    /// Clients are served and accepted as before.
    pub(crate) delay: Duration,
    /// Clients are asked to leave, one after the other.
    pub(crate) spread: Duration,
    /// The last clients leave.
    pub(crate) timeout: Duration,
    /// How much of that a spool waits for the upstream's confirms, and the pool behind it for its closes.
    pub(crate) answers: Duration,
}

/// How long the upstream's answers are waited for while a successor waits for the spool's directory, and all publishers for the
/// successor. Unconfirmed messages are on disk, and forwarded again.
const ANSWERS_FOR_SUCCESSOR: Duration = Duration::from_secs(1);

impl DrainTimes {
    /// All steps together.
    pub(crate) fn total(&self) -> Duration {
        self.delay.saturating_add(self.spread).saturating_add(self.timeout)
    }
}

impl Reloader {
    /// Reloads on every request.
    pub(crate) async fn serve(self: Arc<Self>, requests: ActionRequests) {
        loop {
            requests.next().await;
            let this = Arc::clone(&self);
            // A disk may be slow, and sessions must not wait for it. A reload that panics is abandoned.
            let _ = tokio::task::spawn_blocking(move || this.reload()).await;
        }
    }

    /// The times now in effect of a drain for this reason. Behind a successor nobody has to be sent elsewhere first, and one
    /// that waits makes all clients wait.
    pub(crate) fn drain_times(&self, reason: DrainReason) -> DrainTimes {
        let effective = self.effective.lock();
        let Config { drain_delay, drain_spread, drain_timeout, .. } = effective.config;
        let (delay, spread, answers) = match reason {
            DrainReason::Asked => (drain_delay, drain_spread, drain_timeout),
            DrainReason::TakenOver { at_once: false } => (Duration::ZERO, drain_spread, drain_timeout),
            DrainReason::CutOver => (Duration::ZERO, Duration::ZERO, drain_timeout),
            DrainReason::TakenOver { at_once: true } => {
                (Duration::ZERO, Duration::ZERO, drain_timeout.min(ANSWERS_FOR_SUCCESSOR))
            }
        };
        DrainTimes { delay, spread, timeout: drain_timeout, answers }
    }

    /// The limits on clients that these settings make.
    pub(crate) fn limits(&self, config: &Config) -> Limits {
        serve::limits(config, self.is_pool())
    }

    /// Whether there is an upstream: a migration may have set it, and not the settings.
    fn is_pool(&self) -> bool {
        matches!(self.backend, Backend::Upstream(_))
    }

    fn reload(&self) {
        self.notifier.reloading();
        self.read_settings();
        if let Err(error) = self.read_files() {
            tracing::error!(%error, "SIGHUP: files not reloaded, the previous contents of all stay in use");
        }
        self.logins.reload();
        if let Some(access_log) = &self.access_log {
            access_log.reopen();
        }
        self.notifier.ready();
        self.upgrades.start_if_replaced();
    }

    /// Reads all layers again. If there is a mistake in any of them, no setting changes.
    fn read_settings(&self) {
        let read = config::load(&self.flags, &Environment::of_process());
        let wanted = match read {
            Ok(wanted) => wanted,
            Err(error) => return tracing::error!(%error, "SIGHUP: configuration not reloaded"),
        };
        let mut effective = self.effective.lock();
        let changed = effective.take_live(&wanted);
        for change in &changed {
            let (key, value) = (change.key, &change.value);
            if change.live {
                tracing::info!(key, value, "SIGHUP: setting changed");
            } else {
                tracing::warn!(key, value, "SIGHUP: setting changes on restart only");
            }
        }
        if changed.is_empty() {
            tracing::info!("SIGHUP: no setting changed");
        }
        let config = effective.config.clone();
        // Unlock before files are read: others need the settings.
        drop(effective);
        self.apply(&config);
    }

    /// Applies all live settings, whether they have changed or not.
    fn apply(&self, config: &Config) {
        self.log.set(config);
        descriptors::reserve(config, self.is_pool());
        self.server.set_limits(self.limits(config));
        for levels in self.levels.iter().chain(&self.spool_levels) {
            levels.set_limits(config.memory_high_watermark, config.disk_free_limit);
        }
    }

    /// Reads the TLS files and that of upstream credentials again. All are read before one takes effect.
    fn read_files(&self) -> Result<(), SettingError> {
        let path = self.effective.lock().config.upstream_external.0.clone();
        let identities = path.as_deref().map(identities::read).transpose()?;
        let tls = self.tls.prepare_reload(self.logins.service_tls())?;
        if let (Backend::Upstream(pool), Some(identities)) = (&self.backend, identities) {
            pool.set_identities(identities);
        }
        tls.apply();
        Ok(())
    }
}
