//! Selects the certificate for a client by SNI.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Certificates by name; the first one serves clients that ask for an unknown name, or none.
#[derive(Debug)]
pub(super) struct CertificatesByName {
    first: Arc<CertifiedKey>,
    /// Names in lower case; `*.example.com` for one label in front of `example.com`.
    by_name: HashMap<String, Arc<CertifiedKey>>,
}

impl CertificatesByName {
    /// If several certificates have a name, the first one serves the clients that ask for it.
    pub(super) fn new(first: CertifiedKey, first_names: Vec<String>) -> Self {
        let mut this = Self { first: Arc::new(first), by_name: HashMap::new() };
        this.insert(Arc::clone(&this.first), first_names);
        this
    }

    pub(super) fn add(&mut self, certificate: CertifiedKey, names: Vec<String>) {
        self.insert(Arc::new(certificate), names);
    }

    fn insert(&mut self, certificate: Arc<CertifiedKey>, names: Vec<String>) {
        for name in names {
            self.by_name.entry(name).or_insert_with(|| Arc::clone(&certificate));
        }
    }

    fn find(&self, name: &str) -> &Arc<CertifiedKey> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = || self.by_name.get(&format!("*.{}", name.split_once('.')?.1));
        self.by_name.get(&name).or_else(wildcard).unwrap_or(&self.first)
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(hello.server_name().map_or(&self.first, |name| self.find(name))))
    }
}
