//! The setting `relay`: paths or listeners that are relayed to other servers.
//!
//! Like the other settings, a relay is given as text: `LISTEN=URL`, or all of its keys as an inline TOML table.
//! A table `[[relay]]` in the file is converted to the second form, which `leveret config print` writes too.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use server::TextRule;
use transport::{HostAndPort, parse_port, split_host_and_port};

use super::address::{ListenAddr, unix_path};
use super::choice::{HostName, OutboundHeader, Switch, list};
use super::file;
use super::origins::Origins;
use super::suggestion::nearest;
use super::value::{FilePath, Limit, Value, quoted, within};
use super::value_error::ValueError;

/// The relays in their configured order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelayList(pub(crate) Vec<RelayEntry>);

/// One relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelayEntry {
    /// Its path on `ws` and `wss`.
    pub(crate) path: Option<String>,
    /// Its own listener, on which it serves every path.
    pub(crate) listen: ListenAddr,
    /// Whether its own listener uses TLS.
    pub(crate) tls: Switch,
    pub(crate) upstream: RelayUrl,
    pub(crate) upstream_ca: FilePath,
    pub(crate) upstream_server_name: HostName,
    pub(crate) upstream_verify: Switch,
    pub(crate) connect_timeout: Duration,
    pub(crate) proxy_protocol: OutboundHeader,
    pub(crate) subprotocols: Vec<String>,
    /// `None` for those of `ws_origins`.
    pub(crate) origins: Option<Origins>,
    pub(crate) max_connections: Limit,
    pub(crate) max_connections_per_ip: Limit,
    pub(crate) text: TextRule,
}

/// A key of a relay's table, for the reference.
pub(super) struct RelayKey {
    pub(super) key: &'static str,
    pub(super) kind: &'static str,
    pub(super) default: &'static str,
    pub(super) meaning: &'static str,
}

macro_rules! keys {
    ($($key:literal $kind:literal $default:literal $meaning:literal;)+) => {
        /// Every key, in the order of the reference.
        pub(super) const RELAY_KEYS: &[RelayKey] =
            &[$(RelayKey { key: $key, kind: $kind, default: $default, meaning: $meaning }),+];
    };
}

keys! {
    "path" "PATH" "none" "A path on the listeners `ws` and `wss`, such as `/mqtt`. A relay needs this, `listen`, or both.";
    "listen" "ADDR" "off" "A listener of its own, for WebSocket at every path.";
    "tls" "MODE" "off" "With `on`, that listener is for TLS, with `tls_cert` and `tls_key`.";
    "upstream" "URL" "needed" "The server behind the relay: `tcp://host:port`, `tls://host:port` or `unix:/path`. It is connected to before the client is upgraded; a refusal is 502 to the client, no answer is 504.";
    "upstream_ca" "FILE" "off" "The CA certificates by which the certificate of a `tls://` server is verified, as PEM; `off` for those of the system.";
    "upstream_server_name" "HOST" "off" "The name that its certificate has to be for; `off` for the host of its URL.";
    "upstream_verify" "MODE" "on" "With `off` its certificate is not verified, and anyone on the network path can read the data; a warning is logged at startup.";
    "connect_timeout" "DURATION" "5s" "How long connecting may take, TLS included. From `100ms` to `10m`; `handshake_timeout` does not count meanwhile.";
    "proxy_protocol" "MODE" "off" "A PROXY protocol header in front of each connection to that server: `off`, `v1` or `v2`. It has the client's address: the one that a proxy in `ws_trusted_proxies` or `trusted_proxies` reports, else the peer's.";
    "subprotocols" "list" "any" "Subprotocols in order of preference. A client that offers others only gets 400, one that offers none is relayed without. Without a list, the first that a client offers is taken.";
    "origins" "list" "`ws_origins`" "Which pages may connect, as in `ws_origins`. Others get 403.";
    "max_connections" "N" "unlimited" "Maximum number of connections of this relay; above it the answer is 503. They count for the server's own limits, too.";
    "max_connections_per_ip" "N" "unlimited" "Maximum number of them from one IP address, or from one /64 network of IPv6.";
    "text" "MODE" "accept" "How text messages are treated: `accept` relays their UTF-8 like any bytes, `refuse` closes with 1003. Answers are binary in any case: a stream of bytes may be cut within a character.";
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const NO_RELAY: &str =
    "is not LISTEN=URL, such as 127.0.0.1:15675=tcp://localhost:1883 or /mqtt=tcp://localhost:1883";

impl RelayEntry {
    /// The relay's name in logs: its path, or else its listener.
    pub(crate) fn name(&self) -> String {
        self.path.clone().unwrap_or_else(|| self.listen.to_string())
    }

    fn new(upstream: RelayUrl) -> Self {
        Self {
            path: None,
            listen: ListenAddr::Off,
            tls: Switch(false),
            upstream,
            upstream_ca: FilePath(None),
            upstream_server_name: HostName(None),
            upstream_verify: Switch(true),
            connect_timeout: CONNECT_TIMEOUT,
            proxy_protocol: OutboundHeader::Off,
            subprotocols: Vec::new(),
            origins: None,
            max_connections: Limit(None),
            max_connections_per_ip: Limit(None),
            text: TextRule::Accept,
        }
    }

    /// Reads `LISTEN=URL`.
    fn from_short(text: &str) -> Result<Self, ValueError> {
        let is_upstream =
            |text: &str| ["tcp:", "tls:", "unix:"].iter().any(|scheme| text.starts_with(scheme));
        let split = text.match_indices('=').map(|(at, _)| (&text[..at], &text[at + 1..]));
        let mut split = split.filter(|(_, upstream)| is_upstream(upstream));
        let (listen, upstream) = split.next().ok_or_else(|| ValueError::text(text, NO_RELAY))?;
        let mut relay = Self::new(RelayUrl::parse(upstream)?);
        let key = if listen.starts_with('/') { "path" } else { "listen" };
        relay.set(key, &[listen.to_owned()])?;
        relay.check()
    }

    /// Reads an inline table.
    fn from_table(text: &str) -> Result<Self, ValueError> {
        let document: toml::Table = toml::from_str(&format!("relay = {text}")).map_err(ValueError::Table)?;
        let Some(toml::Value::Table(table)) = document.get("relay").filter(|_| document.len() == 1) else {
            return Err("not a table of TOML".into());
        };
        let upstream =
            table.get("upstream").and_then(toml::Value::as_str).ok_or("a relay needs an 'upstream'")?;
        let mut relay = Self::new(RelayUrl::parse(upstream)?);
        for (key, value) in table {
            let fault = |error: ValueError| error.in_key(key);
            relay.set(key, &file::texts(value, false).map_err(fault)?).map_err(fault)?;
        }
        relay.check()
    }

    fn set(&mut self, key: &str, texts: &[String]) -> Result<(), ValueError> {
        match key {
            "path" => self.path = Some(path(&one(texts)?)?),
            "listen" => self.listen = ListenAddr::parse_all(texts)?,
            "tls" => self.tls = switch(texts)?,
            "upstream" => self.upstream = RelayUrl::parse(&one(texts)?)?,
            "upstream_ca" => self.upstream_ca = FilePath::parse_all(texts)?,
            "upstream_server_name" => self.upstream_server_name = HostName::parse_all(texts)?,
            "upstream_verify" => self.upstream_verify = switch(texts)?,
            "connect_timeout" => {
                self.connect_timeout = Duration::parse_all(texts)?;
                within(&self.connect_timeout, "100ms", "10m")?;
            }
            "proxy_protocol" => self.proxy_protocol = OutboundHeader::parse_all(texts)?,
            "subprotocols" => self.subprotocols = subprotocols(texts)?,
            "origins" => self.origins = Some(Origins::parse_all(texts)?),
            "max_connections" => self.max_connections = Limit::parse_all(texts)?,
            "max_connections_per_ip" => self.max_connections_per_ip = Limit::parse_all(texts)?,
            "text" => self.text = text_rule(&one(texts)?)?,
            _ => {
                let meant = nearest(key, RELAY_KEYS.iter().map(|known| known.key));
                return Err(ValueError::UnknownKey { table: "relay", meant });
            }
        }
        Ok(())
    }

    /// Refuses combinations in which a given key would have no effect.
    fn check(self) -> Result<Self, ValueError> {
        if self.path.is_none() && self.listen == ListenAddr::Off {
            return Err("a relay needs 'listen' or 'path'".into());
        }
        if self.tls.0 && self.listen == ListenAddr::Off {
            return Err(ValueError::from("has no effect without 'listen'").in_key("tls"));
        }
        let with_tls = matches!(self.upstream, RelayUrl::Host { tls: true, .. });
        for (key, given) in [
            ("upstream_ca", self.upstream_ca.0.is_some()),
            ("upstream_server_name", self.upstream_server_name.0.is_some()),
            ("upstream_verify", !self.upstream_verify.0),
        ] {
            if given && !with_tls {
                return Err(ValueError::from("has no effect without an upstream of tls://").in_key(key));
            }
        }
        Ok(self)
    }

    /// The values that differ from the defaults, as an inline table.
    fn to_toml(&self) -> String {
        let default = Self::new(self.upstream.clone());
        let mut parts = Vec::new();
        let mut add = |key: &str, value: String, given: bool| {
            if given {
                parts.push(format!("{key} = {value}"));
            }
        };
        add("path", quoted(self.path.as_deref().unwrap_or_default()), self.path.is_some());
        add("listen", self.listen.to_toml(), self.listen != default.listen);
        add("tls", self.tls.to_toml(), self.tls != default.tls);
        add("upstream", quoted(&self.upstream.to_string()), true);
        add("upstream_ca", self.upstream_ca.to_toml(), self.upstream_ca != default.upstream_ca);
        let server_name = &self.upstream_server_name;
        add("upstream_server_name", server_name.to_toml(), *server_name != default.upstream_server_name);
        add(
            "upstream_verify",
            self.upstream_verify.to_toml(),
            self.upstream_verify != default.upstream_verify,
        );
        add(
            "connect_timeout",
            self.connect_timeout.to_toml(),
            self.connect_timeout != default.connect_timeout,
        );
        add("proxy_protocol", self.proxy_protocol.to_toml(), self.proxy_protocol != default.proxy_protocol);
        let subprotocols = list(self.subprotocols.iter().map(|name| quoted(name)));
        add("subprotocols", subprotocols, !self.subprotocols.is_empty());
        let origins = self.origins.as_ref().map(Value::to_toml);
        add("origins", origins.clone().unwrap_or_default(), origins.is_some());
        add(
            "max_connections",
            self.max_connections.to_toml(),
            self.max_connections != default.max_connections,
        );
        let per_ip = self.max_connections_per_ip;
        add("max_connections_per_ip", per_ip.to_toml(), per_ip != default.max_connections_per_ip);
        add("text", quoted("refuse"), self.text == TextRule::Refuse);
        format!("{{ {} }}", parts.join(", "))
    }
}

/// The relays; `off` for none.
impl Value for RelayList {
    const KIND: &'static str = "RELAY";
    const REPEATED: bool = true;
    const TABLES: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        Ok(Self(match text {
            "off" => Vec::new(),
            _ if text.starts_with('{') => vec![RelayEntry::from_table(text)?],
            _ => vec![RelayEntry::from_short(text)?],
        }))
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let mut relays = Vec::new();
        for text in texts {
            let one = Self::parse(text)?.0;
            if one.is_empty() && texts.len() > 1 {
                return Err("'off' cannot be combined with a relay".into());
            }
            relays.extend(one);
        }
        Ok(Self(relays))
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(RelayEntry::to_toml))
    }
}

/// The address of the server behind a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RelayUrl {
    Host { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl RelayUrl {
    pub(super) fn parse(text: &str) -> Result<Self, ValueError> {
        let expected = "tcp://host:port, tls://host:port or unix:/path";
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self::Unix);
        }
        let (tls, rest) = match (text.strip_prefix("tcp://"), text.strip_prefix("tls://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err("upstream is not tcp://host:port, tls://host:port or unix:/path".into()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let wrong = || ValueError::Url { fault: "upstream has no valid host and port", expected };
        let (host, port) = split_host_and_port(rest).ok_or_else(wrong)?;
        let port = port.and_then(parse_port).filter(|port| *port != 0).ok_or_else(wrong)?;
        if host.is_empty()
            || host.contains(|character: char| character.is_whitespace() || "/@,?#".contains(character))
        {
            return Err(wrong());
        }
        Ok(Self::Host { host: host.to_owned(), port, tls })
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host, port, tls } => {
                let scheme = if *tls { "tls" } else { "tcp" };
                write!(formatter, "{scheme}://{}", HostAndPort(host, *port))
            }
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

fn one(texts: &[String]) -> Result<String, ValueError> {
    match texts {
        [text] => Ok(text.clone()),
        _ => Err("takes one value, not a list".into()),
    }
}

/// Also accepts `true` and `false`, which TOML users may write.
fn switch(texts: &[String]) -> Result<Switch, ValueError> {
    match one(texts)?.as_str() {
        "true" => Ok(Switch(true)),
        "false" => Ok(Switch(false)),
        word => Switch::parse(word),
    }
}

fn path(text: &str) -> Result<String, ValueError> {
    let is_path = text.starts_with('/')
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%{},\"".contains(&byte));
    if is_path { Ok(text.to_owned()) } else { Err(ValueError::text(text, "is not a path such as /mqtt")) }
}

fn subprotocols(texts: &[String]) -> Result<Vec<String>, ValueError> {
    let is_token = |text: &String| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(allowed)
    };
    match texts.iter().find(|text| !is_token(text)) {
        Some(wrong) => Err(ValueError::text(wrong, "is not the name of a subprotocol")),
        None => Ok(texts.to_vec()),
    }
}

fn text_rule(text: &str) -> Result<TextRule, ValueError> {
    match text {
        "accept" => Ok(TextRule::Accept),
        "refuse" => Ok(TextRule::Refuse),
        _ => Err(ValueError::NoneOf { text: text.to_owned(), words: &["accept", "refuse"] }),
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
