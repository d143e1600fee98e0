//! Client of a running server's management API, which is RabbitMQ's as far as both have the feature.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use transport::tls::{CertificateFiles, ClientTlsConfig};

use super::{discovery, missing, secret, variables};
use crate::Failure;
use crate::http_client::{Ask, Endpoint, HttpClient};

/// Which server, and as whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// The server's HTTP address: http://HOST:PORT, https://HOST:PORT or unix:/PATH. By default that of the server whose
    /// variables and file (LEVERET_CONFIG) are in effect here; without any, the one on this machine at port 15672, where a
    /// broker has it, or else at 15673, where a pool has it
    #[arg(long, global = true, value_name = "URL", env = "LEVERET_CTL_URL")]
    url: Option<String>,
    /// The user. The password is in LEVERET_CTL_PASSWORD or in --password-file, or is asked for
    // Has a distinct id: a global option would take the value of a command's argument with the same id.
    #[arg(
        id = "login",
        long = "user",
        global = true,
        value_name = "NAME",
        env = "LEVERET_CTL_USER",
        default_value = "guest"
    )]
    user: String,
    /// A file whose first line is the password
    #[arg(long, global = true, value_name = "FILE", env = "LEVERET_CTL_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// The CA certificates by which an https:// server is verified, as PEM, instead of the system's
    #[arg(long, global = true, value_name = "FILE", env = "LEVERET_CTL_CA")]
    ca: Option<PathBuf>,
    /// A certificate to show to an https:// server that asks for one, as PEM; needs --key
    #[arg(id = "client_cert", long = "cert", global = true, value_name = "FILE", env = "LEVERET_CTL_CERT")]
    cert: Option<PathBuf>,
    /// The private key of --cert, as PEM, not encrypted
    #[arg(id = "client_key", long = "key", global = true, value_name = "FILE", env = "LEVERET_CTL_KEY")]
    key: Option<PathBuf>,
    /// Seconds to wait for an answer
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

/// Client of one server's API.
pub(crate) struct Api {
    client: HttpClient,
    user: String,
}

/// Encodes all but the unreserved characters in a path segment (RFC 3986, section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// `/api` followed by the parts, each encoded and preceded by a slash.
pub(crate) fn path(parts: &[&str]) -> String {
    parts.iter().fold("/api".to_owned(), |path, part| {
        // A segment of only one or two dots would be resolved as a relative path.
        let encoded = match *part {
            "." => "%2E".to_owned(),
            ".." => "%2E%2E".to_owned(),
            part => encode(part),
        };
        path + "/" + &encoded
    })
}

/// Encodes all characters that have a special meaning in a path or query.
pub(crate) fn encode(part: &str) -> String {
    utf8_percent_encode(part, ENCODED).to_string()
}

impl Api {
    /// Determines the server and the password. Quiet, it says nothing about the server that it has found.
    pub(crate) fn new(connection: &Connection, is_quiet: bool) -> Result<Self, Failure> {
        variables::check()?;
        let endpoint = match &connection.url {
            Some(url) => Endpoint::parse(url).map_err(|reason| Failure::Usage(format!("--url {reason}")))?,
            None => discovery::find(is_quiet)?,
        };
        let user = connection.user.clone();
        let password = secret::login(&user, connection.password_file.as_deref())?;
        Self::of(connection, endpoint, &user, &password)
    }

    /// The client of a server that need not be the connection's, with the certificates and the patience of that.
    pub(super) fn of(
        connection: &Connection,
        endpoint: Endpoint,
        user: &str,
        password: &str,
    ) -> Result<Self, Failure> {
        if connection.timeout == 0 {
            return Err(Failure::Usage("--timeout must be at least 1".to_owned()));
        }
        let timeout = Duration::from_secs(connection.timeout);
        if connection.cert.is_some() != connection.key.is_some() {
            return Err(Failure::Usage("--cert and --key are needed together".to_owned()));
        }
        let certificate = connection.cert.clone().zip(connection.key.clone());
        let files = ClientTlsConfig {
            ca: connection.ca.clone(),
            certificate: certificate.map(|(certificate, key)| CertificateFiles { certificate, key }),
            server_name: None,
            verify: true,
        };
        let mut client = HttpClient::new(endpoint, files, timeout).map_err(Failure::run)?;
        client.authorize(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))));
        Ok(Self { client, user: user.to_owned() })
    }

    /// Gets the resource; fails if it does not exist.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        match self.exchange(Ask { method: Method::GET, path, body: None, header: None })? {
            Reply::Done(value) => Ok(value),
            Reply::Missing(reason) => Err(self.missing(path, reason)),
        }
    }

    /// Gets the resource, or `None` if it does not exist.
    pub(crate) fn found(&self, path: &str) -> Result<Option<Value>, Failure> {
        let answer = self.exchange(Ask { method: Method::GET, path, body: None, header: None })?;
        match answer {
            Reply::Missing(_) => Ok(None),
            Reply::Done(value) => Ok(Some(value)),
        }
    }

    /// Creates or replaces the resource.
    pub(super) fn put(&self, path: &str, value: &Value) -> Result<(), Failure> {
        self.send(Method::PUT, path, Some(value.to_string().into_bytes()), None).map(drop)
    }

    /// Sends a `POST` and returns the response.
    pub(super) fn post(&self, path: &str, body: Vec<u8>) -> Result<Value, Failure> {
        self.send(Method::POST, path, Some(body), None)
    }

    /// Deletes the resource.
    pub(super) fn delete(&self, path: &str) -> Result<(), Failure> {
        self.send(Method::DELETE, path, None, None).map(drop)
    }

    /// Deletes the resource; returns what the server says about it.
    pub(super) fn remove(&self, path: &str) -> Result<Value, Failure> {
        self.send(Method::DELETE, path, None, None)
    }

    /// Deletes the resource, with a reason for the server to pass on.
    pub(super) fn delete_because(&self, path: &str, reason: &str) -> Result<(), Failure> {
        self.send(Method::DELETE, path, None, Some(("x-reason", reason))).map(drop)
    }

    /// The server that the requests go to.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.client.endpoint()
    }

    /// The user that the requests are made as.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        header: Option<(&'static str, &str)>,
    ) -> Result<Value, Failure> {
        match self.exchange(Ask { method, path, body, header })? {
            Reply::Done(value) => Ok(value),
            Reply::Missing(reason) => Err(self.missing(path, reason)),
        }
    }

    /// Explains why there is nothing at a path: there is no such object, or the server is of a kind that has none.
    fn missing(&self, path: &str, reason: String) -> Failure {
        let overview = self.found("/api/overview").ok().flatten();
        let mode = overview.as_ref().and_then(|overview| overview.get("mode")?.as_str());
        let needed = if mode == Some("proxy") { Vec::new() } else { missing::needed_by(path) };
        let needed = needed.into_iter().find(|needed| matches!(self.found(needed), Ok(None)));
        let path = needed.as_deref().unwrap_or(path);
        Failure::Run(missing::explain(path, mode, self.client.endpoint()).unwrap_or(reason))
    }

    fn exchange(&self, ask: Ask<'_>) -> Result<Reply, Failure> {
        let path = ask.path;
        let answer = self
            .client
            .ask(ask)
            .map_err(|error| Failure::Passing(format!("{}: {error}", self.client.endpoint())))?;
        let value: Option<Value> = serde_json::from_slice(&answer.body).ok();
        match answer.status {
            200..=299 if answer.body.is_empty() => Ok(Reply::Done(Value::Null)),
            200..=299 => value
                .map(Reply::Done)
                .ok_or_else(|| Failure::Run(format!("{path}: the response is not JSON"))),
            401 => {
                let reported =
                    value.as_ref().and_then(|reported| reported.get("reason")).and_then(Value::as_str);
                let why = printable(reported.unwrap_or("login failed"));
                Err(Failure::Run(format!(
                    "{}: user '{}' is refused: {why}",
                    self.client.endpoint(),
                    self.user
                )))
            }
            404 => Ok(Reply::Missing(format!("{path}: {}", reason(404, value.as_ref())))),
            // Too many requests, or a gateway's errors (RFC 6585, section 4; RFC 9110, sections 15.6.3 to 15.6.5).
            status @ (429 | 502..=504) => Err(Failure::Passing(reason(status, value.as_ref()))),
            // The request is what the user has asked for, in other words.
            status => Err(Failure::Run(reason(status, value.as_ref()))),
        }
    }
}

enum Reply {
    Done(Value),
    /// The reason, on one line.
    Missing(String),
}

/// Formats a refusal on one line.
fn reason(status: u16, reported: Option<&Value>) -> String {
    if let Some(alarms) = reported.and_then(alarms) {
        return alarms;
    }
    let word = |key: &str| reported.and_then(|reported| reported.get(key)).and_then(Value::as_str);
    let text = match (word("error"), word("reason")) {
        (Some(error), Some(reason)) if error != reason => format!("{error}: {reason}"),
        (Some(word), _) | (None, Some(word)) => word.to_owned(),
        (None, None) => "refused".to_owned(),
    };
    format!("{status} {}", printable(&text))
}

/// The alarms in effect, as a health check lists them: `disk alarm in effect`.
fn alarms(reported: &Value) -> Option<String> {
    let mut resources: Vec<_> =
        reported["alarms"].as_array()?.iter().filter_map(|alarm| alarm["resource"].as_str()).collect();
    resources.dedup();
    let plural = if resources.len() == 1 { "" } else { "s" };
    (!resources.is_empty())
        .then(|| format!("{} alarm{plural} in effect", printable(&resources.join(" and "))))
}

/// Replaces control characters by spaces, which keeps the text on one line.
fn printable(text: &str) -> String {
    text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_name_is_one_part_of_the_path() {
        assert_eq!(path(&["queues", "/", "a b/ü?#%"]), "/api/queues/%2F/a%20b%2F%C3%BC%3F%23%25");
        assert_eq!(path(&["users", ".."]), "/api/users/%2E%2E");
        assert_eq!(path(&["users", "a.b-c_d~e"]), "/api/users/a.b-c_d~e");
    }

    #[test]
    fn a_refusal_is_reported_on_one_line() {
        let reported = json!({"error": "bad_request", "reason": "no\nway"});
        assert_eq!(reason(400, Some(&reported)), "400 bad_request: no way");
        let reported = json!({"error": "Object Not Found", "reason": "Not Found"});
        assert_eq!(reason(404, Some(&reported)), "404 Object Not Found: Not Found");
        assert_eq!(reason(500, None), "500 refused");
        let alarm = |resource: &str| json!({"node": "n", "resource": resource});
        let failed = |alarms: Value| {
            reason(
                503,
                Some(&json!({"status": "failed", "reason": "resource alarm(s) in effect", "alarms": alarms})),
            )
        };
        assert_eq!(failed(json!([alarm("disk")])), "disk alarm in effect");
        assert_eq!(failed(json!([alarm("memory"), alarm("disk")])), "memory and disk alarms in effect");
    }
}
