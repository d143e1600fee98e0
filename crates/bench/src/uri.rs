//! AMQP URIs, as in RabbitMQ's specification of them: `amqp://user:password@host:port/vhost`, or `amqps://` with the
//! query parameters `cacertfile`, `certfile`, `keyfile`, `verify` and `server_name_indication`.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use transport::{HostAndPort, parse_port, split_host_and_port};

/// The ports of AMQP, plain and over TLS.
const DEFAULT_PORTS: [u16; 2] = [5672, 5671];

/// The address and the credentials of a connection.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Uri {
    /// Host name or address, without the brackets of IPv6.
    pub(crate) host: String,
    /// TCP port.
    pub(crate) port: u16,
    /// User name; `guest` when absent.
    pub(crate) user: String,
    /// Password; `guest` when absent.
    pub(crate) password: String,
    /// Virtual host; `/` when there is no path.
    pub(crate) vhost: String,
    /// TLS settings; `None` without TLS.
    pub(crate) tls: Option<Tls>,
}

/// The trusted CA certificates, and the client's certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Trusted CA certificates, as PEM; those of the system if absent.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its key, as PEM.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it differs from the host's.
    pub(crate) server_name: Option<String>,
    /// With `verify=verify_none`: any certificate is accepted.
    pub(crate) unverified: bool,
}

impl Uri {
    /// Parses a URI.
    ///
    /// # Errors
    /// A scheme other than `amqp`, a bad port, or percent-encoding that is not UTF-8.
    pub(crate) fn parse(text: &str) -> Result<Self, UriError> {
        let fail = |reason| UriError { uri: without_password(text), reason };
        let (secure, rest) = match text.split_once("://") {
            Some(("amqp", rest)) => (false, rest),
            Some(("amqps", rest)) => (true, rest),
            _ => return Err(fail("it does not start with amqp:// or amqps://")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (user, password) = match login {
            Some(login) => login.split_once(':').unwrap_or((login, "")),
            None => ("guest", "guest"),
        };
        let (host, port) =
            split_host_and_port(address).ok_or_else(|| fail("it has no valid host and port"))?;
        let port = port.map_or(Some(DEFAULT_PORTS[usize::from(secure)]), parse_port);
        let port = port.ok_or_else(|| fail("its port is not a number"))?;
        let tls = if secure { Some(Tls::from_query(query).map_err(fail)?) } else { None };
        let decode = |part: &str| {
            percent_decode_str(part)
                .decode_utf8()
                .map(std::borrow::Cow::into_owned)
                .map_err(|_| fail("its percent-encoding is not UTF-8"))
        };
        Ok(Self {
            host: if host.is_empty() { "localhost".into() } else { decode(host)? },
            port,
            user: decode(user)?,
            password: decode(password)?,
            vhost: path.map_or(Ok("/".into()), decode)?,
            tls,
        })
    }

    /// The same credentials at another address of the same server.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let mut uri = Self { host: host.to_owned(), port, ..self.clone() };
        if let Some(tls) = &mut uri.tls {
            tls.server_name.get_or_insert_with(|| self.host.clone());
        }
        uri
    }
}

impl Tls {
    /// Parses the parameters that concern TLS. The others tune clients and are ignored.
    fn from_query(query: &str) -> Result<Self, &'static str> {
        let (mut tls, mut certificate, mut key) = (Self::default(), None, None);
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value =
                percent_decode_str(value).decode_utf8().map_err(|_| "a parameter is not UTF-8")?.into_owned();
            match name {
                "cacertfile" => tls.ca = Some(value.into()),
                "certfile" => certificate = Some(value.into()),
                "keyfile" => key = Some(value.into()),
                "server_name_indication" => tls.server_name = Some(value),
                "verify" if value == "verify_none" => tls.unverified = true,
                "verify" if value == "verify_peer" => {}
                "verify" => return Err("verify is neither verify_peer nor verify_none"),
                _ => {}
            }
        }
        tls.certificate = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err("certfile and keyfile belong together"),
        };
        Ok(tls)
    }
}

/// The URI without its password, for reports and logs.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vhost = if self.vhost == "/" { "%2f" } else { &self.vhost };
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        write!(f, "{scheme}://{}@{}/{vhost}", self.user, HostAndPort(&self.host, self.port))
    }
}

/// Without the password, too.
impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an AMQP URI.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("invalid AMQP URI {uri:?}: {reason}")]
pub struct UriError {
    uri: String,
    reason: &'static str,
}

/// Everything up to the last `@` may contain a secret, even if the URI is malformed.
fn without_password(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Uri {
        Uri::parse(text).unwrap()
    }

    #[test]
    fn absent_parts_have_the_usual_defaults() {
        let uri = parse("amqp://");
        assert_eq!((&*uri.host, uri.port), ("localhost", 5672));
        assert_eq!((&*uri.user, &*uri.password, &*uri.vhost), ("guest", "guest", "/"));
    }

    #[test]
    fn every_part_is_read_and_percent_decoded() {
        let uri = parse("amqp://a%40b:p%3aw@[::1]:99/%2fdev?heartbeat=5");
        assert_eq!((&*uri.host, uri.port), ("::1", 99));
        assert_eq!((&*uri.user, &*uri.password, &*uri.vhost), ("a@b", "p:w", "/dev"));
    }

    #[test]
    fn tls_has_its_own_port_and_parameters() {
        let uri =
            parse("amqps://h/v?cacertfile=/a%20b.pem&certfile=c&keyfile=k&verify=verify_none&heartbeat=5");
        assert_eq!((uri.port, uri.to_string()), (5671, "amqps://guest@h:5671/v".into()));
        let near = uri.at("127.0.0.1", 99).tls.unwrap();
        assert_eq!(near.server_name.as_deref(), Some("h"), "it is still the same server");
        let tls = uri.tls.unwrap();
        assert_eq!(tls.ca, Some("/a b.pem".into()));
        assert!(tls.unverified && tls.certificate == Some(("c".into(), "k".into())));
        for bad in ["amqps://h?certfile=c", "amqps://h?verify=maybe"] {
            assert!(Uri::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("amqp://h?verify=maybe").tls, None);
    }

    #[test]
    fn an_empty_path_is_the_vhost_with_the_empty_name() {
        assert_eq!(parse("amqp://h/").vhost, "");
        assert_eq!(parse("amqp://h").vhost, "/");
    }

    #[test]
    fn neither_display_nor_errors_tell_the_password() {
        assert_eq!(parse("amqp://u:secret@h").to_string(), "amqp://u@h:5672/%2f");
        for bad in ["http://u:secret@h", "amqp://u:secret@h:port", "amqps://u:secret@h?verify=x"] {
            let error = Uri::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
