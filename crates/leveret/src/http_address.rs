//! Finds the HTTP address of a server on this machine from its settings.

use crate::config::{Config, Effective, ListenAddr, ValueError};
use crate::http_client::Endpoint;

/// The settings that say where the HTTP of a server is.
pub(crate) const KEYS: [&str; 3] = ["http", "https", "upstream"];

/// Whether a flag, a variable or the file says where it is; otherwise it is at one of the usual ports.
pub(crate) fn is_configured(effective: &Effective) -> bool {
    KEYS.iter().any(|key| effective.is_set(key))
}

/// The endpoint of `http`, or of `https` where that is off.
///
/// # Errors
///
/// It is off, or not known; the text begins with the key.
pub(crate) fn endpoint(config: &Config) -> Result<Endpoint, ValueError> {
    let Config { http, https, .. } = config;
    let is_tls = *http == ListenAddr::Off && matches!(https, ListenAddr::Tcp { .. } | ListenAddr::Several(_));
    let (key, listen) = if is_tls { ("https", https) } else { ("http", http) };
    endpoint_of(listen, is_tls).map_err(|error| error.in_key(key))
}

/// The endpoint at which a server with this listener is reached from the same machine.
fn endpoint_of(listen: &ListenAddr, tls: bool) -> Result<Endpoint, ValueError> {
    match listen {
        ListenAddr::Off => Err("is off".into()),
        ListenAddr::Tcp { port: 0, .. } => Err("is port 0, chosen by the system".into()),
        ListenAddr::Several(several) => endpoint_of(&several[0], tls),
        ListenAddr::Unix(path) => Ok(Endpoint::Unix(path.clone())),
        ListenAddr::Tcp { host, port } => {
            let host = match host.as_str() {
                "0.0.0.0" => "127.0.0.1",
                "::" => "::1",
                host => host,
            };
            Ok(Endpoint::Host { host: host.to_owned(), port: *port, tls, prefix: String::new() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_every_address_is_found_on_the_one_of_this_machine() {
        let found = |host: &str| {
            let listen = ListenAddr::Tcp { host: host.to_owned(), port: 15672 };
            endpoint_of(&listen, false).unwrap().to_string()
        };
        assert_eq!(found("0.0.0.0"), "http://127.0.0.1:15672");
        assert_eq!(found("::"), "http://[::1]:15672");
        assert_eq!(found("10.0.0.1"), "http://10.0.0.1:15672");
        assert!(endpoint_of(&ListenAddr::Off, false).is_err());
        assert!(endpoint_of(&ListenAddr::Tcp { host: "::1".to_owned(), port: 0 }, true).is_err());
    }
}
