//! Admission of a client: from its CONNECT to its session.

use std::time::Instant;

use mqtt::server::ServerConnection as Engine;

use super::login::MqttRefused;
use super::session::{MqttSession, Refusal};
use crate::client::ConnectionCore;

/// A client between its CONNECT and its session. Its connection is not read in this state.
pub(super) trait Admission: Send {
    /// Advances as far as possible without waiting. The outbox is nudged when the admission can advance further.
    fn advance(&mut self, entering: &mut AdmittingConnection<'_>) -> Admitting;
    /// Called if the connection ends before the client is admitted: releases its claim and its requests.
    fn leave(&mut self);
}

/// The connection of a client that is about to be admitted.
pub(super) struct AdmittingConnection<'c> {
    pub(super) core: &'c mut ConnectionCore,
    pub(super) engine: &'c mut Engine,
    pub(super) now: Instant,
}

/// How far an admission has come.
pub(super) enum Admitting {
    /// The admission waits, for example for an auth backend, for the session's other connection, or for the disk.
    Pending,
    Refused(MqttRefused),
    /// The engine has accepted the client.
    Admitted(Box<dyn MqttSession>),
    /// The engine has accepted the client, but its subscriptions could not be restored. The connection must close; the
    /// session is kept, for a connection with the permissions.
    NotResumed(Box<dyn MqttSession>, Refusal),
}

/// Appends bytes to the connection's output.
pub(super) fn write(core: &ConnectionCore, out: Vec<u8>) {
    if !out.is_empty() {
        core.outbox.append(|buf| buf.push(out.into()));
    }
}
