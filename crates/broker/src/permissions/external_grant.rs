//! The checks for a user whose operations an external auth backend authorizes.

use super::external::{AuthzDecision, AuthzTarget, ExternalPermissions};
use super::{Access, Grant};
use crate::error::BrokerError;

impl Grant {
    /// The decision about opening the virtual host; `None` if it has yet to be requested.
    pub(super) fn authorise_vhost(&self, asked: &ExternalPermissions) -> Option<AuthzDecision> {
        asked.decide(AuthzTarget::VirtualHost { vhost: self.vhost.clone() })
    }

    /// Refuses what the auth backend refuses, with RabbitMQ's texts.
    pub(super) fn ask(
        &self,
        asked: &ExternalPermissions,
        about: AuthzTarget,
        access: Access,
        what: impl FnOnce() -> String,
    ) -> Result<(), BrokerError> {
        match asked.decide(about) {
            Some(AuthzDecision::Allowed) => Ok(()),
            Some(AuthzDecision::Refused) => Err(BrokerError::access(self.refusal(access, &what()))),
            Some(AuthzDecision::Unanswered) => {
                let text = self.refusal(access, &what());
                Err(BrokerError::access(format!("{text}, backend {} returned an error", asked.module())))
            }
            None => Err(BrokerError::Unasked),
        }
    }
}
