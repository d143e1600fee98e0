//! TLS on listeners.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use super::error::{TlsError, TlsFile, explain_client};
use super::files::{CaInfo, CertificateFiles, CertificateInfo, read_ca, read_pair};
use super::login::LoginFrom;
use super::provider;
use super::resolver::CertificatesByName;
use crate::stream::Stream;
use crate::turn::ACCEPTING;

/// A listener's certificates, and its requirements for client certificates.
#[derive(Debug, Clone)]
pub struct ServerTlsConfig {
    /// At least one. A client that sends a server name (SNI) gets the first certificate with that name; with an unknown
    /// name or none, it gets the first of all.
    pub certificates: Vec<CertificateFiles>,
    /// Whether clients must present certificates.
    pub client_certificates: ClientCertificates,
    /// The part of a client's certificate that is the user name.
    pub login_from: LoginFrom,
}

/// Whether clients are asked for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Clients are not asked for a certificate.
    Off,
    /// Clients may present a certificate, which must then be valid.
    Optional {
        /// The trusted CA certificates, as PEM.
        ca: PathBuf,
    },
    /// Clients must present a valid certificate.
    Required {
        /// As for `Optional`.
        ca: PathBuf,
    },
}

/// TLS for the connections of listeners.
pub struct ServerTls {
    files: ServerTlsConfig,
    /// Replaced by a reload; handshakes in progress continue with their configuration.
    current: RwLock<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    in_use: Arc<TlsInUse>,
}

/// The re-read files of a [`ServerTls`].
#[must_use = "the old contents stay in use until it is applied"]
pub struct ServerTlsReload<'a> {
    tls: &'a ServerTls,
    made: Current,
}

/// The certificates of a listener, and the CA certificates that it trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsInUse {
    /// The certificates, in the order of their configuration.
    pub certificates: Vec<CertificateInfo>,
    /// The CA certificates for client certificates, if these are requested.
    pub ca: Option<CaInfo>,
}

/// A connection after its TLS handshake.
#[derive(Debug)]
pub struct TlsAccepted {
    /// The stream inside TLS.
    pub stream: Stream,
    /// The user name in the client's certificate. `None` without a certificate, or if it has no name of the configured
    /// kind.
    pub login: Option<Arc<str>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn load(files: ServerTlsConfig) -> Result<Self, TlsError> {
        let current = RwLock::new(make(&files)?);
        Ok(Self { files, current })
    }

    /// The contents of the files in effect.
    pub fn in_use(&self) -> Arc<TlsInUse> {
        Arc::clone(&self.current.read().in_use)
    }

    /// Reads the files again. Nothing changes before the result is applied.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn prepare_reload(&self) -> Result<ServerTlsReload<'_>, TlsError> {
        Ok(ServerTlsReload { tls: self, made: make(&self.files)? })
    }

    /// Performs the handshake with a connected client. The client determines how long it takes: the caller must apply a
    /// timeout.
    ///
    /// # Errors
    /// A readable reason why the TLS connection failed.
    pub async fn accept(&self, stream: Stream) -> io::Result<TlsAccepted> {
        let config = Arc::clone(&self.current.read().config);
        let accepting = tokio_rustls::TlsAcceptor::from(config).accept(stream);
        let stream = ACCEPTING.run(pin!(accepting)).await.map_err(explain_client)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let login = certificate.and_then(|certificate| self.files.login_from.name(certificate));
        Ok(TlsAccepted { stream: Stream::Tls(Box::new(stream.into())), login: login.map(Into::into) })
    }
}

impl ServerTlsReload<'_> {
    /// Uses the new contents for connections from now on; established ones do not change. Sessions are not resumed across a
    /// reload. Returns the contents now in use.
    pub fn apply(self) -> Arc<TlsInUse> {
        let in_use = Arc::clone(&self.made.in_use);
        *self.tls.current.write() = self.made;
        in_use
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn make(files: &ServerTlsConfig) -> Result<Current, TlsError> {
    let provider = provider();
    // Each certificate serves its own names, and the first one also clients that request another name, or none.
    let mut resolver: Option<CertificatesByName> = None;
    let mut certificates = Vec::new();
    for pair in &files.certificates {
        let (certificate, info) = read_pair(pair, &provider)?;
        match &mut resolver {
            Some(resolver) => resolver.add(certificate, info.names.clone()),
            None => resolver = Some(CertificatesByName::new(certificate, info.names.clone())),
        }
        certificates.push(info);
    }
    let missing = || TlsError::without_path(TlsFile::Certificate, "no certificate is configured");
    let resolver = Arc::new(resolver.ok_or_else(missing)?);
    let internal =
        |error: rustls::Error| TlsError::without_path(TlsFile::Certificate, &error).caused_by(error);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    // TLS 1.2 and 1.3.
    let builder = builder.with_safe_default_protocol_versions().map_err(internal)?;
    // The handshake verifies client certificates whether or not they are required, and rejects invalid ones.
    let mut ca_info = None;
    let mut config = match &files.client_certificates {
        ClientCertificates::Off => builder.with_no_client_auth().with_cert_resolver(resolver),
        ClientCertificates::Optional { ca } | ClientCertificates::Required { ca } => {
            let (roots, info) = read_ca(ca)?;
            ca_info = Some(info);
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let optional = matches!(files.client_certificates, ClientCertificates::Optional { .. });
            let verifier = if optional { verifier.allow_unauthenticated() } else { verifier };
            let verifier = verifier.build().map_err(|error| TlsError::new(TlsFile::Ca, ca, error))?;
            builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver)
        }
    };
    // Resumption: the server stores no sessions, and sends tickets only if it does not ask for client certificates.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    if files.client_certificates == ClientCertificates::Off {
        // The client stores its encrypted resumption state itself. A resumed session would not present the client's
        // certificate again, so with client certificates every connection makes a full handshake.
        config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(internal)?;
        config.send_tls13_tickets = 1;
    }
    let in_use = Arc::new(TlsInUse { certificates, ca: ca_info });
    Ok(Current { config: Arc::new(config), in_use })
}
