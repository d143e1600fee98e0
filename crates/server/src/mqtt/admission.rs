//! Admission of a client: from its CONNECT to its session.

use std::time::Instant;

use mqtt::server::ServerConnection as Engine;

use super::login::MqttRefused;
use super::session::{MqttSession, Refusal};
use crate::client::ConnectionCore;

/// A client that is about to be admitted. Nothing is read from it meanwhile.
pub(super) trait Admission: Send {
    /// Continues as far as possible. The outbox is nudged when another call is worth it.
    fn advance(&mut self, entering: &mut AdmittingConnection<'_>) -> Admitting;
    /// The connection ends before the client is admitted: releases everything.
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
    /// It waits for another party.
    Waits,
    Refused(MqttRefused),
    /// The engine has accepted the client.
    Admitted(Box<dyn MqttSession>),
    /// The engine has accepted the client, whose subscriptions cannot be restored: the connection has to end, and the
    /// session stays for a user with permission.
    NotResumed(Box<dyn MqttSession>, Refusal),
}

/// Appends bytes to the connection's output.
pub(super) fn write(core: &ConnectionCore, out: Vec<u8>) {
    if !out.is_empty() {
        core.outbox.append(|buf| buf.push(out.into()));
    }
}
