//! The checks of a user about whose operations another auth backend is asked.

use super::asked::{AskedRights, QuestionAbout, Verdict};
use super::{Access, Grant};
use crate::error::BrokerError;

impl Grant {
    /// The verdict about opening the virtual host; `None` if it is yet to be asked for.
    pub(super) fn ask_to_open(&self, asked: &AskedRights) -> Option<Verdict> {
        asked.decide(QuestionAbout::VirtualHost { vhost: self.vhost.clone() })
    }

    /// Refuses what the auth backend refuses, in RabbitMQ's words.
    pub(super) fn ask(
        &self,
        asked: &AskedRights,
        about: QuestionAbout,
        access: Access,
        what: impl FnOnce() -> String,
    ) -> Result<(), BrokerError> {
        match asked.decide(about) {
            Some(Verdict::Allowed) => Ok(()),
            Some(Verdict::Refused) => Err(BrokerError::access(self.refusal(access, &what()))),
            Some(Verdict::Unanswered) => {
                let text = self.refusal(access, &what());
                Err(BrokerError::access(format!("{text}, backend {} returned an error", asked.module())))
            }
            None => Err(BrokerError::Unasked),
        }
    }
}
