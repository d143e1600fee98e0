//! `leveret health`: probes a server running on this machine, for containers without another HTTP client.

use std::time::Duration;

use clap::Args;
use hyper::Method;
use transport::tls::ClientTlsConfig;

use crate::Failure;
use crate::config::{Config, Effective, Flags, ListenAddr, ValueError};
use crate::http_client::{Ask, Endpoint, HttpClient};

/// How to ask.
#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// Ask whether clients should be sent to it (/readyz), instead of whether it is alive (/healthz)
    #[arg(long)]
    ready: bool,
    /// The settings of the server, of which `http` tells where it is, or `https` where that is off.
    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// Longer than a live server ever takes, and shorter than the time-outs of the programs that run this command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Probes the server. The exit code follows from the result.
pub(crate) fn run(arguments: &HealthArguments, effective: &Effective) -> Result<(), Failure> {
    let Config { http, https, .. } = &effective.config;
    let is_tls = *http == ListenAddr::Off && matches!(https, ListenAddr::Tcp { .. } | ListenAddr::Several(_));
    let (key, listen) = if is_tls { ("https", https) } else { ("http", http) };
    let endpoint = endpoint(listen, is_tls).map_err(|error| Failure::Usage(format!("{key}: {error}")))?;
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
    ClientTlsConfig { authorities: None, certificate: None, server_name: None, verify: false };

/// The endpoint at which a server with this listener is reached from the same machine.
fn endpoint(listen: &ListenAddr, tls: bool) -> Result<Endpoint, ValueError> {
    match listen {
        ListenAddr::Off => Err("is off".into()),
        ListenAddr::Tcp { port: 0, .. } => Err("is port 0, chosen by the system".into()),
        ListenAddr::Several(several) => endpoint(&several[0], tls),
        ListenAddr::Unix(path) => Ok(Endpoint::Unix(path.clone())),
        ListenAddr::Tcp { host, port } => {
            let host = match host.as_str() {
                "0.0.0.0" => "127.0.0.1",
                "::" => "::1",
                host => host,
            };
            Ok(Endpoint::Host { host: host.to_owned(), port: *port, tls, prefix: String::new() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_every_address_is_found_on_the_one_of_this_machine() {
        let found = |host: &str| {
            let listen = ListenAddr::Tcp { host: host.to_owned(), port: 15672 };
            endpoint(&listen, false).unwrap().to_string()
        };
        assert_eq!(found("0.0.0.0"), "http://127.0.0.1:15672");
        assert_eq!(found("::"), "http://[::1]:15672");
        assert_eq!(found("10.0.0.1"), "http://10.0.0.1:15672");
        assert!(endpoint(&ListenAddr::Off, false).is_err());
        assert!(endpoint(&ListenAddr::Tcp { host: "::1".to_owned(), port: 0 }, true).is_err());
    }
}
