//! Reading a state queue before its client is admitted.

use std::sync::Arc;

use amqp::{Fault, ReplyCode};
use mqtt::session::Session;
use transport::Outbox;

use super::queue::{StatePhase, StateQueue};
use crate::mqtt::upstream::session_takeover::EarlierConsumer;

/// How far the state queue of a client that is about to be admitted was read.
#[derive(Default)]
pub(in super::super) struct StateReading {
    /// The wait for the client's earlier connection.
    earlier: EarlierConsumer,
    /// How often the queue was found without a message.
    empty: u32,
}

/// How often an empty queue is looked at again.
const MAX_EMPTY: u32 = 3;

/// The outcome of a step of it.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum ReadState {
    /// The upstream is asked.
    Waits,
    /// There is no such queue, or it is not the user's.
    Absent,
    /// It was read to its end.
    Read,
    /// Another connection does not give it up.
    InUse,
}

impl StateReading {
    /// Continues. `is_found` says that the session's queue is there: a session that had one and has lost it has ended
    /// elsewhere.
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
                    return ReadState::Waits;
                }
                // There is always a list, which may be on its way back from a connection that was lost.
                let is_returning = messages == 0 && self.empty < MAX_EMPTY;
                self.empty += u32::from(is_returning);
                if self.earlier.pause(consumers > 0 || is_returning, outbox) {
                    return ReadState::Waits;
                }
                if consumers > 0 {
                    return ReadState::InUse;
                }
                state.read(messages);
                outbox.nudge();
                ReadState::Waits
            }
            StatePhase::Consuming if !is_found && state.list().is_some_and(|list| list.has_queue) => {
                self.discard(state, outbox);
                ReadState::Waits
            }
            StatePhase::Consuming => ReadState::Read,
            _ => ReadState::Waits,
        }
    }

    /// Deletes the queue, so that it will be absent.
    pub(in super::super) fn discard(&self, state: &mut StateQueue, outbox: &Arc<Outbox>) {
        state.delete();
        outbox.nudge();
    }
}

impl StateQueue {
    /// The session with what was read. `session` is what this server knows of it.
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

/// The fault of a client whose state queue another connection does not give up.
pub(in super::super) fn in_use() -> Fault {
    Fault::new(ReplyCode::ResourceLocked, "another connection of the client has its state queue")
}
