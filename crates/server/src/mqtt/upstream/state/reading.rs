//! Reading a state queue before its client is admitted.

use std::sync::Arc;

use amqp::{Fault, ReplyCode};
use mqtt::session::Session;
use transport::Outbox;

use super::queue::{StatePhase, StateQueue};
use crate::mqtt::upstream::session_takeover::EarlierConsumer;

/// The progress of reading a client's state queue before its admission.
#[derive(Default)]
pub(in super::super) struct StateReading {
    /// The wait for the consumer of the client's earlier connection.
    earlier: EarlierConsumer,
    /// How often the queue was found empty.
    empty: u32,
}

/// How often an empty queue is checked again.
const MAX_EMPTY: u32 = 3;

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum ReadState {
    /// Waits for the upstream.
    Pending,
    /// There is no such queue, or the user has no permission for it.
    Absent,
    /// The queue was read to its end.
    Read,
    /// Another connection keeps consuming from it.
    InUse,
}

impl StateReading {
    /// Advances. `is_found` says that the session's queue exists: if a session had one and lost it, the session has
    /// ended.
    pub(in super::super) fn advance(
        &mut self,
        state: &mut StateQueue,
        name: &str,
        is_found: bool,
        outbox: &Arc<Outbox>,
    ) -> ReadState {
        if self.earlier.poll_pause() {
            state.find(name);
            outbox.nudge();
        }
        match state.phase() {
            StatePhase::Missing => ReadState::Absent,
            StatePhase::Found { consumers, messages } => {
                if self.earlier.is_pausing() {
                    return ReadState::Pending;
                }
                // There is always a list. It may be unacknowledged by a lost connection, and about to be requeued.
                let is_returning = messages == 0 && self.empty < MAX_EMPTY;
                self.empty += u32::from(is_returning);
                if self.earlier.pause(consumers > 0 || is_returning, outbox) {
                    return ReadState::Pending;
                }
                if consumers > 0 {
                    return ReadState::InUse;
                }
                state.read(messages);
                outbox.nudge();
                ReadState::Pending
            }
            StatePhase::Consuming if !is_found && state.list().is_some_and(|list| list.has_queue) => {
                self.discard(state, outbox);
                ReadState::Pending
            }
            StatePhase::Consuming => ReadState::Read,
            _ => ReadState::Pending,
        }
    }

    /// Deletes the queue; the next step finds it absent.
    pub(in super::super) fn discard(&self, state: &mut StateQueue, outbox: &Arc<Outbox>) {
        state.delete();
        outbox.nudge();
    }
}

impl StateQueue {
    /// The session with the state that was read. `session` is what this server knows of it.
    pub(in super::super) fn restore(&mut self, mut session: Session) -> Session {
        if let Some(list) = self.take_list() {
            session = Session::new();
            for (filter, subscription) in list.subscriptions {
                session.subscribe(&filter, subscription);
            }
        }
        session.set_earlier(self.received());
        session
    }
}

/// The fault for a client whose state queue another connection keeps consuming from.
pub(in super::super) fn in_use() -> Fault {
    Fault::new(ReplyCode::ResourceLocked, "another connection of the client has its state queue")
}
