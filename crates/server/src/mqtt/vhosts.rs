//! The virtual hosts of clients whose user names do not begin with one.

use std::collections::HashMap;

/// Which virtual host a client is in: that of its certificate, else that of the port it has connected to, else the default.
#[derive(Debug, Clone, Default)]
pub struct MqttVhosts {
    /// By the user names of verified client certificates.
    pub by_certificate: HashMap<String, String>,
    /// By the server's ports.
    pub by_port: HashMap<u16, String>,
    /// That of all others.
    pub default: String,
}

impl MqttVhosts {
    /// The virtual host of a client with this user name in its certificate, at this port of the server.
    pub(super) fn of(&self, external: Option<&str>, port: Option<u16>) -> &str {
        let of_certificate = external.and_then(|name| self.by_certificate.get(name));
        of_certificate.or_else(|| self.by_port.get(&port?)).unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_goes_before_the_port_and_that_before_the_default() {
        let vhosts = MqttVhosts {
            by_certificate: HashMap::from([("CN=worker".to_owned(), "certificate".to_owned())]),
            by_port: HashMap::from([(1884, "port".to_owned())]),
            default: "/".to_owned(),
        };
        assert_eq!(vhosts.of(Some("CN=worker"), Some(1884)), "certificate");
        assert_eq!(vhosts.of(Some("CN=other"), Some(1884)), "port");
        assert_eq!(vhosts.of(None, Some(1884)), "port");
        assert_eq!(vhosts.of(None, Some(1883)), "/");
        assert_eq!(vhosts.of(None, None), "/", "a Unix socket");
    }
}
