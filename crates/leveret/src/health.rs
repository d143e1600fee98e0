//! `leveret health`: probes a server running on this machine, for containers without another HTTP client.

use std::time::Duration;

use clap::Args;
use hyper::Method;
use transport::tls::ClientTlsConfig;

use crate::cli::FindingFlags;
use crate::config::Effective;
use crate::http_client::{Ask, HttpClient};
use crate::{Failure, ctl, http_address};

/// How to ask.
#[derive(Debug, Args)]
#[command(
    after_help = "All other flags of `leveret serve` are accepted as well, so that the server's own can be given."
)]
pub(crate) struct HealthArguments {
    /// Ask whether clients should be sent to it (/readyz), instead of whether it is alive (/healthz)
    #[arg(long)]
    ready: bool,
    /// The settings of the server, of which `http` says where it is, or `https` where that is off.
    #[command(flatten)]
    pub(crate) flags: FindingFlags,
}

/// Longer than a live server ever takes, and shorter than the timeouts of the programs that run this command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Probes the server. The exit code follows from the result.
pub(crate) fn run(arguments: &HealthArguments, effective: &Effective) -> Result<(), Failure> {
    let found = if http_address::is_configured(effective) { None } else { ctl::leveret() };
    let endpoint =
        found.map_or_else(|| http_address::endpoint(&effective.config), Ok).map_err(Failure::usage)?;
    let client = HttpClient::new(endpoint, BELIEVING, TIMEOUT).map_err(Failure::run)?;
    let path = if arguments.ready { "/readyz" } else { "/healthz" };
    let ask = Ask { method: Method::GET, path, body: None, header: None };
    let answer =
        client.ask(ask).map_err(|error| Failure::Run(format!("{}{path}: {error}", client.endpoint())))?;
    match answer.status {
        200 => Ok(()),
        status => {
            let reported = String::from_utf8_lossy(&answer.body);
            Err(Failure::Run(format!("{}{path}: {status} {}", client.endpoint(), reported.trim())))
        }
    }
}

/// Certificates are not verified: the server's is issued for its public name, not for a local address, and the
/// probe transmits nothing confidential.
const BELIEVING: ClientTlsConfig =
    ClientTlsConfig { ca: None, certificate: None, server_name: None, verify: false };
