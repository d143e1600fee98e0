//! Logs: human-readable lines on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::config::Config;

/// Handle to the log filter, which can change while the process runs.
#[derive(Debug, Clone)]
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Applies the setting `log`, which was validated when it was read.
    pub(crate) fn set(&self, config: &Config) {
        // This fails only if there is no log any more to report the failure.
        let _ = self.0.reload(filter(config));
    }
}

/// Starts logging for the rest of the process.
pub(crate) fn start(config: &Config) -> LogLevel {
    let (filter, handle) = reload::Layer::new(filter(config));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(lines).init();
    LogLevel(handle)
}

/// The filter of the setting `log`, which was validated when it was read.
fn filter(config: &Config) -> EnvFilter {
    EnvFilter::builder().parse_lossy(&config.log.0)
}
