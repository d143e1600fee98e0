//! `connection.update-secret`: a client continues with another password or token.

use std::sync::Arc;

use amqp::frame::write_method;
use amqp::method::connection;
use amqp::sasl::Secret;
use amqp::{Credentials, Fault, ReplyCode};

use super::ProxySession;
use super::placement::UpstreamLink;
use super::side::SidePlacement;
use crate::refusal::Refusal;
use crate::upstream::Role;

impl ProxySession {
    /// Handles `connection.update-secret`. Returns true if the secret is the present one, which the broker
    /// has accepted: answer now. Otherwise returns false: a separate login verifies it with the broker (P1),
    /// and the session answers the client itself when that has succeeded. While no broker can be asked, the
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

    /// Handles the broker's verdict on the new secret. Shared channels move to connections that were opened
    /// with it; the client's own connection is updated, and is closed rather than reused afterwards.
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
        if let UpstreamLink::Ready(own) = &self.own {
            self.output.hand_over();
            let (new_secret, reason) = (self.credentials.secret.expose(), "the client has a new secret");
            own.outbox.append(|buf| {
                write_method(buf.tail(), 0, connection::UpdateSecret { new_secret, reason });
            });
        }
        // A connection that is still being opened will have the old secret, too.
        self.rekeyed |= !matches!(self.own, UpstreamLink::None);
        (self.general, self.publishing) = (UpstreamLink::None, UpstreamLink::None);
        let mut shared = Vec::new();
        for (number, channel) in self.channels.iter() {
            for role in [Role::General, Role::Publishing] {
                if let Some(SidePlacement::Placed(route)) = channel.side(role).map(|side| &side.place)
                    && !route.own
                    && !channel.is_closing()
                {
                    shared.push((number, role));
                }
            }
        }
        for (number, role) in shared {
            self.leave(number, role, false)?;
        }
        self.answer(0, connection::UpdateSecretOk {});
        Ok(())
    }
}

/// New secrets that a client may have sent without a reply: each takes a login, and during an outage many.
pub(crate) const MAX_UNANSWERED_SECRETS: usize = 4;
/// Class and method id of `connection.update-secret`.
const UPDATE_SECRET_IDS: (u16, u16) = (10, 70);
