//! The wait of a session for what its user's authority says about an operation.

use std::sync::Arc;

use broker::Identity;
use transport::Outbox;

use crate::client::BackendRequest;

/// The question of a session to the authority of its user, if one is open.
///
/// An operation whose permission has not been asked for yet fails, and has changed nothing. The session then discards that
/// outcome, reads nothing from its client until the answer is there, and repeats the operation.
#[derive(Default)]
pub(crate) struct OpenQuestion {
    /// Set by [`Self::ask`], cleared by [`Self::take_answered`].
    request: Option<BackendRequest<()>>,
    /// The operation has been asked about, and is not over.
    is_repeated: bool,
}

impl OpenQuestion {
    /// Called when an operation has failed. Returns whether its outcome is to be discarded, since the authority is now
    /// asked; the outbox is nudged when it has answered.
    pub(crate) fn ask(&mut self, identity: &Identity, outbox: &Arc<Outbox>) -> bool {
        let Some(question) = identity.take_question() else { return false };
        self.request = Some(BackendRequest::new(outbox, question));
        self.is_repeated = true;
        true
    }

    /// Called when an operation is over, whatever came of it.
    #[inline]
    pub(crate) fn over(&mut self, identity: &Identity) {
        if std::mem::take(&mut self.is_repeated) {
            identity.end_operation();
        }
    }

    /// Whether the session has to wait.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.request.is_some()
    }

    /// Called after a nudge. Returns true once after each question, when the operation is to be repeated.
    pub(crate) fn take_answered(&mut self) -> bool {
        let is_answered = self.request.as_ref().is_some_and(|request| request.take_answer().is_some());
        if is_answered {
            self.request = None;
        }
        is_answered
    }
}
