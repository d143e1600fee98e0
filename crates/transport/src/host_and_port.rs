//! Host and port in the syntax of URLs and settings.

use std::fmt;
use std::net::Ipv6Addr;

/// Shows a host, which may be an IPv6 address without brackets, and a port: `host:port`, `[v6]:port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostAndPort<'a>(pub &'a str, pub u16);

impl fmt::Display for HostAndPort<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        if host.contains(':') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

/// Splits `host:port`, `[v6]:port`, `host` and `[v6]`. Returns `None` if the brackets or colons are invalid. The host may be
/// empty; [`parse_port`] reads the port.
pub fn split_host_and_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        // With a zone, as link-local addresses need it (RFC 4007, section 11; in a URL its percent sign is `%25`).
        let address = host.split_once('%').map_or(host, |(address, _)| address);
        address.parse::<Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((host, None)),
            _ => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    match text.split_once(':') {
        None => Some((text, None)),
        Some((_, port)) if port.contains(':') => None,
        Some((host, port)) => Some((host, Some(port))),
    }
}

/// Reads a port, which consists of digits only. Port 0 is valid.
pub fn parse_port(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_host_and_port_splits_back_into_its_parts() {
        for (host, shown) in [("a.b", "a.b:1"), ("::1", "[::1]:1"), ("127.0.0.1", "127.0.0.1:1"), ("", ":1")]
        {
            assert_eq!(HostAndPort(host, 1).to_string(), shown);
            assert_eq!(split_host_and_port(shown), Some((host, Some("1"))));
        }
    }

    #[test]
    fn a_port_may_be_absent_and_is_digits_alone() {
        assert_eq!(split_host_and_port("a"), Some(("a", None)));
        assert_eq!(split_host_and_port("[::1]"), Some(("::1", None)));
        assert_eq!(split_host_and_port("[fe80::1%25lo]:9"), Some(("fe80::1%25lo", Some("9"))));
        for wrong in ["::1", "a:1:2", "[::1", "[::1]1", "[a]:1"] {
            assert_eq!(split_host_and_port(wrong), None, "{wrong}");
        }
        assert_eq!(
            ["0", "65535", "65536", "+1", "", " 1"].map(parse_port),
            [Some(0), Some(65535), None, None, None, None]
        );
    }
}
