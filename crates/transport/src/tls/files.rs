//! Certificates and keys in PEM files.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

use super::error::{TlsError, TlsFile};

/// A certificate with its chain, and its private key, both as PEM; possibly in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate first, then the intermediate ones.
    pub certificate: PathBuf,
    /// PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub key: PathBuf,
}

/// Description of a certificate, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The file it was read from.
    pub path: PathBuf,
    /// The DNS names and addresses for which it is valid.
    pub names: Vec<String>,
    /// When it expires, as text.
    pub expires: String,
    /// Whether it is valid at the present time.
    pub in_time: bool,
    /// When each certificate of the file expires: the certificate itself first, then its chain.
    pub ends: Vec<Expiry>,
}

/// When a certificate expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// The time in seconds since 1970.
    pub at: i64,
    /// The same in the form of RabbitMQ's health check, in UTC: `2026-01-31 9:05:00`.
    pub text: String,
}

/// A file of trusted CA certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaInfo {
    /// The file they were read from.
    pub path: PathBuf,
    /// When each of them expires.
    pub ends: Vec<Expiry>,
}

impl fmt::Display for CertificateInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}, expires {}", self.path.display(), self.names.join(" "), self.expires)
    }
}

/// Reads a certificate and its key, and checks that they match.
pub(super) fn read_pair(
    files: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, CertificateInfo), TlsError> {
    let chain = read_certificates(TlsFile::Certificate, &files.certificate)?;
    let of_key = |reason: String| TlsError::new(TlsFile::Key, &files.key, reason);
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| of_key(key_fault(&files.key, &error)))?;
    let first = chain.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()));
    let of_certificate = |reason| TlsError::new(TlsFile::Certificate, &files.certificate, reason);
    let info = inspect(&files.certificate, &first, ends(&chain)).map_err(of_certificate)?;
    let pair = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            of_key(format!("is not the key of the certificate in {}", files.certificate.display()))
        }
        other => of_key(format!("not a usable key: {other}")).caused_by(other),
    })?;
    Ok((pair, info))
}

/// Reads CA certificates.
pub(super) fn read_ca(path: &Path) -> Result<(RootCertStore, CaInfo), TlsError> {
    let certificates = read_certificates(TlsFile::Ca, path)?;
    let ends = ends(&certificates);
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| TlsError::new(TlsFile::Ca, path, &error).caused_by(error))?;
    }
    Ok((roots, CaInfo { path: path.to_owned(), ends }))
}

fn read_certificates(file: TlsFile, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let at_fault = |reason: String| TlsError::new(file, path, reason);
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| at_fault(pem_fault(&error)))?;
    if certificates.is_empty() {
        return Err(at_fault("contains no certificate in PEM form".to_owned()));
    }
    Ok(certificates)
}

fn pem_fault(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        pem::Error::NoItemsFound => "contains no certificate in PEM form".to_owned(),
        // The error's own text may quote the line.
        _ => "is not valid PEM".to_owned(),
    }
}

fn key_fault(path: &Path, error: &pem::Error) -> String {
    match error {
        pem::Error::Io(_) => pem_fault(error),
        _ if has_encrypted_key(path) => "is encrypted; decrypt it with openssl pkey".to_owned(),
        pem::Error::NoItemsFound => "contains no private key in PEM form".to_owned(),
        other => pem_fault(other),
    }
}

/// Whether the file has an encrypted key: of PKCS #8 (RFC 7468, section 11), or of the traditional form, with a header
/// (RFC 1421, section 4.6.1.1).
fn has_encrypted_key(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().any(|line| {
        let header = line.strip_prefix("Proc-Type:");
        line == "-----BEGIN ENCRYPTED PRIVATE KEY-----"
            || header.is_some_and(|kind| kind.contains("ENCRYPTED"))
    })
}

/// The bytes are not an X.509 certificate.
#[derive(Debug)]
struct NotACertificate;

impl fmt::Display for NotACertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not a certificate")
    }
}

fn parse<'c>(certificate: &'c CertificateDer<'_>) -> Result<X509Certificate<'c>, NotACertificate> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|_| NotACertificate)
}

/// When each of these expires. Skips those that only rustls can parse: rustls decides which ones are usable.
fn ends(certificates: &[CertificateDer<'_>]) -> Vec<Expiry> {
    let end = |certificate| Some(expiry(parse(certificate).ok()?.validity().not_after));
    certificates.iter().filter_map(end).collect()
}

fn expiry(end: ASN1Time) -> Expiry {
    let date = end.to_datetime();
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (date.hour(), date.minute(), date.second());
    let text = format!("{year}-{month:02}-{day:02} {hour}:{minute:02}:{second:02}");
    Expiry { at: end.timestamp(), text }
}

fn inspect(
    path: &Path,
    certificate: &CertificateDer<'_>,
    ends: Vec<Expiry>,
) -> Result<CertificateInfo, NotACertificate> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    Ok(CertificateInfo {
        path: path.to_owned(),
        names: names(&parsed),
        expires: validity.not_after.to_string(),
        in_time: validity.is_valid(),
        ends,
    })
}

/// The subject's alternative names that a client can ask for.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|ip| std::net::Ipv4Addr::from(ip).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|ip| std::net::Ipv6Addr::from(ip).to_string()),
        },
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}
