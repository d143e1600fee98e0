//! Finds the server for a command without a URL.

use std::io::{self, Write as _};
use std::time::Duration;

use hyper::Method;
use transport::tls::ClientTlsConfig;

use crate::Failure;
use crate::config::{self, Environment, Flags};
use crate::http_address;
use crate::http_client::{Ask, Endpoint, HttpClient};

/// Longer than a live server on this machine takes to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where the HTTP of a server is by default: of a broker, and of a pool.
const USUAL_PORTS: [u16; 2] = [15672, 15673];

/// The server whose variables and file are in effect here, or else a Leveret at one of its usual ports. At another port than
/// that of RabbitMQ's management only a Leveret is sent a password.
pub(super) fn find(is_quiet: bool) -> Result<Endpoint, Failure> {
    let say = |note: String| {
        if !is_quiet {
            let _ = writeln!(io::stderr(), "leveret: {note}");
        }
    };
    match config::load(&Flags::default(), &Environment::of_process()) {
        Ok(effective) if http_address::is_configured(&effective) => {
            return http_address::endpoint(&effective.config)
                .map_err(|error| Failure::Usage(format!("{error}; --url tells where the server is")));
        }
        Ok(_) => {}
        // The server's file may be none of this user's business, and another command can still be given.
        Err(error) => say(format!("{error}; looking for a server at the usual ports")),
    }
    let usual = USUAL_PORTS.map(at_loopback);
    let [first, second] = &usual;
    match usual.each_ref().map(answer) {
        [Some(Found::Leveret), _] => Ok(first.clone()),
        [_, Some(Found::Leveret)] => {
            say(format!("using the Leveret at {second}"));
            Ok(second.clone())
        }
        [Some(Found::Other), _] => {
            say(format!("{first} is not a Leveret: talking to another server, such as RabbitMQ"));
            Ok(first.clone())
        }
        [None, _] => Err(Failure::Run(format!(
            "no server answers at {first}, and no Leveret at {second}; --url tells where it is"
        ))),
    }
}

/// The Leveret at one of the usual ports, if there is one.
pub(crate) fn leveret() -> Option<Endpoint> {
    USUAL_PORTS.map(at_loopback).into_iter().find(|endpoint| answer(endpoint) == Some(Found::Leveret))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Leveret,
    Other,
}

/// The kind of server that answers, if any does. Nothing confidential is sent.
fn answer(endpoint: &Endpoint) -> Option<Found> {
    let files = ClientTlsConfig { ca: None, certificate: None, server_name: None, verify: true };
    let client = HttpClient::new(endpoint.clone(), files, TIMEOUT).ok()?;
    // Needs no login.
    let answer = client.ask(Ask { method: Method::GET, path: "/healthz", body: None, header: None }).ok()?;
    let is_leveret = answer.server.as_deref() == Some("Leveret");
    Some(if is_leveret { Found::Leveret } else { Found::Other })
}

fn at_loopback(port: u16) -> Endpoint {
    Endpoint::Host { host: "127.0.0.1".to_owned(), port, tls: false, prefix: String::new() }
}
