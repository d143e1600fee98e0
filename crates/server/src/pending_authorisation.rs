//! The wait of a session for what its user's auth backend says about an operation.

use std::sync::Arc;

use broker::Identity;
use transport::Outbox;

use crate::client::BackendRequest;

/// The question of a session to the auth backend of its user, if one is open.
///
/// An operation whose permission has not been asked for yet fails, and has changed nothing. The session then discards that
/// outcome, reads nothing from its client until the answer is there, and repeats the operation.
#[derive(Default)]
pub(crate) struct PendingAuthorisation {
    /// Set by [`Self::ask`], cleared by [`Self::take_answered`].
    request: Option<BackendRequest<()>>,
    /// An operation has failed, perhaps since it is yet to be asked about, and is not over.
    has_failed: bool,
}

impl PendingAuthorisation {
    /// Called when an operation has failed; `is_unasked` if that is because its permission has not been asked for yet.
    /// Returns whether its outcome is to be discarded, since the auth backend is now asked; the outbox is nudged when it has
    /// answered.
    pub(crate) fn ask(&mut self, is_unasked: bool, identity: &Identity, outbox: &Arc<Outbox>) -> bool {
        // A question that it has left is of no use if it has failed for another reason.
        self.has_failed = true;
        let Some(question) = Some(identity).filter(|_| is_unasked).and_then(Identity::take_authz_request)
        else {
            return false;
        };
        self.request = Some(BackendRequest::new(outbox, question));
        true
    }

    /// Called when an operation is over, whatever came of it.
    #[inline]
    pub(crate) fn over(&mut self, identity: &Identity) {
        if std::mem::take(&mut self.has_failed) {
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
