//! AMQP URIs, as in RabbitMQ's specification of them: `amqp://user:password@host:port/vhost`.

use std::fmt;

use percent_encoding::percent_decode_str;

/// The port of plain AMQP.
const DEFAULT_PORT: u16 = 5672;

/// Where and as whom to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    /// Host name or address, without the brackets of IPv6.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// User name; `guest` when absent.
    pub user: String,
    /// Password; `guest` when absent.
    pub password: String,
    /// Virtual host; `/` when there is no path.
    pub vhost: String,
}

impl Uri {
    /// Reads a URI.
    ///
    /// # Errors
    /// A scheme other than `amqp`, a bad port, or percent-encoding that is not UTF-8.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let fail = |reason| UriError { uri: without_password(text), reason };
        let rest = match text.split_once("://") {
            Some(("amqp", rest)) => rest,
            Some(("amqps", _)) => return Err(fail("amqps is not supported by the load generator")),
            _ => return Err(fail("it does not start with amqp://")),
        };
        // Query parameters tune clients; none of them concerns this one.
        let rest = rest.split('?').next().unwrap_or(rest);
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
        let (host, port) = split_address(address).ok_or_else(|| fail("its port is not a number"))?;
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
        })
    }
}

/// The URI without its password, for reports and logs.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vhost = if self.vhost == "/" { "%2f" } else { &self.vhost };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "amqp://{}@{open}{}{close}:{}/{vhost}", self.user, self.host, self.port)
    }
}

/// Without the password too.
impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no AMQP URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriError {
    uri: String,
    reason: &'static str,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid AMQP URI {:?}: {}", self.uri, self.reason)
    }
}

impl std::error::Error for UriError {}

fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    Some((host, port.map_or(Ok(DEFAULT_PORT), str::parse).ok()?))
}

/// What stands between the scheme and the `@` may hold a secret, however malformed the rest is.
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
    fn an_empty_path_is_the_vhost_with_the_empty_name() {
        assert_eq!(parse("amqp://h/").vhost, "");
        assert_eq!(parse("amqp://h").vhost, "/");
    }

    #[test]
    fn neither_display_nor_errors_tell_the_password() {
        assert_eq!(parse("amqp://u:secret@h").to_string(), "amqp://u@h:5672/%2f");
        for bad in ["http://u:secret@h", "amqp://u:secret@h:port", "amqps://u:secret@h"] {
            let error = Uri::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
