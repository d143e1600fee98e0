//! Finds the server that a command is for, when nobody says where it is.

use std::io::{self, Write as _};
use std::time::Duration;

use hyper::Method;
use transport::tls::ClientTlsConfig;

use crate::Failure;
use crate::config::{self, Environment, Flags};
use crate::http_client::{Ask, Endpoint, HttpClient};
use crate::local;

/// Longer than a live server on this machine takes to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where the HTTP of a server is by default: of a broker, and of a pool.
const USUAL_PORTS: [u16; 2] = [15672, 15673];

/// The server whose variables and file are in effect here, or else a Leveret at one of its usual ports.
pub(super) fn find(is_quiet: bool) -> Result<Endpoint, Failure> {
    let effective = config::load(&Flags::default(), &Environment::of_process()).map_err(Failure::usage)?;
    if ["http", "https", "upstream"].iter().any(|key| effective.is_set(key)) {
        return local::endpoint(&effective.config)
            .map_err(|error| Failure::Usage(format!("{error}; --url tells where the server is")));
    }
    let usual = USUAL_PORTS.map(at_loopback);
    let found = usual.each_ref().map(answer);
    if let Some(leveret) = found.iter().position(|found| *found == Some(Found::Leveret)) {
        return Ok(usual[leveret].clone());
    }
    match found.iter().position(Option::is_some) {
        Some(other) => {
            if !is_quiet {
                let note = format!(
                    "leveret: {} is not a Leveret: talking to another server, such as RabbitMQ",
                    usual[other]
                );
                let _ = writeln!(io::stderr(), "{note}");
            }
            Ok(usual[other].clone())
        }
        None => Err(Failure::Run(format!(
            "no server answers at {} or {}; --url tells where it is",
            usual[0], usual[1]
        ))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Leveret,
    Other,
}

/// The kind of server that answers, if any does. Nothing confidential is sent.
fn answer(endpoint: &Endpoint) -> Option<Found> {
    let files = ClientTlsConfig { authorities: None, certificate: None, server_name: None, verify: true };
    let client = HttpClient::new(endpoint.clone(), files, TIMEOUT).ok()?;
    // Needs no login. RabbitMQ has no such path.
    let answer = client.ask(Ask { method: Method::GET, path: "/healthz", body: None, header: None }).ok()?;
    Some(if answer.status == 200 { Found::Leveret } else { Found::Other })
}

fn at_loopback(port: u16) -> Endpoint {
    Endpoint::Host { host: "127.0.0.1".to_owned(), port, tls: false, prefix: String::new() }
}
