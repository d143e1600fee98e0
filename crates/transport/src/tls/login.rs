//! Derives the user name from a client's certificate, as RabbitMQ does (`ssl_cert_login_from`).

use std::fmt::Write as _;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, GeneralName, X509Certificate, X509Name};

/// The part of a certificate that is the user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginFrom {
    /// The subject as text, such as `CN=client,OU=test,O=example`: the last part of the certificate comes first (RFC
    /// 4514), and characters other than printable ASCII are escaped.
    DistinguishedName,
    /// The subject's CN; several are joined by commas.
    CommonName,
    /// The first of the subject's alternative names that is of this type.
    SubjectAlternativeName(SanType),
}

/// A type of alternative name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanType {
    /// A DNS name.
    Dns,
    /// An e-mail address.
    Email,
    /// A URI.
    Uri,
}

impl LoginFrom {
    /// The user name in a certificate; `None` if it has none of this kind.
    pub(super) fn name(self, certificate: &CertificateDer<'_>) -> Option<String> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let name = match self {
            Self::DistinguishedName => distinguished_name(certificate.subject())?,
            Self::CommonName => common_name(certificate.subject()),
            Self::SubjectAlternativeName(san) => alternative_name(&certificate, san)?,
        };
        // A user name is not empty, and no longer than AMQP's short strings.
        (!name.is_empty() && name.len() <= MAX_NAME_LENGTH).then_some(name)
    }
}

/// Bytes of the longest user name.
const MAX_NAME_LENGTH: usize = 255;

fn distinguished_name(subject: &X509Name<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for set in subject.iter_rdn() {
        let attributes = set.iter().map(attribute).collect::<Option<Vec<_>>>()?;
        parts.push(attributes.join("+"));
    }
    parts.reverse();
    Some(parts.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let kind = attribute.attr_type().to_id_string();
    let value = escape(&text(attribute)?);
    Some(match NAMES.iter().find(|(id, _)| *id == kind) {
        Some((_, name)) => format!("{name}={value}"),
        None => format!("{kind}={value}"),
    })
}

/// The attribute types that have names in a subject's text; others are written as numbers.
const NAMES: [(&str, &str); 17] = [
    ("2.5.4.4", "SN"),
    ("2.5.4.42", "GIVENNAME"),
    ("2.5.4.43", "INITIALS"),
    ("2.5.4.44", "GENERATIONQUALIFIER"),
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "TITLE"),
    ("2.5.4.6", "C"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("2.5.4.65", "PSEUDONYM"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "EMAILADDRESS"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

fn common_name(subject: &X509Name<'_>) -> String {
    subject.iter_common_name().filter_map(text).collect::<Vec<_>>().join(",")
}

/// The value as text, if its type is one for text.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    if let Ok(text) = attribute.as_str() {
        return Some(text.to_owned());
    }
    // BMPString: UTF-16, without surrogates.
    let value = attribute.attr_value();
    if value.tag() == x509_parser::der_parser::asn1_rs::Tag::BmpString {
        let units = value.data.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        return String::from_utf16(&units.collect::<Vec<_>>()).ok();
    }
    None
}

/// Escapes as in RFC 4514, section 2.4, and like RabbitMQ also the bytes of everything that is not printable ASCII.
fn escape(value: &str) -> String {
    let last = value.len().saturating_sub(1);
    let mut escaped = String::with_capacity(value.len());
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            b' ' | b'#' if at == 0 => escaped.extend(['\\', char::from(byte)]),
            b' ' if at == last => escaped.push_str("\\ "),
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => escaped.extend(['\\', char::from(byte)]),
            0..32 | 126.. => {
                let _ = write!(escaped, "\\{byte:02X}");
            }
            _ => escaped.push(char::from(byte)),
        }
    }
    escaped
}

fn alternative_name(certificate: &X509Certificate<'_>, san: SanType) -> Option<String> {
    let names = &certificate.subject_alternative_name().ok()??.value.general_names;
    names.iter().find_map(|name| match (san, name) {
        (SanType::Dns, GeneralName::DNSName(name))
        | (SanType::Email, GeneralName::RFC822Name(name))
        | (SanType::Uri, GeneralName::URI(name)) => Some((*name).to_owned()),
        _ => None,
    })
}
