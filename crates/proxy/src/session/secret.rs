//! `connection.update-secret`: a client continues with another password or token.

use std::sync::Arc;

use amqp::method::connection;
use amqp::sasl::Secret;
use amqp::{Credentials, Fault, ReplyCode};

use super::ProxySession;
use super::placement::UpstreamLink;
use super::side::{Side, SidePlacement};
use crate::refusal::Refusal;
use crate::upstream::{Role, Upstream};

impl ProxySession {
    /// Handles `connection.update-secret`. Returns true if the secret is the current one, which the broker has
    /// accepted: the caller should reply now. Otherwise returns false: a separate login verifies it with the broker
    /// (P1), and the session answers the client itself when that has succeeded. While no broker can be asked, the
    /// client is neither answered nor closed.
    ///
    /// # Errors
    /// 506 RESOURCE_ERROR when too many secrets wait for a reply.
    pub fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault> {
        if self.credentials.secret == Secret::new(secret) {
            return Ok(true);
        }
        if self.unanswered_secrets == MAX_UNANSWERED_SECRETS {
            let text = "too many new secrets at once";
            return Err(Fault::new(ReplyCode::ResourceError, text).caused_by(UPDATE_SECRET_IDS));
        }
        self.unanswered_secrets += 1;
        let (link, virtual_host) = (self.link.clone(), self.virtual_host.clone());
        self.new_secrets += 1;
        self.pool.verify_secret(link, &self.credentials, secret, virtual_host, self.new_secrets);
        Ok(false)
    }

    /// Handles the broker's verdict on the new secret. The client's own connection gets the new secret, so its channels stay;
    /// it is closed rather than reused afterwards. So does a shared connection whose other clients all have the new secret.
    /// From other connections, channels that have only published or declared are moved at once. A channel with consumers
    /// stays until [`Self::leave_former_secret`], because a move causes redeliveries.
    pub(super) fn secret_verified(
        &mut self,
        number: u64,
        result: Result<Arc<Credentials>, Refusal>,
    ) -> Result<(), Fault> {
        self.unanswered_secrets -= 1;
        let credentials = match result {
            Ok(credentials) => credentials,
            Err(Refusal::Login(_)) => {
                let text = "New secret was refused by one of the backends";
                return Err(Fault::new(ReplyCode::NotAllowed, text).caused_by(UPDATE_SECRET_IDS));
            }
            Err(Refusal::Fault(fault)) => return Err(fault.on_connection()),
        };
        if number < self.new_secrets {
            // An older secret, verified late because of an outage: the newer one takes precedence.
            self.answer(0, connection::UpdateSecretOk {});
            return Ok(());
        }
        self.credentials = credentials;
        if let Some(declarer) = self.link.declarer() {
            declarer.set_credentials(self.credentials.clone());
        }
        self.output.hand_over();
        self.attached.iter().for_each(|upstream| upstream.renew(&self.link, &self.credentials));
        // An own connection that is still being opened is opened with the old secret, and gets the new one afterwards.
        self.rekeyed |= !matches!(self.own, UpstreamLink::None);
        for upstream_link in [&mut self.general, &mut self.publishing] {
            if !upstream_link.upstream().is_some_and(|upstream| upstream.is_of(&self.credentials)) {
                *upstream_link = UpstreamLink::None;
            }
        }
        let mut former = Vec::new();
        for (number, channel) in self.channels.iter() {
            for role in [Role::General, Role::Publishing] {
                if let Some(side) = channel.side(role)
                    && !side.touched
                    && self.is_of_former_secret(side)
                    && !channel.is_closing()
                {
                    former.push((number, role));
                }
            }
        }
        for (number, role) in former {
            self.leave(number, role, false)?;
        }
        self.leave_former_connections();
        // Sides may wait for a channel number on a connection that the client has left, which does not notify it any more.
        self.place_all_waiting()?;
        self.answer(0, connection::UpdateSecretOk {});
        Ok(())
    }

    /// Moves a channel off a connection with a former secret of the client, before the channel sends a method that needs the
    /// permissions of the current secret.
    pub(super) fn leave_former_secret(&mut self, number: u16) -> Result<(), Fault> {
        if self.new_secrets == 0 {
            return Ok(());
        }
        let is_left =
            self.channels.get(number).is_some_and(|channel| self.is_of_former_secret(&channel.general));
        if is_left { self.leave(number, Role::General, false) } else { Ok(()) }
    }

    /// Detaches the client from connections with its former secrets on which it has no channels left.
    pub(super) fn leave_former_connections(&mut self) {
        if self.new_secrets == 0 {
            return;
        }
        let Self { attached, channels, own, link, credentials, .. } = self;
        attached.retain(|upstream| {
            let is_it = |other: &Arc<Upstream>| Arc::ptr_eq(other, upstream);
            let is_there = |side: &Side| side.route().is_some_and(|route| is_it(&route.upstream));
            let is_needed = own.upstream().is_some_and(is_it)
                || upstream.is_of(credentials)
                || channels.iter().any(|(_, channel)| channel.sides().any(is_there));
            if !is_needed {
                upstream.detach(link);
            }
            is_needed
        });
    }

    /// Whether a side is on a shared connection with a former secret of the client.
    fn is_of_former_secret(&self, side: &Side) -> bool {
        matches!(&side.place, SidePlacement::Placed(route) if !route.own && !route.upstream.is_of(&self.credentials))
    }
}

/// Maximum new secrets of a client without a reply: verifying each takes a login, and during an outage repeated logins.
pub(crate) const MAX_UNANSWERED_SECRETS: usize = 4;
/// Class and method id of `connection.update-secret`.
const UPDATE_SECRET_IDS: (u16, u16) = (10, 70);
