//! Addresses of listeners and of upstream brokers.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use transport::{HostAndPort, parse_port, split_host_and_port};

use super::choice::list;
use super::settings::Config;
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// The address of a listener: `HOST:PORT`, several of them, `unix:/path`, or `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    /// No listener.
    Off,
    /// A TCP port of one host's address; port 0 lets the system choose.
    Tcp {
        /// An IP address without brackets, or a name to look up.
        host: String,
        /// The port.
        port: u16,
    },
    /// Two or more TCP addresses.
    Several(Vec<Self>),
    /// A Unix socket at an absolute path.
    Unix(PathBuf),
}

impl ListenAddr {
    /// The hosts and ports of TCP addresses.
    pub(crate) fn places(&self) -> Vec<(&str, u16)> {
        match self {
            Self::Off | Self::Unix(_) => Vec::new(),
            Self::Tcp { host, port } => vec![(host.as_str(), *port)],
            Self::Several(all) => all.iter().flat_map(Self::places).collect(),
        }
    }

    /// Whether the two addresses conflict, as far as can be seen without resolving names.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        if let (Self::Unix(path), Self::Unix(other)) = (self, other) {
            return path == other;
        }
        let others = other.places();
        self.places().into_iter().any(|place| place.1 != 0 && others.contains(&place))
    }
}

impl Config {
    /// The address of the listener in the setting `key`.
    ///
    /// # Panics
    ///
    /// If there is no such listener; a test looks up those of all protocols.
    pub(crate) fn listen_address(&self, key: &str) -> &ListenAddr {
        self.of_type().find(|(own, _)| *own == key).map(|(_, address)| address).expect("a listener")
    }
}

impl Config {
    /// The first listener with a login that other machines can reach, with the name of its setting.
    pub(crate) fn first_address_for_others(&self) -> Option<(&'static str, &ListenAddr)> {
        let is_local = |host: &str| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        self.of_type::<ListenAddr>()
            .filter(|(key, _)| *key != "prometheus")
            .find(|(_, address)| address.places().iter().any(|(host, _)| !is_local(host)))
    }
}

/// Maximum length of a Unix socket's path in bytes: `sun_path` has 108, including the terminating zero
/// (unix(7)).
const MAX_UNIX_PATH: usize = 107;

impl Value for ListenAddr {
    const KIND: &'static str = "ADDR";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self::Unix);
        }
        if text.contains(',') {
            let texts: Vec<String> = text.split(',').map(|text| text.trim().to_owned()).collect();
            return Self::parse_all(&texts);
        }
        let (host, port) = split_host_and_port(text)
            .filter(|(host, _)| {
                !host.contains(|character: char| character.is_whitespace() || character == '/')
            })
            .ok_or_else(|| ValueError::text(text, "is not an address (HOST:PORT, unix:/path or off)"))?;
        if host.is_empty() {
            return Err(ValueError::text(text, "has no host (0.0.0.0:PORT listens on every IPv4 address)"));
        }
        let fault = |fault| move || ValueError::text(text, fault);
        let port = port.ok_or_else(fault("has no port (HOST:PORT, unix:/path or off)"))?;
        let port = parse_port(port).ok_or_else(fault("has no valid port (0 to 65535)"))?;
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        if let [text] = texts {
            return Self::parse(text);
        }
        let mut several = Vec::with_capacity(texts.len());
        for text in texts {
            match Self::parse(text)? {
                Self::Off => return Err("'off' cannot be combined with an address".into()),
                Self::Unix(_) => {
                    return Err(ValueError::text(text, "cannot be combined with another address"));
                }
                Self::Several(more) => several.extend(more),
                address if several.iter().any(|other: &Self| other.overlaps(&address)) => {
                    return Err(ValueError::Twice(address.to_string()));
                }
                address => several.push(address),
            }
        }
        if several.is_empty() {
            Err("is an empty list (use 'off' for none)".into())
        } else {
            Ok(Self::Several(several))
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Several(all) => list(all.iter().map(Self::to_toml)),
            one => quoted(&one.to_string()),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => formatter.write_str("off"),
            Self::Tcp { host, port } => write!(formatter, "{}", HostAndPort(host, *port)),
            Self::Several(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                formatter.write_str(&all.join(","))
            }
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// The URL of an upstream broker: `amqp://[user:password@]host[:port][/vhost]`, or `amqps://` for TLS.
///
/// Only the host and the port are used: every client is authenticated with its own credentials (P1). A user and
/// password are accepted, since copied URLs often contain them, but are not stored, so they cannot be shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct UpstreamUrl {
    /// An IP address without brackets, or a name to look up.
    pub(crate) host: String,
    /// The port; by default 5672, or 5671 with TLS.
    pub(crate) port: u16,
    /// Whether to use TLS.
    pub(crate) tls: bool,
    /// Whether the URL has a user or vhost, which have no effect; startup warns about them.
    pub(crate) has_unused_parts: bool,
}

const AMQP_PORT: u16 = 5672;
const AMQPS_PORT: u16 = 5671;

impl UpstreamUrl {
    /// Parses the URLs of one cluster, in order of preference.
    ///
    /// # Errors
    /// As of the setting `upstream`.
    pub(crate) fn of_cluster(texts: &[String]) -> Result<Vec<Self>, ValueError> {
        Vec::parse_all(texts)
    }

    /// Parses a URL. Error messages do not quote it, since in a malformed URL a password may be anywhere.
    fn parse(text: &str) -> Result<Self, ValueError> {
        let fault = |fault| ValueError::Url { fault, expected: "amqp://host[:port]" };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(fault("is not a URL"));
        };
        let (tls, default_port) = match scheme {
            "amqp" => (false, AMQP_PORT),
            "amqps" => (true, AMQPS_PORT),
            _ => return Err(fault("has an unknown scheme")),
        };
        if rest.contains(['?', '#']) {
            return Err(fault("has parameters, which are not supported"));
        }
        let (authority, vhost) =
            rest.split_once('/').map_or((rest, ""), |(authority, vhost)| (authority, vhost));
        let (user, address) =
            authority.rsplit_once('@').map_or(("", authority), |(user, address)| (user, address));
        let (host, port) = split_host_and_port(address).ok_or("has no valid host and port")?;
        if host.is_empty() || host.contains(|character: char| character.is_whitespace() || character == ',') {
            return Err(fault("has no valid host"));
        }
        let port = port.map_or(Some(default_port), parse_port).filter(|port| *port != 0);
        let port = port.ok_or("has no valid port (1 to 65535)")?;
        let has_unused_parts = !user.is_empty() || !vhost.is_empty();
        Ok(Self { host: host.to_owned(), port, tls, has_unused_parts })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.tls { "amqps://" } else { "amqp://" })?;
        write!(formatter, "{}", HostAndPort(&self.host, self.port))
    }
}

impl fmt::Debug for UpstreamUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The upstreams in order of preference; `off` for none.
impl Value for Vec<UpstreamUrl> {
    const KIND: &'static str = "URL";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Vec::new()),
            _ => Ok(vec![UpstreamUrl::parse(text)?]),
        }
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let mut upstreams = Vec::new();
        for text in texts {
            let upstream = Self::parse(text)?;
            if upstream.is_empty() && texts.len() > 1 {
                return Err("'off' cannot be combined with a URL".into());
            }
            if upstream.iter().any(|url| upstreams.contains(url)) {
                return Err("names the same host and port twice".into());
            }
            upstreams.extend(upstream);
        }
        Ok(upstreams)
    }

    fn to_toml(&self) -> String {
        list(self.iter().map(|url| quoted(&url.to_string())))
    }
}

/// Masks the text between `://` and the last `@` after it, for messages that may quote user input.
pub(crate) fn mask_credentials(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        match part.rsplit_once('@') {
            Some((_, view)) => {
                masked.push_str("***@");
                masked.push_str(view);
            }
            None => masked.push_str(part),
        }
    }
    masked
}

pub(crate) fn unix_path(path: &str) -> Result<PathBuf, ValueError> {
    if !path.starts_with('/') {
        return Err(ValueError::text(&format!("unix:{path}"), "needs an absolute path (unix:/path)"));
    }
    if path.len() > MAX_UNIX_PATH {
        return Err("the path of a Unix socket is at most 107 bytes".into());
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<ListenAddr, ValueError> {
        ListenAddr::parse(text)
    }

    fn tcp(host: &str, port: u16) -> Result<ListenAddr, ValueError> {
        Ok(ListenAddr::Tcp { host: host.to_owned(), port })
    }

    fn upstream(text: &str) -> Result<UpstreamUrl, ValueError> {
        UpstreamUrl::parse(text)
    }

    #[test]
    fn a_listener_is_a_host_and_port_a_unix_path_or_off() {
        assert_eq!(listen("127.0.0.1:5672"), tcp("127.0.0.1", 5672));
        assert_eq!(listen("localhost:0"), tcp("localhost", 0));
        assert_eq!(listen("[::1]:5672"), tcp("::1", 5672));
        assert_eq!(listen("off"), Ok(ListenAddr::Off));
        assert_eq!(listen("unix:/run/leveret.sock"), Ok(ListenAddr::Unix("/run/leveret.sock".into())));
    }

    #[test]
    fn a_listener_is_written_as_it_is_read() {
        for text in ["127.0.0.1:5672", "[::1]:1", "off", "unix:/run/leveret.sock"] {
            assert_eq!(listen(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn several_addresses_are_a_list_or_separated_by_commas() {
        let all = |texts: &[&str]| {
            ListenAddr::parse_all(&texts.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let both = listen("127.0.0.1:5672,[::1]:5672").unwrap();
        assert_eq!(both.places(), [("127.0.0.1", 5672), ("::1", 5672)]);
        assert_eq!(all(&["127.0.0.1:5672", "[::1]:5672"]), Ok(both.clone()));
        assert_eq!(both.to_string(), "127.0.0.1:5672,[::1]:5672");
        assert_eq!(both.to_toml(), r#"["127.0.0.1:5672", "[::1]:5672"]"#);
        assert!(both.overlaps(&listen("[::1]:5672").unwrap()));
        assert!(!both.overlaps(&listen("[::1]:5671").unwrap()));
        assert!(!listen("a:0").unwrap().overlaps(&listen("a:0").unwrap()), "the system chooses");
        for (texts, reason) in [
            (&["a:1", "off"][..], "'off' cannot be combined with an address"),
            (&["a:1", "unix:/b"], "'unix:/b' cannot be combined with another address"),
            (&["a:1", "a:1"], "names a:1 twice"),
            (&["a:1,b"], "'b' has no port (HOST:PORT, unix:/path or off)"),
            (&[], "is an empty list (use 'off' for none)"),
        ] {
            assert_eq!(all(texts).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn an_invalid_listener_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "'' has no host (0.0.0.0:PORT listens on every IPv4 address)"),
            (":5672", "':5672' has no host (0.0.0.0:PORT listens on every IPv4 address)"),
            ("5672", "'5672' has no port (HOST:PORT, unix:/path or off)"),
            ("localhost:", "'localhost:' has no valid port (0 to 65535)"),
            ("localhost:65536", "'localhost:65536' has no valid port (0 to 65535)"),
            ("localhost:+1", "'localhost:+1' has no valid port (0 to 65535)"),
            ("::1:5672", "'::1:5672' is not an address (HOST:PORT, unix:/path or off)"),
            ("[::1", "'[::1' is not an address (HOST:PORT, unix:/path or off)"),
            ("[::g]:1", "'[::g]:1' is not an address (HOST:PORT, unix:/path or off)"),
            ("amqp://a:1", "'amqp://a:1' is not an address (HOST:PORT, unix:/path or off)"),
            ("local host:1", "'local host:1' is not an address (HOST:PORT, unix:/path or off)"),
            ("unix:run", "'unix:run' needs an absolute path (unix:/path)"),
        ] {
            assert_eq!(listen(text).unwrap_err().to_string(), reason);
        }
        let long = format!("unix:/{}", "a".repeat(107));
        assert_eq!(listen(&long).unwrap_err().to_string(), "the path of a Unix socket is at most 107 bytes");
    }

    #[test]
    fn an_upstream_has_a_host_and_a_default_port() {
        let url = upstream("amqp://rabbit").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.has_unused_parts), ("rabbit", 5672, false));
        let url = upstream("amqp://[::1]:5673/").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.has_unused_parts), ("::1", 5673, false));
        let url = upstream("amqps://rabbit").unwrap();
        assert_eq!((url.port, url.tls, url.to_string().as_str()), (5671, true, "amqps://rabbit:5671"));
        let url = upstream("amqp://user:pass@rabbit:1/vhost").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.has_unused_parts), ("rabbit", 1, true));
    }

    #[test]
    fn a_wrong_upstream_is_refused_without_being_quoted() {
        for (text, reason) in [
            ("hunter2", "is not a URL (amqp://host[:port])"),
            ("http://u:hunter2@a", "has an unknown scheme (amqp://host[:port])"),
            ("amqp://u:hunter2@", "has no valid host (amqp://host[:port])"),
            ("amqp://u:hunter2@a:0", "has no valid port (1 to 65535)"),
            ("amqp://u:hunter2@a:b", "has no valid port (1 to 65535)"),
            ("amqp://u:hun/ter2@a", "has no valid port (1 to 65535)"),
            ("amqp://u:hunter2@::1", "has no valid host and port"),
            (
                "amqp://u:hunter2@a?heartbeat=1",
                "has parameters, which are not supported (amqp://host[:port])",
            ),
            ("amqp://a,amqp://b", "has no valid host (amqp://host[:port])"),
        ] {
            assert_eq!(upstream(text).unwrap_err().to_string(), reason, "for {text}");
        }
    }

    #[test]
    fn no_form_of_an_upstream_shows_its_credentials() {
        let url = upstream("amqp://user:hunter2@rabbit/vhost").unwrap();
        assert_eq!(url.to_string(), "amqp://rabbit:5672");
        assert_eq!(format!("{url:?}"), "amqp://rabbit:5672");
        assert_eq!(vec![url].to_toml(), "[\"amqp://rabbit:5672\"]");
    }

    #[test]
    fn several_upstreams_are_a_list_and_off_is_none() {
        let parse = |texts: &[&str]| {
            Vec::<UpstreamUrl>::parse_all(&texts.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(parse(&["amqp://a", "amqp://b:1"]).unwrap().len(), 2);
        assert_eq!(parse(&["off"]), Ok(Vec::new()));
        assert_eq!(
            parse(&["amqp://a", "off"]).unwrap_err().to_string(),
            "'off' cannot be combined with a URL"
        );
        assert_eq!(
            parse(&["amqp://a", "amqp://a:5672"]).unwrap_err().to_string(),
            "names the same host and port twice"
        );
    }

    #[test]
    fn credentials_in_any_text_are_masked() {
        assert_eq!(
            mask_credentials("unexpected 'amqp://u:p@ss@a/v' and http://b/ found"),
            "unexpected 'amqp://***@a/v' and http://b/ found"
        );
        assert_eq!(mask_credentials("amqp://u:p a/s@b"), "amqp://***@b");
        assert_eq!(mask_credentials("amqp://u:p@a amqp://u:p@b"), "amqp://***@a amqp://***@b");
        assert_eq!(mask_credentials("plain"), "plain");
    }
}
