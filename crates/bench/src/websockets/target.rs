//! The address of a system and the protocol that a fleet speaks to it.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use transport::{HostAndPort, parse_port, split_host_and_port};

use crate::error::Error;
use crate::usage::check;
use crate::watched::Watched;

/// The syntax of a system on the command line.
const FORM: &str =
    "it is written name=PROTOCOL+ws://user:password@host:port/path[,pid=N][,process=NAME][,unit=NAME]";

/// The protocol inside the WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarriedProtocol {
    /// AMQP 0-9-1.
    Amqp,
    /// MQTT 3.1.1.
    Mqtt,
    /// STOMP 1.2.
    Stomp,
}

impl CarriedProtocol {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "amqp" => Self::Amqp,
            "mqtt" => Self::Mqtt,
            "stomp" => Self::Stomp,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Amqp => "amqp",
            Self::Mqtt => "mqtt",
            Self::Stomp => "stomp",
        }
    }

    /// The subprotocol to offer. None for AMQP: relays know none, and clients in browsers offer none.
    pub(super) fn subprotocol(self) -> Option<&'static str> {
        match self {
            Self::Amqp => None,
            Self::Mqtt => Some("mqtt"),
            Self::Stomp => Some("v12.stomp"),
        }
    }
}

/// The address, the protocol and the credentials of a connection.
#[derive(Clone)]
pub(crate) struct Target {
    /// The protocol to speak.
    pub(crate) protocol: CarriedProtocol,
    /// Host name or address.
    pub(crate) host: String,
    /// TCP port.
    pub(crate) port: u16,
    /// User name; `guest` when absent.
    pub(crate) user: String,
    /// Password; `guest` when absent.
    pub(crate) password: String,
    /// The path of the upgrade, including the query.
    pub(crate) path: String,
}

impl Target {
    /// Parses a URL such as `amqp+ws://guest:guest@localhost:15670/ws/amqp`.
    ///
    /// # Errors
    /// A description of the problem, for the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        // The text may contain a password, so errors do not repeat it.
        let fail = |what: &str| Error::Usage(format!("--system: {what}; {FORM}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| fail("there is no scheme"))?;
        let protocol = scheme.strip_suffix("+ws").and_then(CarriedProtocol::from_name);
        let protocol =
            protocol.ok_or_else(|| fail("invalid scheme; expected amqp+ws, mqtt+ws or stomp+ws"))?;
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (login, address),
            None => ("guest:guest", authority),
        };
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, port) = split_host_and_port(address).ok_or_else(|| fail("no valid host and port"))?;
        let port = port.ok_or_else(|| fail("there is no port"))?;
        let decode = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            decoded.map(String::from).map_err(|_| fail("percent-encoding that is not UTF-8"))
        };
        Ok(Self {
            protocol,
            host: host.to_owned(),
            port: parse_port(port).ok_or_else(|| fail("the port is not a number"))?,
            user: decode(user)?,
            password: decode(password)?,
            path: path.to_owned(),
        })
    }
}

/// The URL without its password, for reports.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, host, port, user, path, .. } = self;
        write!(f, "{}+ws://{user}@{}{path}", protocol.name(), HostAndPort(host, *port))
    }
}

/// Without the password, too.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses the form in a report, which has no password, so that the default one is used.
impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A system under test.
#[derive(Debug, Clone)]
pub(crate) struct WebSocketTarget {
    /// Its name in the report.
    pub(crate) name: String,
    /// The address, the protocol and the credentials.
    pub(crate) target: Target,
    /// Processes whose CPU and memory count, with those of their children.
    pub(crate) pids: Vec<u32>,
}

impl WebSocketTarget {
    /// Parses a `--system`.
    ///
    /// # Errors
    /// A description of the problem, for the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (name, rest) = text
            .split_once('=')
            .ok_or_else(|| Error::Usage(format!("--system: there is no name; {FORM}")))?;
        let (watched, url) = Watched::take_from(rest)?;
        check(watched.is_local(), "--system: websockets are watched by process only")?;
        check(!name.is_empty(), "--system: the name is empty")?;
        Ok(Self { name: name.to_owned(), target: Target::parse(url)?, pids: watched.pids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read() {
        let own = std::process::id();
        let text = format!("web-mqtt=mqtt+ws://a%40b:p,w@[::1]:15675/ws?x=1,pid={own}");
        let WebSocketTarget { name, target, pids } = WebSocketTarget::parse(&text).unwrap();
        assert_eq!((&*name, pids, target.protocol), ("web-mqtt", vec![own], CarriedProtocol::Mqtt));
        assert_eq!((&*target.host, target.port, &*target.path), ("::1", 15675, "/ws?x=1"));
        assert_eq!((&*target.user, &*target.password), ("a@b", "p,w"));
        assert_eq!(target.to_string(), "mqtt+ws://a@b@[::1]:15675/ws?x=1");
        let target = Target::parse("amqp+ws://localhost:1").unwrap();
        assert_eq!((&*target.user, &*target.password, &*target.path), ("guest", "guest", "/"));
    }

    #[test]
    fn errors_in_a_target_do_not_show_the_password() {
        for bad in
            ["x", "a=ws://u:secret@h:1", "a=amqp+ws://u:secret@h", "a=amqp+ws://u:secret@h:x", "a=u:secret"]
        {
            let error = WebSocketTarget::parse(bad).unwrap_err();
            assert!(error.is_usage() && !error.to_string().contains("secret"), "{error}");
        }
    }
}
