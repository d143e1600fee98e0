//! A session's wait for its user's auth backend to decide about an operation.

use std::sync::Arc;

use broker::Identity;
use transport::Outbox;

use crate::client::BackendRequest;

/// A session's question to its user's auth backend, if one is open.
///
/// An operation whose permission has not been asked for yet fails, and changes nothing. The session then discards that
/// outcome, stops reading its client until there is an answer, and repeats the operation.
#[derive(Default)]
pub(crate) struct PendingAuthorisation {
    /// Set by [`Self::ask`], cleared by [`Self::take_answered`].
    request: Option<BackendRequest<()>>,
    /// Whether an operation has failed, perhaps because it has to be asked about first, and is not over.
    has_failed: bool,
}

impl PendingAuthorisation {
    /// Called when an operation has failed; `is_unasked` if that is because its permission has not been asked for yet.
    /// Returns whether the outcome has to be discarded because the auth backend is now being asked. The outbox is nudged
    /// when it has answered.
    pub(crate) fn ask(&mut self, is_unasked: bool, identity: &Identity, outbox: &Arc<Outbox>) -> bool {
        // Questions that the operation has left are useless if it has failed for another reason.
        self.has_failed = true;
        let Some(question) = Some(identity).filter(|_| is_unasked).and_then(Identity::take_authz_request)
        else {
            return false;
        };
        self.request = Some(BackendRequest::new(outbox, question));
        true
    }

    /// Called when an operation is over, whatever its outcome.
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

    /// Called after a nudge. Returns true once per question, when the operation has to be repeated.
    pub(crate) fn take_answered(&mut self) -> bool {
        let is_answered = self.request.as_ref().is_some_and(|request| request.take_answer().is_some());
        if is_answered {
            self.request = None;
        }
        is_answered
    }
}
