//! Clients that are let in while the upstream cannot be asked, until it has been.

use std::sync::{Arc, OnceLock, Weak};

use amqp::{Credentials, Fault};
use transport::Outbox;

/// Such a client, as its session knows it.
pub(super) struct UnaskedLogin {
    credentials: Arc<Credentials>,
    outbox: Arc<Outbox>,
    /// Set once, by the forwarder that has asked.
    verdict: OnceLock<Result<(), Fault>>,
}

/// Those of a local queue; a session that ends drops its own.
#[derive(Default)]
pub(super) struct UnaskedLogins(Vec<Weak<UnaskedLogin>>);

impl UnaskedLogin {
    /// The answer of the upstream, once it has been asked.
    pub(super) fn verdict(&self) -> Option<&Result<(), Fault>> {
        self.verdict.get()
    }
}

impl UnaskedLogins {
    pub(super) fn add(&mut self, credentials: &Arc<Credentials>, outbox: &Arc<Outbox>) -> Arc<UnaskedLogin> {
        // As many as are let in end at some time: the list stays within twice the number of those that are left.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|login| login.strong_count() > 0);
        }
        let (credentials, outbox) = (Arc::clone(credentials), Arc::clone(outbox));
        let login = Arc::new(UnaskedLogin { credentials, outbox, verdict: OnceLock::new() });
        self.0.push(Arc::downgrade(&login));
        login
    }

    /// The credentials of one of them.
    pub(super) fn first(&self) -> Option<Arc<Credentials>> {
        self.0.iter().find_map(Weak::upgrade).map(|login| Arc::clone(&login.credentials))
    }

    /// Tells those with these credentials the verdict. Returns their outboxes, which are to be nudged.
    pub(super) fn asked(
        &mut self,
        credentials: &Credentials,
        verdict: &Result<(), Fault>,
    ) -> Vec<Arc<Outbox>> {
        let mut told = Vec::new();
        self.0.retain(|login| {
            let Some(login) = login.upgrade() else { return false };
            if *login.credentials != *credentials {
                return true;
            }
            // Nobody else sets it.
            let _ = login.verdict.set(verdict.clone());
            told.push(Arc::clone(&login.outbox));
            false
        });
        told
    }
}
