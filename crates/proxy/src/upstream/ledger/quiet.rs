//! Whether the broker is through with everything that was sent on a channel: what may be sent on another channel only after
//! that waits for it (P10).

use super::{Ledger, Record};
use crate::link::{ClientLink, Event};

/// Whether the broker is through with everything that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quiet {
    Yes,
    /// An event will tell.
    Soon,
    /// An event will tell, once [`Ledger::prove`] has asked: nothing else has an answer.
    Asking,
}

/// The last frames that were sent and have no answer of their own: messages, or methods with no-wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unanswered {
    /// So many methods had been asked in front of them: the answer to the next one speaks for them.
    pub(super) asked: u64,
    /// The last message among them, if it will be confirmed.
    pub(super) confirm: Option<u64>,
}

impl Ledger {
    /// Whether the broker is through with everything that was sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.record.lock().is_quiet()
    }

    /// The same; after a no, [`Event::Answered`] tells.
    pub(crate) fn await_quiet(&self) -> Quiet {
        let mut record = self.record.lock();
        if record.is_quiet() {
            return Quiet::Yes;
        }
        record.awaited = true;
        let asked = record.asked;
        let is_last = record.unanswered.is_some_and(|unanswered| unanswered.asked == asked);
        if is_last { Quiet::Asking } else { Quiet::Soon }
    }

    /// Lets the session know if it waits for what has come now. Called when the record is unlocked.
    pub(super) fn notify(&self, is_due: bool) {
        if is_due && let Some(link) = self.link.upgrade() {
            ClientLink::tell(&link, Event::Answered);
        }
    }
}

impl Record {
    /// Whether the session waits for what has come now; from then on it does not.
    pub(super) fn take_awaited(&mut self) -> bool {
        let is_due = self.awaited && self.is_quiet();
        self.awaited &= !is_due;
        is_due
    }

    fn is_quiet(&self) -> bool {
        let is_through = |unanswered: Unanswered| {
            let is_confirmed = |message| self.confirms.up_to() >= message;
            self.answered > unanswered.asked || unanswered.confirm.is_some_and(is_confirmed)
        };
        self.answered >= self.asked && self.unanswered.is_none_or(is_through)
    }
}
