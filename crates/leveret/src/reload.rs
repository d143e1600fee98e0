//! SIGHUP: reads the configuration and the files that it names again, and puts into effect what can change while clients
//! are served.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proxy::Pool;
use server::{AccessLogWriter, Door, Server};

use crate::alarms::Levels;
use crate::config::{Config, Effective, Flags};
use crate::logs::LogLevel;
use crate::notify::Notifier;
use crate::signals::ReloadRequests;
use crate::tls::Tls;
use crate::{config, identities, serve};

/// What a reload changes.
pub(crate) struct Reloader {
    pub(crate) flags: Flags,
    /// What is in effect; what cannot change live stays as it was at start.
    pub(crate) effective: Mutex<Effective>,
    pub(crate) log: LogLevel,
    pub(crate) tls: Tls,
    pub(crate) access_log: Option<Arc<AccessLogWriter>>,
    pub(crate) server: Server,
    pub(crate) door: Door,
    /// Of the embedded broker.
    pub(crate) levels: Option<Arc<Levels>>,
    pub(crate) notifier: Notifier,
}

impl Reloader {
    /// Reloads whenever it is asked for.
    pub(crate) async fn serve(self: Arc<Self>, requests: ReloadRequests) {
        loop {
            requests.next().await;
            let this = Arc::clone(&self);
            // A disk may be slow, and sessions are not to wait for it. A reload that panicked has changed nothing.
            let _ = tokio::task::spawn_blocking(move || this.reload()).await;
        }
    }

    /// How long shutting down waits, now.
    pub(crate) fn drain_timeout(&self) -> Duration {
        self.effective.lock().config.drain_timeout
    }

    fn reload(&self) {
        self.notifier.reloading();
        self.read_settings();
        self.tls.reload();
        if let Some(access_log) = &self.access_log {
            access_log.reopen();
        }
        self.notifier.ready();
    }

    /// Reads all layers again. If anything in them is wrong, nothing of them changes.
    fn read_settings(&self) {
        let read = config::load(&self.flags, &|name| std::env::var_os(name));
        let wanted = match read {
            Ok(wanted) => wanted,
            Err(error) => return tracing::error!(%error, "SIGHUP: the configuration stays as it was"),
        };
        let mut effective = self.effective.lock();
        let changed = effective.take_live(&wanted);
        for change in &changed {
            let (key, value) = (change.key, &change.value);
            if change.live {
                tracing::info!(key, value, "SIGHUP: setting changed");
            } else {
                tracing::warn!(key, value, "SIGHUP: this setting changes at the next start only");
            }
        }
        if changed.is_empty() {
            tracing::info!("SIGHUP: no setting has changed");
        }
        let config = effective.config.clone();
        // Files are read below, and others ask for the settings.
        drop(effective);
        self.apply(&config);
    }

    /// Puts into effect what can be, changed or not.
    fn apply(&self, config: &Config) {
        self.log.set(config);
        self.server.set_limits(serve::limits(config));
        if let Some(levels) = &self.levels {
            levels.set_limits(config.memory_high_watermark, config.disk_free_limit);
        }
        if let Door::Upstream(pool) = &self.door {
            read_identities(pool, config);
        }
    }
}

/// Reads the file of upstream credentials again. If it cannot be used, it stays as it was.
fn read_identities(pool: &Pool, config: &Config) {
    let Some(path) = &config.upstream_external.0 else { return };
    match identities::read(path) {
        Ok(identities) => pool.set_identities(identities),
        Err(reason) => tracing::error!(reason, "SIGHUP: upstream credentials stay as they were"),
    }
}
