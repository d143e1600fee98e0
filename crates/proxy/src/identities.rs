//! Upstream credentials of clients that authenticate to the proxy with a certificate.

use std::collections::HashMap;

use amqp::Credentials;
use amqp::sasl::Secret;

/// The upstream credentials of clients that log in with SASL EXTERNAL. A broker cannot verify a certificate that
/// was presented to the proxy, so such a client has a user and a password there, which only the pool knows.
#[derive(Debug, Default)]
pub struct Identities {
    known: HashMap<String, (String, Secret)>,
}

impl Identities {
    /// Adds a client's identity, as its certificate states it, with its user and password upstream. A later
    /// entry replaces an earlier one.
    pub fn insert(&mut self, identity: impl Into<String>, user: impl Into<String>, password: &str) {
        self.known.insert(identity.into(), (user.into(), Secret::new(password.as_bytes())));
    }

    /// Whether there are no identities.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The upstream credentials of an identity.
    pub(crate) fn credentials(&self, identity: &str) -> Option<Credentials> {
        let (user, password) = self.known.get(identity)?;
        Some(Credentials::plain(user.clone(), password.expose()))
    }
}
