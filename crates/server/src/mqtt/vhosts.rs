//! The choice of a client's virtual host.

use std::collections::HashMap;

/// The rules for a client's virtual host, as in RabbitMQ (`rabbit_mqtt_processor`). If a certificate names the user: the
/// virtual host of the certificate, else of the port, else the prefix of the user name. Otherwise: the prefix of the user
/// name, else the virtual host of the port. If none applies: the default.
#[derive(Debug, Clone, Default)]
pub struct MqttVhosts {
    /// By the user name of a verified client certificate.
    pub by_certificate: HashMap<String, String>,
    /// By the server's port.
    pub by_port: HashMap<u16, String>,
    /// For all other clients.
    pub default: String,
}

impl MqttVhosts {
    /// The virtual host of a client with this user name in its certificate, at this port of the server, and with this
    /// prefix of its user name.
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
    fn certificates_precede_ports_and_ports_precede_user_names() {
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
