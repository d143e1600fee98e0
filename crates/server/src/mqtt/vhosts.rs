//! The virtual hosts of clients.

use std::collections::HashMap;

/// Which virtual host a client is in, as in RabbitMQ (`rabbit_mqtt_processor`). With a certificate that names a user: that of
/// the certificate, else that of the port it has connected to, else that in front of its user name. Without one: that in front
/// of its user name, else that of the port. Otherwise the default.
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
    /// The virtual host of a client with this user name in its certificate, at this port of the server, and with this virtual
    /// host in front of its user name.
    pub(super) fn of<'a>(
        &'a self,
        external: Option<&str>,
        port: Option<u16>,
        prefix: Option<&'a str>,
    ) -> &'a str {
        let of_port = port.and_then(|port| self.by_port.get(&port)).map(String::as_str);
        let chosen = match external {
            Some(name) => self.by_certificate.get(name).map(String::as_str).or(of_port).or(prefix),
            None => prefix.or(of_port),
        };
        chosen.unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_goes_before_the_port_and_that_before_the_user_name_and_without_one_the_user_name_does() {
        let vhosts = MqttVhosts {
            by_certificate: HashMap::from([("CN=worker".to_owned(), "certificate".to_owned())]),
            by_port: HashMap::from([(1884, "port".to_owned())]),
            default: "/".to_owned(),
        };
        for prefix in [None, Some("prefix")] {
            assert_eq!(vhosts.of(Some("CN=worker"), Some(1884), prefix), "certificate");
            assert_eq!(vhosts.of(Some("CN=other"), Some(1884), prefix), "port");
            for external in [None, Some("CN=other")] {
                assert_eq!(vhosts.of(external, Some(1883), prefix), prefix.unwrap_or("/"));
                assert_eq!(vhosts.of(external, None, prefix), prefix.unwrap_or("/"), "a Unix socket");
            }
        }
        assert_eq!(vhosts.of(None, Some(1884), None), "port");
        assert_eq!(vhosts.of(None, Some(1884), Some("prefix")), "prefix");
    }
}
