//! Logs: human-readable lines on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::Config;

/// Starts logging for the rest of the process. `log` was checked when it was read.
pub(crate) fn start(config: &Config) {
    let filter = EnvFilter::builder().parse_lossy(&config.log.0);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
