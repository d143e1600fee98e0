//! Answers that may arrive late: those to `basic.consume` and `basic.cancel`.
//!
//! RabbitMQ's channel process sends them when it handles the queue process's message, after the methods that it has
//! received by then. So replies to later methods overtake them, and a channel that is closed by then never sends them. If
//! a `basic.cancel` arrives before the consume-ok of its consumer, 3.10.8 ends the connection with 541, and 4.3.6 sends
//! only cancel-ok; after a second `basic.consume` with the same tag, 4.3.6 fails with 541 as well.
//!
//! So until such answers have arrived, only messages and acknowledgements are sent. A further `basic.consume` may follow
//! another one, because their answers keep their order. The pool's own proofs do not wait; a reply to a proof may arrive
//! before a late answer to an earlier request, and is counted after it.

use super::entry::is_consume;
use super::{Ledger, Record};

/// The numbers of the first and last request of the latest run whose answers may be late; 0 before the first such request.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LateAnswers {
    first: u64,
    last: u64,
    /// The last `basic.cancel` among all requests so far; 0 before the first one.
    last_cancel: u64,
}

impl Ledger {
    /// Whether a method, other than those that settle deliveries, may be sent without waiting for late answers. If not,
    /// [`crate::link::Event::Answered`] follows.
    pub(crate) fn may_overtake(&self, payload: &[u8]) -> bool {
        let is_behind_consumes = || {
            let record = self.record.lock();
            record.answered >= record.late.last_cancel
        };
        (is_consume(payload) && is_behind_consumes()) || self.poll_late_answers()
    }

    /// Whether no late answer is pending. If one is, [`crate::link::Event::Answered`] follows.
    pub(crate) fn poll_late_answers(&self) -> bool {
        let mut record = self.record.lock();
        record.awaits_late = record.has_late_answers();
        !record.awaits_late
    }
}

impl Record {
    pub(super) fn has_late_answers(&self) -> bool {
        self.answered < self.late.last
    }

    /// Notes the request that is sent now, if its answer comes late.
    pub(super) fn note_late_answer(&mut self, payload: &[u8]) {
        let is_cancel = matches!(payload, [0, 60, 0, 30, ..]);
        if is_cancel || is_consume(payload) {
            let first = if self.has_late_answers() { self.late.first } else { self.asked };
            let last_cancel = if is_cancel { self.asked } else { self.late.last_cancel };
            self.late = LateAnswers { first, last: self.asked, last_cancel };
        }
    }

    /// Takes a reply to `channel.flow` if it answers one of the pool's own proofs.
    pub(super) fn takes_proof(&mut self) -> bool {
        let Some(number) = self.proofs.get(self.early_proofs) else { return false };
        if *number == self.answered + 1 {
            self.proofs.pop_front();
            self.answered += 1;
            return true;
        }
        // The proof is early only if all pending replies before it are late answers or other proofs.
        let is_early = self.has_late_answers() && self.answered + 1 >= self.late.first;
        self.early_proofs += usize::from(is_early);
        is_early
    }

    /// Counts the proofs whose replies arrived before the late answers that are now complete.
    pub(super) fn count_early_proofs(&mut self) {
        while self.early_proofs > 0
            && let Some(_) = self.proofs.pop_front_if(|number| *number == self.answered + 1)
        {
            self.early_proofs -= 1;
            self.answered += 1;
        }
    }
}
