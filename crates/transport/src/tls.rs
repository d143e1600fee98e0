//! TLS 1.2 and 1.3 on both sides, by rustls.
//!
//! - [`ServerTls`]: for listeners: certificates chosen by the name that a client asks for, and client certificates.
//! - [`ClientTls`]: for connections to servers: the trusted CA certificates and our own certificate.
//! - [`ServerTlsReload`], [`ClientTlsReload`]: their files, read again. Several can be read before the first takes effect;
//!   connections stay as they are.
//! - [`LoginFrom`]: the user name that a verified client certificate stands for.
//!
//! Invariants: files are read when a configuration is made, never during a handshake; a file that cannot be
//! used changes nothing; no text shows a piece of a private key.

mod client;
mod error;
mod files;
mod login;
mod resolver;
mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use client::{ClientTls, ClientTlsConfig, ClientTlsReload};
pub(crate) use error::explain_open;
pub use error::{TlsError, TlsFile};
pub use files::{CaInfo, CertificateFiles, CertificateInfo, Expiry};
pub use login::{LoginFrom, SanType};
pub use server::{ClientCertificates, ServerTls, ServerTlsConfig, ServerTlsReload, TlsAccepted, TlsInUse};

/// The one cryptography provider; named here, so that no other crate's choice can change it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
