//! Lists that map ports and certificates to virtual hosts.

use std::fmt::Display;

use super::choice::list;
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// Virtual hosts by ports: `1884=devices`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortVhosts(pub(crate) Vec<(u16, String)>);

/// Virtual hosts by the user names of certificates: `CN=worker,O=example=devices`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateVhosts(pub(crate) Vec<(String, String)>);

/// Parses a list of which each text is a key, `=` and a virtual host; `off` is the empty one.
fn parse_all<K: PartialEq + Display>(
    texts: &[String],
    parse: impl Fn(&str) -> Result<(K, String), ValueError>,
) -> Result<Vec<(K, String)>, ValueError> {
    let mut entries: Vec<(K, String)> = Vec::new();
    for text in texts.iter().filter(|text| *text != "off" || texts.len() > 1) {
        let (key, vhost) = parse(text)?;
        if entries.iter().any(|(other, _)| *other == key) {
            return Err(ValueError::Twice(key.to_string()));
        }
        entries.push((key, vhost));
    }
    Ok(entries)
}

fn to_toml<K: Display>(entries: &[(K, String)]) -> String {
    list(entries.iter().map(|(key, vhost)| quoted(&format!("{key}={vhost}"))))
}

fn port_entry(text: &str) -> Result<(u16, String), ValueError> {
    const FAULT: &str = "is not a port, '=' and a virtual host";
    let (port, vhost) = text.split_once('=').ok_or_else(|| ValueError::text(text, FAULT))?;
    match port.parse() {
        Ok(port) if port > 0 && !vhost.is_empty() => Ok((port, vhost.to_owned())),
        _ => Err(ValueError::text(text, FAULT)),
    }
}

/// The virtual host is behind the last `=`, since distinguished names have others.
fn certificate_entry(text: &str) -> Result<(String, String), ValueError> {
    match text.rsplit_once('=') {
        Some((name, vhost)) if !name.is_empty() && !vhost.is_empty() => {
            Ok((name.to_owned(), vhost.to_owned()))
        }
        _ => Err(ValueError::text(text, "is not the name of a certificate, '=' and a virtual host")),
    }
}

impl Value for PortVhosts {
    const KIND: &'static str = "PORT=VHOST";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::parse_all(&[text.to_owned()])
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        parse_all(texts, port_entry).map(Self)
    }

    fn to_toml(&self) -> String {
        to_toml(&self.0)
    }
}

impl Value for CertificateVhosts {
    const KIND: &'static str = "NAME=VHOST";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::parse_all(&[text.to_owned()])
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        parse_all(texts, certificate_entry).map(Self)
    }

    fn to_toml(&self) -> String {
        to_toml(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        let ports = PortVhosts::parse_all(&texts(&["1884=devices", "8883=a=b"])).unwrap();
        assert_eq!(ports.0, [(1884, "devices".to_owned()), (8883, "a=b".to_owned())]);
        assert_eq!(ports.to_toml(), r#"["1884=devices", "8883=a=b"]"#);
        let certificates = CertificateVhosts::parse_all(&texts(&["CN=worker,O=example=devices"])).unwrap();
        assert_eq!(certificates.0, [("CN=worker,O=example".to_owned(), "devices".to_owned())]);
        assert_eq!(PortVhosts::parse("off").unwrap().to_toml(), "[]");
    }

    #[test]
    fn invalid_mappings_are_refused_with_the_reason() {
        let reported = |list: &[&str]| PortVhosts::parse_all(&texts(list)).unwrap_err().to_string();
        for wrong in ["devices", "0=devices", "65536=devices", "1884="] {
            assert_eq!(reported(&[wrong]), format!("'{wrong}' is not a port, '=' and a virtual host"));
        }
        assert_eq!(reported(&["1884=a", "1884=b"]), "names 1884 twice");
        assert!(reported(&["off", "1884=a"]).starts_with("'off' is not"));
        assert!(CertificateVhosts::parse("worker").is_err());
    }
}
