//! The expiry of the listeners' certificates.

use admin::{MetricKind, MetricsWriter, TlsListener};
use transport::tls::ServerTls;

use crate::manage::tls_listeners;

pub(super) fn write(tls: Option<&ServerTls>, out: &mut MetricsWriter) {
    write_of(&tls_listeners(tls), out);
}

fn write_of(listeners: &[TlsListener], out: &mut MetricsWriter) {
    if listeners.is_empty() {
        return;
    }
    let help = "Expiration time of the listener's certificate, or of the first in its chain to expire, in seconds since the epoch.";
    let mut family = out.family("leveret_certificate_expires_seconds", help, MetricKind::Gauge);
    for TlsListener { listener, certificates, .. } in listeners {
        let port = listener.port.to_string();
        for (place, file) in certificates.iter().enumerate() {
            // A file that is configured twice gets only one sample.
            if certificates[..place].iter().any(|other| other.path == file.path) {
                continue;
            }
            let labels = [
                ("protocol", listener.protocol),
                ("host", &listener.host),
                ("port", &port),
                ("certificate", &file.path),
            ];
            let first = file.ends.iter().map(|(at, _)| *at).min().unwrap_or_default();
            family.sample(&labels, u64::try_from(first).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use admin::{CertificateFile, ListenerInfo};

    use super::*;

    #[test]
    fn a_certificate_has_one_sample_per_listener_with_the_earliest_expiry() {
        let file = |path: &str, ends: &[i64]| CertificateFile {
            path: path.to_owned(),
            ends: ends.iter().map(|at| (*at, String::new())).collect(),
        };
        let listener = |protocol, port| TlsListener {
            listener: ListenerInfo { protocol, host: "::1".to_owned(), port },
            certificates: vec![file("/a", &[9, 7]), file("/b", &[8]), file("/a", &[9, 7])],
            ca: None,
        };
        let mut out = MetricsWriter::new();
        write_of(&[listener("https", 1), listener("amqp/ssl", 2)], &mut out);
        let text = out.into_text();
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let sample = |protocol, port, path, at| {
            format!(
                "leveret_certificate_expires_seconds{{protocol=\"{protocol}\",host=\"::1\",port=\"{port}\",\
                 certificate=\"{path}\"}} {at}"
            )
        };
        let expected = [
            ("https", 1, "/a", 7),
            ("https", 1, "/b", 8),
            ("amqp/ssl", 2, "/a", 7),
            ("amqp/ssl", 2, "/b", 8),
        ];
        assert_eq!(samples, expected.map(|(protocol, port, path, at)| sample(protocol, port, path, at)));
    }
}
