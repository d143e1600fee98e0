//! What goes wrong with certificates, in words for whoever has to put it right.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustls::{AlertDescription, CertificateError, Error};

/// What a file of a TLS configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// A certificate and its chain.
    Certificate,
    /// The certificate's private key.
    Key,
    /// The authorities that are believed.
    Authorities,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError {
    /// What the file is for.
    pub file: TlsFile,
    /// The file and what is wrong with it, or what is missing.
    pub reason: String,
}

impl TlsError {
    pub(super) fn new(file: TlsFile, path: &Path, reason: impl fmt::Display) -> Self {
        Self { file, reason: format!("{}: {reason}", path.display()) }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for TlsError {}

/// What failed in a handshake with a client, as an error whose text says it.
pub(super) fn explain_client(error: io::Error) -> io::Error {
    explain(error, |error| match error {
        Error::InvalidMessage(_) => Some("the client does not speak TLS".to_owned()),
        Error::NoCertificatesPresented => Some("the client has no certificate".to_owned()),
        Error::InvalidCertificate(why) => Some(format!("the client's certificate {}", fault(why))),
        _ => None,
    })
}

/// What failed in a handshake with the server that is to be called `name`.
pub(super) fn explain_server(error: io::Error, name: &str) -> io::Error {
    explain(error, |error| match error {
        Error::InvalidMessage(_) => Some("the server does not speak TLS".to_owned()),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(format!("the server's certificate is not for '{name}'")),
        Error::InvalidCertificate(why) => Some(format!("the server's certificate {}", fault(why))),
        _ => None,
    })
}

/// What failed on a connection that is open already: a client hears only then what the server has against it (TLS 1.3).
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

/// What is wrong with a certificate: the end of a sentence.
fn fault(error: &CertificateError) -> String {
    match error {
        // An authority that has the name of one that is believed, and another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "was not issued by an authority that is believed".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not made for this purpose (extended key usage)".to_owned()
        }
        other => format!("cannot be accepted: {other}"),
    }
}

fn alert_text(alert: AlertDescription) -> String {
    let known = match alert {
        AlertDescription::UnknownCA => "it does not know the authority of our certificate",
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

/// A path, for errors about something that is not in a file.
pub(super) fn system_store() -> PathBuf {
    PathBuf::from("the system's certificates")
}
