//! TLS on connections to servers.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::error::{TlsError, TlsFile, explain_server, system_store};
use super::files::{CertificateFiles, CertificateInfo, read_ca, read_pair};
use super::provider;
use crate::stream::Stream;
use crate::turn::CONNECTING;

/// The trusted CA certificates, and our own certificate.
#[derive(Debug, Clone)]
pub struct ClientTlsConfig {
    /// The trusted CA certificates, as PEM; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate shown to a server that asks for one.
    pub certificate: Option<CertificateFiles>,
    /// The name that the server's certificate must have, if it differs from the host.
    pub server_name: Option<String>,
    /// Whether to verify the server's certificate at all. Otherwise an attacker can impersonate the server and read
    /// everything, passwords included.
    pub verify: bool,
}

/// TLS for connections to servers.
pub struct ClientTls {
    files: ClientTlsConfig,
    current: RwLock<Arc<ClientConfig>>,
}

/// The re-read files of a [`ClientTls`].
#[must_use = "the old contents stay in use until it is applied"]
pub struct ClientTlsReload<'a> {
    tls: &'a ClientTls,
    config: Arc<ClientConfig>,
    certificate: Option<CertificateInfo>,
}

impl ClientTls {
    /// Reads the files. Also returns a description of our certificate, if there is one.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn load(files: ClientTlsConfig) -> Result<(Self, Option<CertificateInfo>), TlsError> {
        let (config, certificate) = make(&files)?;
        Ok((Self { files, current: RwLock::new(config) }, certificate))
    }

    /// Reads the files again. Nothing changes before the result is applied.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn prepare_reload(&self) -> Result<ClientTlsReload<'_>, TlsError> {
        let (config, certificate) = make(&self.files)?;
        Ok(ClientTlsReload { tls: self, config, certificate })
    }

    /// Whether there is a certificate to show to a server that asks for one.
    pub fn has_certificate(&self) -> bool {
        self.files.certificate.is_some()
    }

    /// Performs the handshake with a server at `host`, over `stream`. The server determines how long it takes: the caller
    /// must apply a timeout.
    ///
    /// # Errors
    /// A readable reason why the TLS connection failed.
    pub async fn connect(&self, stream: Stream, host: &str) -> io::Result<Stream> {
        let expected = self.files.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(expected.to_owned()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("'{expected}' is not a name for TLS"))
        })?;
        let config = Arc::clone(&self.current.read());
        // Boxed: the state of a handshake is large, and short-lived.
        let connecting = Box::pin(tokio_rustls::TlsConnector::from(config).connect(name, stream));
        let stream = CONNECTING.run(connecting).await.map_err(|error| explain_server(error, expected))?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }
}

impl ClientTlsReload<'_> {
    /// Uses the new contents for connections from now on; established ones stay as they are. Returns a description of our
    /// certificate, if there is one.
    pub fn apply(self) -> Option<CertificateInfo> {
        *self.tls.current.write() = self.config;
        self.certificate
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn make(files: &ClientTlsConfig) -> Result<(Arc<ClientConfig>, Option<CertificateInfo>), TlsError> {
    let provider = provider();
    let internal = |error: rustls::Error| TlsError::without_path(TlsFile::Ca, &error).caused_by(error);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(internal)?;
    let builder = if files.verify {
        builder.with_root_certificates(match &files.ca {
            Some(path) => read_ca(path)?.0,
            None => system_ca()?,
        })
    } else {
        let accept_any = Arc::new(AcceptAnyCertificate(Arc::clone(&provider)));
        builder.dangerous().with_custom_certificate_verifier(accept_any)
    };
    let Some(pair) = &files.certificate else {
        return Ok((Arc::new(builder.with_no_client_auth()), None));
    };
    let (certificate, info) = read_pair(pair, &provider)?;
    let resolver = Arc::new(SingleCertAndKey::from(certificate));
    Ok((Arc::new(builder.with_client_cert_resolver(resolver)), Some(info)))
}

fn system_ca() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems have certificates that are no longer usable; these are skipped.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(TlsError::new(
            TlsFile::Ca,
            &system_store(),
            "no CA certificates found; configure a file",
        ));
    }
    Ok(roots)
}

/// Accepts every certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
