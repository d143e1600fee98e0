//! The address of a service.

use std::fmt;

use transport::{HostAndPort, parse_port, split_host_and_port};

/// An `http://` or `https://` URL, without user and fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    pub(crate) tls: bool,
    /// A name, or an IP address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query, with a leading slash.
    pub(crate) path: String,
}

/// The reason why a text is not such a URL. It quotes nothing, since a URL may contain a password.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum ServiceUrlError {
    /// The scheme is not `http` or `https`.
    #[error("must be a URL that begins with http:// or https://")]
    Scheme,
    /// There is a user before the host.
    #[error("must not hold a user or password")]
    User,
    /// The host is missing, or the port invalid.
    #[error("has no valid host and port")]
    Host,
    /// Characters that must be escaped, or a fragment.
    #[error("has characters that must be escaped")]
    Characters,
}

impl ServiceUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// The first error in it.
    pub fn parse(text: &str) -> Result<Self, ServiceUrlError> {
        let (tls, rest) = if let Some(rest) = text.strip_prefix("https://") {
            (true, rest)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (false, rest)
        } else {
            return Err(ServiceUrlError::Scheme);
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err(ServiceUrlError::Characters);
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(ServiceUrlError::User);
        }
        let address = split_host_and_port(authority).filter(|(host, _)| !host.is_empty());
        let (host, port) = address.ok_or(ServiceUrlError::Host)?;
        let port = port.map_or(Some(if tls { 443 } else { 80 }), parse_port).filter(|port| *port != 0);
        let port = port.ok_or(ServiceUrlError::Host)?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, host: host.to_owned(), port, path })
    }

    /// Host and port as in the Host header.
    pub(crate) fn authority(&self) -> String {
        HostAndPort(&self.host, self.port).to_string()
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(formatter, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_they_are_shown() {
        for (text, shown) in [
            ("http://idp", "http://idp:80/"),
            ("https://idp/keys?a=b", "https://idp:443/keys?a=b"),
            ("https://[::1]:8443/keys", "https://[::1]:8443/keys"),
            ("http://idp:8080?a", "http://idp:8080/?a"),
        ] {
            assert_eq!(ServiceUrl::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_being_quoted() {
        for text in [
            "",
            "idp",
            "ftp://idp",
            "file:///etc/passwd",
            "http://",
            "http://:80",
            "http://idp:0",
            "http://idp:port",
            "http://me:hunter2@idp",
            "http://idp/#hunter2",
            "http://i dp",
            "http://[::1",
            "http://[::1]x",
        ] {
            let error = ServiceUrl::parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
