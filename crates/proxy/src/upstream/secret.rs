//! New secrets of the clients of a connection (`connection.update-secret`).
//!
//! A connection has the permissions of the secret with which it was opened. The clients that share it have sent that secret.
//! When all clients that still use it have sent the same new secret, the pool sends `connection.update-secret` to the
//! broker; from then on the connection counts as opened with the new secret, and no channel moves. Until then it keeps the
//! former secret, and clients with another one are not attached to it.
//!
//! For example, two clients share a connection, and one of them sends a new token. Its consumers stay. When the other
//! client has sent the same token, or is gone, the broker gets the token.

use std::sync::Arc;

use amqp::Credentials;
use amqp::method::connection;

use super::role::Attached;
use super::{Phase, Upstream, UpstreamState};
use crate::link::ClientLink;
use crate::pool::is_same;

impl Upstream {
    /// The credentials of the connection.
    pub(crate) fn credentials(&self) -> Arc<Credentials> {
        self.credentials.load_full()
    }

    /// Whether the connection has these credentials, compared in constant time unless they are the same object.
    pub(crate) fn is_of(&self, credentials: &Credentials) -> bool {
        is_same(&self.credentials.load(), credentials)
    }

    /// Records a new secret of an attached client, which the broker has accepted. On the client's own connection it is
    /// sent to the broker at once.
    pub(crate) fn renew(&self, link: &Arc<ClientLink>, credentials: &Arc<Credentials>) {
        let mut state = self.state.lock();
        if let Some(owner) = &state.owner {
            if Arc::ptr_eq(owner, link) {
                self.pass_on_secret(credentials);
            }
            return;
        }
        let is_former = self.is_of(credentials);
        if let Some(attached) = state.attached.iter_mut().find(|attached| Arc::ptr_eq(&attached.link, link)) {
            attached.renewed = (!is_former).then(|| credentials.clone());
        }
        self.pass_on_common_secret(&mut state);
    }

    /// Sends a new secret to the broker if all attached clients have it.
    pub(super) fn pass_on_common_secret(&self, state: &mut UpstreamState) {
        if state.phase != Phase::Open || state.owner.is_some() {
            return;
        }
        let Some(credentials) = state.attached.first().and_then(|first| first.renewed.clone()) else {
            return;
        };
        let has_it =
            |attached: &Attached| attached.renewed.as_ref().is_some_and(|renewed| **renewed == *credentials);
        if !state.attached.iter().all(has_it) {
            return;
        }
        state.attached.iter_mut().for_each(|attached| attached.renewed = None);
        // The broker has accepted the secret on another connection, not on this one.
        state.verified_at = None;
        self.pass_on_secret(&credentials);
        self.credentials.store(credentials);
    }

    fn pass_on_secret(&self, credentials: &Credentials) {
        let (new_secret, reason) = (credentials.secret.expose(), "the client has a new secret");
        self.send(0, connection::UpdateSecret { new_secret, reason });
    }
}
