//! The upstream session's answers on channel 0, as far as the spool changes them.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::Credentials;
use amqp::frame::{Frame, FrameKind};
use amqp::sasl::Secret;

/// Class and method ids of the methods that are inspected.
const BLOCKED: [u8; 4] = [0, 10, 0, 60];
const UNBLOCKED: [u8; 4] = [0, 10, 0, 61];
const UPDATE_SECRET_OK: [u8; 4] = [0, 10, 0, 71];

/// The state of the client's upstream connection.
pub(super) struct ConnectionAnswers {
    /// Whether an alarm of the upstream blocks the client, which then need not be notified of the spool's alarm.
    pub(super) is_blocked_upstream: bool,
    /// Secrets that the upstream has not accepted yet, in order.
    pub(super) new_secrets: VecDeque<Secret>,
    /// Credentials that the upstream has just accepted, until the spool takes them.
    pub(super) accepted: Option<Arc<Credentials>>,
    credentials: Arc<Credentials>,
}

impl ConnectionAnswers {
    pub(super) fn new(credentials: Arc<Credentials>) -> Self {
        Self { is_blocked_upstream: false, new_secrets: VecDeque::new(), accepted: None, credentials }
    }

    /// Inspects a frame; returns whether the client gets it. `is_blocked` says whether an alarm of the spool blocks the
    /// client: it has had connection.blocked then, and gets connection.unblocked when the last alarm has ended.
    pub(super) fn passes(&mut self, frame: &Frame<'_>, is_blocked: bool) -> bool {
        let method = frame.payload;
        if frame.channel != 0 || frame.kind != FrameKind::Method {
            return true;
        }
        if method.starts_with(&BLOCKED) {
            self.is_blocked_upstream = true;
            return !is_blocked;
        }
        if method.starts_with(&UNBLOCKED) {
            self.is_blocked_upstream = false;
            return !is_blocked;
        }
        if method.starts_with(&UPDATE_SECRET_OK)
            && let Some(secret) = self.new_secrets.pop_front()
            // An older secret that is accepted late has been replaced already.
            && self.new_secrets.is_empty()
        {
            self.credentials = Arc::new(self.credentials.with_secret(secret.expose()));
            self.accepted = Some(Arc::clone(&self.credentials));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> ConnectionAnswers {
        ConnectionAnswers::new(Arc::new(Credentials::plain("edge", "first")))
    }

    fn passes(connection: &mut ConnectionAnswers, payload: &[u8], is_blocked: bool) -> bool {
        connection.passes(&Frame { kind: FrameKind::Method, channel: 0, payload }, is_blocked)
    }

    #[test]
    fn blocked_is_sent_at_the_first_alarm_and_unblocked_after_the_last() {
        let mut connection = connection();
        assert!(passes(&mut connection, &BLOCKED, false) && connection.is_blocked_upstream);
        assert!(!passes(&mut connection, &UNBLOCKED, true) && !connection.is_blocked_upstream);
        assert!(!passes(&mut connection, &BLOCKED, true));
        assert!(passes(&mut connection, &UNBLOCKED, false));
    }

    #[test]
    fn the_last_of_several_secrets_counts_once_it_is_accepted() {
        let mut connection = connection();
        connection.new_secrets.extend(["second", "third"].map(Secret::new));
        assert!(passes(&mut connection, &UPDATE_SECRET_OK, false) && connection.accepted.is_none());
        assert!(passes(&mut connection, &UPDATE_SECRET_OK, false));
        assert_eq!(*connection.accepted.take().unwrap(), Credentials::plain("edge", "third"));
    }
}
