//! Whether the broker has processed everything that was sent on a channel: frames on the other upstream
//! channel may have to wait for that (P10).

use super::{EntryKind, Ledger, Record, SentEntry};
use crate::link::{ClientLink, Event};

/// Whether the broker has processed everything that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerProgress {
    Yes,
    /// Not yet; an event will follow.
    Soon,
    /// Not yet, and no reply to the last frames is due: an event follows only after [`Ledger::prove`].
    Asking,
}

/// The last frames sent without a reply of their own: messages, or methods with no-wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unanswered {
    /// Number of requests sent before them. The reply to the next request proves that they are processed.
    pub(super) asked: u64,
    /// The last message among them, if it will be confirmed.
    pub(super) confirm: Option<u64>,
}

impl Ledger {
    /// Whether the broker has processed everything that was sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.record.lock().is_quiet()
    }

    /// Like [`Self::is_quiet`]; if not, [`Event::Answered`] follows.
    pub(crate) fn poll_processed(&self) -> AnswerProgress {
        let mut record = self.record.lock();
        if record.is_quiet() {
            return AnswerProgress::Yes;
        }
        record.awaited = true;
        let asked = record.asked;
        let is_last = record.unanswered.is_some_and(|unanswered| unanswered.asked == asked);
        if is_last { AnswerProgress::Asking } else { AnswerProgress::Soon }
    }

    /// The numbers of answered requests and of confirmed messages, if more answers are due.
    pub(crate) fn answers_if_due(&self) -> Option<(u64, u64)> {
        let record = self.record.lock();
        let confirmed = record.confirms.up_to();
        let is_due = record.asked > record.answered || record.published > confirmed;
        is_due.then_some((record.answered, confirmed))
    }

    /// Number of messages and requests that the broker has not answered.
    pub(crate) fn unanswered(&self) -> u64 {
        let record = self.record.lock();
        let unproven = |entry: &SentEntry| match entry.what {
            EntryKind::Unconfirmed { count, .. } if !record.is_done(&entry.what) => count,
            _ => 0,
        };
        record.asked.saturating_sub(record.answered)
            + record.published.saturating_sub(record.confirms.up_to())
            + record.entries.iter().map(unproven).sum::<u64>()
    }

    /// Records that one of the messages that were recorded last is mandatory.
    pub(crate) fn sent_mandatory(&self) {
        let mut record = self.record.lock();
        record.mandatory = record.unanswered;
    }

    /// Whether the broker may still return a mandatory message. It does so before it processes the channel's next frame, and
    /// before it confirms the message.
    pub(crate) fn may_return(&self) -> bool {
        let record = self.record.lock();
        record.mandatory.is_some_and(|mandatory| !record.is_through(mandatory))
    }

    /// Notifies the session if `is_due`. Called after the record is unlocked.
    pub(super) fn notify(&self, is_due: bool) {
        if is_due && let Some(link) = self.link.upgrade() {
            ClientLink::notify(&link, Event::Answered);
        }
    }
}

impl Record {
    /// Whether something that the session waits for has happened: everything is processed, the late answers have arrived,
    /// or the replies to declarations have. Clears that wait.
    pub(super) fn take_awaited(&mut self) -> bool {
        let is_through = self.awaited && self.is_quiet();
        let has_come = self.awaits_late && !self.has_late_answers();
        let are_declared = self.awaits_declarations && !self.has_declarations();
        self.awaited &= !is_through;
        self.awaits_late &= !has_come;
        self.awaits_declarations &= !are_declared;
        is_through || has_come || are_declared
    }

    fn is_quiet(&self) -> bool {
        self.answered >= self.asked && self.unanswered.is_none_or(|unanswered| self.is_through(unanswered))
    }

    /// Whether the broker has answered a request after these frames, or confirmed the last of them and all messages before it.
    fn is_through(&self, frames: Unanswered) -> bool {
        let is_confirmed = |message| self.confirms.up_to() >= message;
        self.answered > frames.asked || frames.confirm.is_some_and(is_confirmed)
    }
}
