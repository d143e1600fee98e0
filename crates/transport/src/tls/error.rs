//! Errors about certificates, worded for the administrator who has to fix them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustls::{AlertDescription, CertificateError, Error};

/// The purpose of a file of a TLS configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// A certificate and its chain.
    Certificate,
    /// The certificate's private key.
    Key,
    /// The trusted CA certificates.
    Ca,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TlsError {
    /// The purpose of the file.
    pub file: TlsFile,
    /// The file and its fault, or that it is missing.
    pub reason: String,
    /// The error of rustls. Errors of reading PEM are omitted, since their texts may quote a key.
    source: Option<Error>,
}

impl TlsError {
    pub(super) fn new(file: TlsFile, path: &Path, reason: impl fmt::Display) -> Self {
        Self { file, reason: format!("{}: {reason}", path.display()), source: None }
    }

    /// An error of the configuration that concerns no single file.
    pub(super) fn without_path(file: TlsFile, reason: impl fmt::Display) -> Self {
        Self { file, reason: reason.to_string(), source: None }
    }

    pub(super) fn caused_by(self, source: Error) -> Self {
        Self { source: Some(source), ..self }
    }
}

/// Turns the failure of a handshake with a client into an error that explains it.
pub(super) fn explain_client(error: io::Error) -> io::Error {
    explain(error, |error| match error {
        Error::InvalidMessage(_) => Some("the client does not speak TLS".to_owned()),
        Error::NoCertificatesPresented => Some("the client has no certificate".to_owned()),
        Error::InvalidCertificate(why) => Some(format!("the client's certificate {}", fault(why))),
        _ => None,
    })
}

/// Turns the failure of a handshake with the server named `name` into an error that explains it.
pub(super) fn explain_server(error: io::Error, name: &str) -> io::Error {
    explain(error, |error| match error {
        Error::InvalidMessage(_) => Some("the server does not speak TLS: is this its TLS port?".to_owned()),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(format!("the server's certificate is not for '{name}'")),
        Error::InvalidCertificate(why) => Some(format!("the server's certificate {}", fault(why))),
        _ => None,
    })
}

/// Explains a failure on a connection that is already open: with TLS 1.3 a client learns only then why the server
/// refuses it.
pub(crate) fn explain_open(error: io::Error) -> io::Error {
    explain(error, |_| None)
}

fn explain(error: io::Error, text: impl Fn(&Error) -> Option<String>) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return io::Error::new(io::ErrorKind::InvalidData, "TLS: closed during the handshake");
    }
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(tls) => {
            let text = match tls {
                Error::AlertReceived(alert) => format!("refused by the other side: {}", alert_text(*alert)),
                _ => text(tls).unwrap_or_else(|| tls.to_string()),
            };
            io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {text}"))
        }
        None => error,
    }
}

/// Describes what is wrong with a certificate, as the end of a sentence.
fn fault(error: &CertificateError) -> String {
    match error {
        // `BadSignature`: a CA with the name of a trusted one, but another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "was not issued by a trusted CA".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not valid for this purpose (extended key usage)".to_owned()
        }
        // rustls has no variant for it, and its cause is a type of a crate that is no dependency of ours; a test creates
        // such a certificate.
        CertificateError::Other(cause) if cause.0.to_string() == "CaUsedAsEndEntity" => {
            CA_AS_SERVER.to_owned()
        }
        other => format!("cannot be accepted: {other}"),
    }
}

/// `openssl req -x509` makes such certificates by default, and people then trust them as their own CA.
const CA_AS_SERVER: &str = "is a CA certificate (CA:TRUE) and cannot be used by a server, even if it is trusted: \
     create a self-signed one with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE \
     -addext subjectAltName=DNS:HOST`, or one issued by a CA";

fn alert_text(alert: AlertDescription) -> String {
    let known = match alert {
        AlertDescription::UnknownCA => "it does not trust the CA of our certificate",
        AlertDescription::CertificateExpired => "our certificate has expired",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it does not accept our certificate"
        }
        AlertDescription::CertificateRequired => "it requires a certificate of ours",
        AlertDescription::ProtocolVersion => "no version of TLS in common",
        AlertDescription::HandshakeFailure => "no parameters in common, or a certificate of ours is required",
        other => return format!("alert {other:?}"),
    };
    known.to_owned()
}

/// Stands for the path in errors about certificates that are not in a file.
pub(super) fn system_store() -> PathBuf {
    PathBuf::from("the system's certificates")
}
