//! The meaning of an empty queue name: the queue that was declared last on the channel. If the queue is server-named, its
//! name arrives with declare-ok.
//!
//! A method with a reply is replayed only while the reply is pending: after the replayed declaration, or with the name that
//! has arrived. A method with no-wait is remembered at once, and may be repeated much later, on a channel where an empty
//! name means another client's queue. So it is not sent before the name is known.

use super::{Ledger, Record};

impl Ledger {
    /// Whether no reply to `queue.declare` is pending. If one is, [`crate::link::Event::Answered`] follows.
    pub(crate) fn poll_declarations(&self) -> bool {
        let mut record = self.record.lock();
        record.awaits_declarations = record.has_declarations();
        !record.awaits_declarations
    }
}

impl Record {
    pub(super) fn has_declarations(&self) -> bool {
        let asked = self.entries.iter().filter(|entry| entry.is_asked() && !self.is_done(&entry.what));
        asked
            .flat_map(|entry| entry.unanswered(self.answered))
            .any(|(_, payload)| payload.starts_with(&DECLARE))
    }
}

/// Class and method id of `queue.declare`, the start of its payload.
const DECLARE: [u8; 4] = [0, 50, 0, 10];
