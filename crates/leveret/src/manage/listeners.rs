//! Listeners as the API shows them.

use std::net::SocketAddr;
use std::path::Path;

use admin::{CertificateFile, ListenerInfo, TlsListener};
use transport::tls::{Expiry, TlsInUse};

use crate::announce::Announced;

/// A listener from its announcement; `None` if RabbitMQ has no name for its protocol.
pub(super) fn read(name: &str, url: &str) -> Option<ListenerInfo> {
    let protocol = match name {
        "amqp" => "amqp",
        "amqps" => "amqp/ssl",
        "mqtt" => "mqtt",
        "mqtts" => "mqtt/ssl",
        "stomp" => "stomp",
        "stomps" => "stomp/ssl",
        "ws" => "http/web-amqp",
        "wss" => "https/web-amqp",
        "web-mqtt" => "http/web-mqtt",
        "web-mqtts" => "https/web-mqtt",
        "web-stomp" => "http/web-stomp",
        "web-stomps" => "https/web-stomp",
        "http" => "http",
        "https" => "https",
        "prometheus" => "http/prometheus",
        _ => return None,
    };
    Some(place(protocol, url))
}

fn place(protocol: &'static str, url: &str) -> ListenerInfo {
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    match place.parse::<SocketAddr>() {
        Ok(address) => ListenerInfo { protocol, host: address.ip().to_string(), port: address.port() },
        // A Unix socket.
        Err(_) => ListenerInfo { protocol, host: place.to_owned(), port: 0 },
    }
}

/// The listeners over TLS, with their certificates and trusted authorities. Listeners of relays are included,
/// with a protocol name of Leveret's own.
pub(super) fn over_tls(announced: &[Announced], in_use: &TlsInUse) -> Vec<TlsListener> {
    let file = |path: &Path, ends: &[Expiry]| CertificateFile {
        path: path.display().to_string(),
        ends: ends.iter().map(|end| (end.at, end.text.clone())).collect(),
    };
    let certificates: Vec<_> =
        in_use.certificates.iter().map(|certificate| file(&certificate.path, &certificate.ends)).collect();
    let authorities =
        in_use.authorities.as_ref().map(|authorities| file(&authorities.path, &authorities.ends));
    let over_tls = announced.iter().filter(|listener| listener.is_tls);
    over_tls
        .map(|Announced { name, url, .. }| TlsListener {
            listener: read(name, url).unwrap_or_else(|| place("https/relay", url)),
            certificates: certificates.clone(),
            authorities: authorities.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use transport::tls::CertificateInfo;

    use super::*;

    #[test]
    fn a_listener_is_where_it_was_announced() {
        let reported = |name, url| read(name, url).map(|info| (info.protocol, info.host, info.port));
        assert_eq!(reported("amqps", "amqps://127.0.0.1:1"), Some(("amqp/ssl", "127.0.0.1".into(), 1)));
        assert_eq!(reported("ws", "ws://[::1]:2"), Some(("http/web-amqp", "::1".into(), 2)));
        assert_eq!(reported("http", "unix:/run/x"), Some(("http", "unix:/run/x".into(), 0)));
        assert_eq!(reported("relay", "ws://127.0.0.1:1"), None);
        assert_eq!(reported("https", "https://127.0.0.1:1"), Some(("https", "127.0.0.1".into(), 1)));
    }

    #[test]
    fn certificates_are_told_with_every_listener_over_tls_and_no_other() {
        let announced =
            |name: &str, url: &str, is_tls| Announced { name: name.into(), url: url.into(), is_tls };
        let listeners = [
            announced("amqp", "amqp://127.0.0.1:1", false),
            announced("amqps", "unix:/run/x", true),
            announced("relay", "wss://127.0.0.1:2", true),
        ];
        let certificates = vec![CertificateInfo {
            path: "/a.pem".into(),
            names: Vec::new(),
            expires: String::new(),
            in_time: true,
            ends: vec![Expiry { at: 7, text: "then".to_owned() }],
        }];
        let reported = over_tls(&listeners, &TlsInUse { certificates, authorities: None });
        let reported: Vec<_> = reported
            .iter()
            .map(|each| (each.listener.protocol, each.listener.port, &each.certificates[0]))
            .collect();
        let file = CertificateFile { path: "/a.pem".to_owned(), ends: vec![(7, "then".to_owned())] };
        assert_eq!(reported, [("amqp/ssl", 0, &file), ("https/relay", 2, &file)]);
    }
}
