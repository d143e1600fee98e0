//! Answers that may arrive late: those to `basic.consume` and `basic.cancel`.
//!
//! RabbitMQ's channel sends them when it handles a message from its queue process, after the methods that it has received
//! by then. So the answers to later methods overtake them, and a channel that is closed by then never sends them.
//! A `basic.cancel` that comes before the consume-ok of its consumer ends the connection with 541 (3.10.8), or is
//! answered alone (4.3.6); behind a second `basic.consume` with the same tag, 4.3.6 fails likewise.
//!
//! So nothing but messages and acknowledgements goes out until such answers have come, and further `basic.consume` behind
//! another one, as their answers are in order among each other. The pool's own proofs do not wait. Their replies may come
//! before a late answer, and count behind it.

use super::entry::is_consume;
use super::{Ledger, Record};

/// The last run of requests whose answers come late, by their numbers, which are 0 before the first one.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LateAnswers {
    first: u64,
    last: u64,
    /// The last `basic.cancel` among all requests so far; 0 before the first one.
    last_cancel: u64,
}

impl Ledger {
    /// Whether a method other than those that settle deliveries need not wait for late answers; if it has to,
    /// [`crate::link::Event::Answered`] follows.
    pub(crate) fn may_overtake(&self, payload: &[u8]) -> bool {
        let is_behind_consumes = || {
            let record = self.record.lock();
            record.answered >= record.late.last_cancel
        };
        (is_consume(payload) && is_behind_consumes()) || self.poll_late_answers()
    }

    /// Whether no late answer is still to come; if one is, [`crate::link::Event::Answered`] follows.
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
        // Only late answers, and other proofs, are still to come in front of it.
        let is_early = self.has_late_answers() && self.answered + 1 >= self.late.first;
        self.early_proofs += usize::from(is_early);
        is_early
    }

    /// Counts the proofs whose replies have come before the last late answer.
    pub(super) fn count_early_proofs(&mut self) {
        while self.early_proofs > 0
            && let Some(_) = self.proofs.pop_front_if(|number| *number == self.answered + 1)
        {
            self.early_proofs -= 1;
            self.answered += 1;
        }
    }
}
