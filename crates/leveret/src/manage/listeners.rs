//! Listeners as the API shows them.

use std::net::SocketAddr;
use std::path::Path;

use admin::{CertificateFile, ListenerInfo, TlsListener};
use transport::tls::{Expiry, TlsInUse};

use crate::announce::Announced;
use crate::relays::RELAY;

/// The listeners that RabbitMQ has, too: all but those of relays.
pub(super) fn all(announced: &[Announced]) -> Vec<ListenerInfo> {
    announced.iter().filter(|listener| listener.kind.setting != RELAY).map(view).collect()
}

fn view(Announced { kind, url }: &Announced) -> ListenerInfo {
    let protocol = kind.rabbitmq_name;
    let place = url.split_once("://").map_or(url.as_str(), |(_, place)| place);
    match place.parse::<SocketAddr>() {
        Ok(address) => ListenerInfo { protocol, host: address.ip().to_string(), port: address.port() },
        // A Unix socket.
        Err(_) => ListenerInfo { protocol, host: place.to_owned(), port: 0 },
    }
}

/// The listeners over TLS, with their certificates and trusted CA certificates. Listeners of relays are included,
/// with a protocol name of Leveret's own.
pub(super) fn over_tls(announced: &[Announced], in_use: &TlsInUse) -> Vec<TlsListener> {
    let file = |path: &Path, ends: &[Expiry]| CertificateFile {
        path: path.display().to_string(),
        ends: ends.iter().map(|end| (end.at, end.text.clone())).collect(),
    };
    let certificates: Vec<_> =
        in_use.certificates.iter().map(|certificate| file(&certificate.path, &certificate.ends)).collect();
    let ca = in_use.ca.as_ref().map(|ca| file(&ca.path, &ca.ends));
    let over_tls = announced.iter().filter(|listener| listener.kind.tls);
    over_tls
        .map(|listener| TlsListener {
            listener: view(listener),
            certificates: certificates.clone(),
            ca: ca.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use broker::FrontEnd;
    use server::{ClientProtocol, ListenerKind};
    use transport::tls::CertificateInfo;

    use super::*;
    use crate::relays::relay_listener;

    fn announced(kind: &ListenerKind, url: &str) -> Announced {
        Announced { kind: *kind, url: url.to_owned() }
    }

    #[test]
    fn a_listener_is_where_it_was_announced() {
        let [_, amqps, ws, _] = &ClientProtocol::of(FrontEnd::Amqp).listeners;
        let listeners = [
            announced(amqps, "amqps://127.0.0.1:1"),
            announced(ws, "ws://[::1]:2"),
            announced(ws, "unix:/run/x"),
            announced(&relay_listener(false), "ws://127.0.0.1:1"),
        ];
        let reported: Vec<_> =
            all(&listeners).into_iter().map(|info| (info.protocol, info.host, info.port)).collect();
        let expected = [
            ("amqp/ssl", "127.0.0.1".to_owned(), 1),
            ("http/web-amqp", "::1".to_owned(), 2),
            ("http/web-amqp", "unix:/run/x".to_owned(), 0),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn certificates_are_listed_with_every_tls_listener_and_no_other() {
        let [amqp, amqps, ..] = &ClientProtocol::of(FrontEnd::Amqp).listeners;
        let listeners = [
            announced(amqp, "amqp://127.0.0.1:1"),
            announced(amqps, "unix:/run/x"),
            announced(&relay_listener(true), "wss://127.0.0.1:2"),
        ];
        let certificates = vec![CertificateInfo {
            path: "/a.pem".into(),
            names: Vec::new(),
            expires: String::new(),
            in_time: true,
            ends: vec![Expiry { at: 7, text: "then".to_owned() }],
        }];
        let reported = over_tls(&listeners, &TlsInUse { certificates, ca: None });
        let reported: Vec<_> = reported
            .iter()
            .map(|each| (each.listener.protocol, each.listener.port, &each.certificates[0]))
            .collect();
        let file = CertificateFile { path: "/a.pem".to_owned(), ends: vec![(7, "then".to_owned())] };
        assert_eq!(reported, [("amqp/ssl", 0, &file), ("https/relay", 2, &file)]);
    }
}
