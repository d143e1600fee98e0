//! Logs: human-readable lines on standard error.

mod repeats;

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

use self::repeats::{Collapse, Repeats};
use crate::config::Config;

/// Handle to the log filter, which can change while the process runs.
#[derive(Debug, Clone)]
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Registry>, Arc<Repeats>);

/// How long equal warnings are only counted, before their number is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

impl LogLevel {
    /// Applies the setting `log`, which was validated when it was read.
    pub(crate) fn set(&self, config: &Config) {
        // This fails only if there is no log any more to report the failure.
        let _ = self.0.reload(filter(config));
    }

    /// Logs how often warnings were repeated since the last call.
    pub(crate) fn report_repeats(&self) {
        self.1.report();
    }

    /// Does so again and again.
    pub(crate) async fn keep_reporting(self) {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            self.report_repeats();
        }
    }
}

/// Starts logging for the rest of the process.
pub(crate) fn start(config: &Config) -> LogLevel {
    let (filter, handle) = reload::Layer::new(filter(config));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let repeats = Arc::new(Repeats::default());
    let lines = lines.with_filter(Collapse(Arc::clone(&repeats)));
    tracing_subscriber::registry().with(filter).with(lines).init();
    LogLevel(handle, repeats)
}

/// The filter of the setting `log`, which was validated when it was read.
fn filter(config: &Config) -> EnvFilter {
    EnvFilter::builder().parse_lossy(&config.log.0)
}
